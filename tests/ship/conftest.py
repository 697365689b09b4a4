import importlib.util
import sys
from pathlib import Path

import pytest

if "serving_harness" not in sys.modules:
    _spec = importlib.util.spec_from_file_location("serving_harness", Path(__file__).with_name("harness.py"))
    sys.modules["serving_harness"] = importlib.util.module_from_spec(_spec)
    _spec.loader.exec_module(sys.modules["serving_harness"])

from serving_harness import Server, tiny_model


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


# short deadlines, so that what waits for them is quick; a fixed batch, so that answers are equal to the last bit
OPTIONS = ("--header-timeout-s", "1.5", "--body-timeout-s", "1.5", "--max-bytes", str(2**20), "--max-batch", "4", "--fixed-batch")


@pytest.fixture(scope="session")
def server(weights, tmp_path_factory):
    """One server for all tests that leave it alive and well."""
    started = Server(weights, options=OPTIONS, log=tmp_path_factory.mktemp("server") / "log").ready()
    yield started
    assert started.stop() == 0


@pytest.fixture
def start(weights, tmp_path):
    """A server of one's own: start(options=…, env=…)."""
    running = []

    def begin(*models, **options):
        running.append(Server(*(models or (weights,)), log=tmp_path / f"log{len(running)}", **options).ready())
        return running[-1]

    yield begin
    for one in running:
        one.stop()
