"""C06: the newest good checkpoint is never removed; removal follows a commit; a failure to remove is a warning."""

import shutil

import pytest
import torch

from vitrail.runtime.disk import write_tensors
from vitrail.train.store import CheckpointStore


def fill(draft):
    draft.add("model.safetensors", lambda path: write_tensors(path, {"w": torch.arange(50.0)}))
    draft.add_json("state.json", {})


@pytest.mark.parametrize("keep", [1, 2, 3])
def test_so_many_stay(tmp_path, keep):
    store = CheckpointStore(tmp_path, keep=keep)
    for step in range(1, 7):
        store.commit(step, fill)
        assert store.latest(strict=True).step == step
    assert [step for step, _ in store.names()] == list(range(6, 6 - keep, -1))


def test_keeping_none_keeps_one(tmp_path):
    store = CheckpointStore(tmp_path, keep=0)
    store.commit(1, fill)
    assert store.latest().step == 1


def test_a_damaged_newer_one_does_not_push_out_the_one_just_written(tmp_path):
    store = CheckpointStore(tmp_path, keep=1)
    store.commit(9, fill)
    (tmp_path / "step-00000009/model.safetensors").unlink()
    store.commit(6, fill)  # a run that fell back
    with pytest.warns(UserWarning, match="step-00000009"):
        assert store.latest().step == 6


def test_an_old_one_that_cannot_be_removed_is_a_warning(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path, keep=1)
    store.commit(1, fill)

    def refuse(path, **_):
        raise OSError(5, "injected", str(path))

    monkeypatch.setattr(shutil, "rmtree", refuse)
    with pytest.warns(UserWarning, match="could not delete the old checkpoint"):
        store.commit(2, fill)
    assert store.latest().step == 2
