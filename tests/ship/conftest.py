import importlib.util
from pathlib import Path

import pytest

_SPEC = importlib.util.spec_from_file_location("serving_harness", Path(__file__).with_name("harness.py"))
harness_module = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(harness_module)


@pytest.fixture(scope="session")
def harness():
    return harness_module


@pytest.fixture(scope="session")
def weights(tmp_path_factory):
    return harness_module.tiny_model(tmp_path_factory.mktemp("weights") / "tiny.safetensors")


@pytest.fixture(scope="module")
def server(weights, tmp_path_factory):
    started = harness_module.Server(weights, log=tmp_path_factory.mktemp("server") / "log").ready()
    yield started
    assert started.stop() == 0
