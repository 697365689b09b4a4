"""T14: the disk fills at any byte of a save: the previous checkpoint loads, nothing is left over, training goes on."""

import resource
import signal
import warnings

import pytest
import torch

from vitrail.runtime.disk import write_tensors
from vitrail.train.store import CheckpointStore

TENSORS = {"a": torch.randn(2000), "b": torch.randn(37, 91)}


def fill(draft):
    draft.add("model.safetensors", lambda path: write_tensors(path, TENSORS))
    draft.add("optimizer.safetensors", lambda path: write_tensors(path, TENSORS))
    draft.add_json("state.json", {"step": 1})


@pytest.fixture
def limit():
    """Sets the most bytes a file may have, as a full disk would."""
    before, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    resource.setrlimit(resource.RLIMIT_FSIZE, before)
    signal.signal(signal.SIGXFSZ, handler)


def test_a_save_cut_at_any_byte_leaves_the_one_before(tmp_path, limit):
    store = CheckpointStore(tmp_path / "checkpoints")
    store.commit(1, fill)
    size = (tmp_path / "checkpoints/step-00000001/model.safetensors").stat().st_size
    refused = 0
    for part in range(21):
        limit(max(0, part * size // 20 - 1))
        try:
            store.commit(2 + part, fill)
        except OSError:
            refused += 1
        limit(resource.RLIM_INFINITY)
        assert store.latest().step == 1
        assert sorted(p.name for p in store.folder.iterdir()) == ["LATEST", "step-00000001"]
    assert refused == 21
    assert store.commit(99, fill).step == 99  # with room again all is well


def test_no_space_is_refused_before_the_first_byte(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path / "checkpoints")
    store.commit(1, fill)
    monkeypatch.setattr("shutil.disk_usage", lambda _path: type("Usage", (), {"free": store.last_size})())
    with pytest.raises(OSError, match="a checkpoint needs"):
        store.commit(2, fill)


def test_training_goes_on_without_one_checkpoint(tiny, tmp_path):
    out = tmp_path / "run"
    done = tiny.run(out, env={"VITRAIL_FAULT": "commit.after_file:1=raise:ENOSPC"})
    assert done.code == 0 and "could not be written" in done.text
    assert tiny.digest(out) == tiny.digest(tiny.golden())


def test_three_refusals_in_a_row_end_it_and_the_same_command_resumes(tiny, tmp_path):
    out = tmp_path / "run"
    full = ",".join(f"commit.after_file:{n}=raise:ENOSPC" for n in (5, 6, 7))  # the first commit (4 files) succeeds
    done = tiny.run(out, env={"VITRAIL_FAULT": full})
    assert done.code == 6 and "3 checkpoints in a row" in done.text and "step-00000003" in done.text
    assert tiny.checkpoints(out) == [3] and not list((out / "checkpoints").glob(".tmp*"))
    assert tiny.run(out).code == 0
    assert tiny.digest(out) == tiny.digest(tiny.golden())


def test_with_room_nothing_is_said(tiny, tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        CheckpointStore(tmp_path / "checkpoints").commit(1, fill)
