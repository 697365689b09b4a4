"""`predict --ray` writes what `predict` writes, on a cluster of this one machine; skipped where Ray is not installed."""

import importlib.util
import json
import os
import subprocess
import sys

import pytest
from serving_harness import png

from vitrail.errors import UsageError
from vitrail.ship import cluster
from vitrail.ship.predict import predict

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="Ray is not installed (pip install 'vitrail[ray]')")


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    for k in range(20):
        (folder / f"{k:02}.png").write_bytes(png(k) if k != 7 else b"broken")
    return folder


@pytest.fixture
def local_cluster():
    ray = pytest.importorskip("ray")
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, _node_ip_address="127.0.0.1")
    yield
    ray.shutdown()


@needs_ray
def test_a_cluster_writes_the_file_that_one_process_writes(weights, photos, tmp_path, local_cluster, monkeypatch):
    monkeypatch.setattr(cluster, "BLOCK_BATCHES", 1)
    alone, together = tmp_path / "alone.csv", tmp_path / "together.csv"
    predict(weights, photos, out=alone, batch_size=4, device="cpu")
    result = cluster.predict_on_ray(weights, photos, together, batch_size=4, device="cpu", actors=2)
    assert (result.images, result.skipped) == (19, 1)
    assert result.bad[0]["image"].endswith("07.png") and result.bad[0]["reason"] == "unrecognised"
    assert together.read_bytes() == alone.read_bytes()
    assert (tmp_path / "together.csv.skipped.jsonl").read_bytes() == (tmp_path / "alone.csv.skipped.jsonl").read_bytes()

    # stopped: blocks 0 and 3 were written, and only the others are answered
    monkeypatch.setattr(cluster, "answered", only_some(cluster.answered))
    again = tmp_path / "again.csv"
    with pytest.raises(KeyboardInterrupt):
        cluster.predict_on_ray(weights, photos, again, batch_size=4, device="cpu")
    assert not again.exists()
    monkeypatch.undo()
    monkeypatch.setattr(cluster, "BLOCK_BATCHES", 1)
    result = cluster.predict_on_ray(weights, photos, again, batch_size=4, device="cpu")
    assert (result.resumed_at, result.images) == (8, 11)
    assert again.read_bytes() == alone.read_bytes()


def only_some(plain):
    def some(ray, spans, given, count, gpus):
        yield from plain(ray, [spans[0], spans[3]], given, count, gpus)
        raise KeyboardInterrupt

    return some


@needs_ray
def test_the_command_starts_a_cluster_of_its_own(weights, photos, tmp_path):
    command = [sys.executable, "-m", "vitrail", "predict", str(weights), str(photos), "--ray", "--out", str(tmp_path / "a.jsonl"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "CUDA_VISIBLE_DEVICES": ""}, timeout=120)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["images"] == 19
    assert len((tmp_path / "a.jsonl").read_text().splitlines()) == 19


def test_without_ray_one_sentence_says_what_to_install(weights, photos, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(Exception, match=r"needs the package 'ray'.*\n.*pip install 'vitrail\[ray\]'"):
        cluster.predict_on_ray(weights, photos, tmp_path / "a.csv")


def test_a_cluster_refuses_what_it_cannot_share(weights, photos, tmp_path):
    from click.testing import CliRunner

    from vitrail.commands.predict import command

    for arguments, said in (
        (["--ray"], "--ray writes a file"),
        (["--ray", "--fast", "--out", "a.csv"], "--fast is chosen for one machine"),
    ):
        error = CliRunner().invoke(command, [str(weights), str(photos), *arguments]).exception
        assert isinstance(error, UsageError) and said in error.message
