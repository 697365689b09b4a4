"""A checkpoint directory is there, complete and verified, or it is not there."""

import os
import shutil

import pytest
import torch

from vitrail.runtime.disk import write_tensors
from vitrail.train.store import CheckpointStore, Damaged, verify


def fill(draft):
    draft.add("model.safetensors", lambda path: write_tensors(path, {"w": torch.arange(1000.0), "empty": torch.zeros(0, 3)}))
    draft.add_json("state.json", {"step": 1})


@pytest.fixture
def store(tmp_path):
    return CheckpointStore(tmp_path / "checkpoints", keep=2)


def test_what_was_committed_is_found_and_verifies(store):
    store.commit(7, fill)
    found = store.latest()
    assert found.step == 7 and found.state() == {"step": 1}
    assert (store.folder / "LATEST").read_text() == "step-00000007"
    assert sorted(p.name for p in store.folder.iterdir()) == ["LATEST", "step-00000007"]


def test_tensor_files_are_plain_safetensors(store, tmp_path):
    from safetensors.torch import load_file

    tensors = {"a": torch.randn(3, 5).to(torch.bfloat16), "b": torch.tensor(3), "t": torch.randn(4, 6).t(), "m": torch.tensor([True])}
    write_tensors(tmp_path / "x.safetensors", tensors, {"vitrail": "{}"})
    back = load_file(tmp_path / "x.safetensors")
    assert back.keys() == tensors.keys()
    assert all(torch.equal(back[name], tensors[name]) and back[name].dtype == tensors[name].dtype for name in tensors)


def test_only_the_newest_are_kept(store):
    for step in (1, 2, 3, 10):
        store.commit(step, fill)
    assert [step for step, _ in store.names()] == [10, 3]


def test_an_empty_or_absent_folder_holds_no_checkpoint(store):
    assert store.latest() is None
    store.folder.mkdir(parents=True)
    assert store.latest() is None and store.clean() == []


def test_a_failing_writer_leaves_nothing(store):
    store.commit(1, fill)

    def broken(draft):
        fill(draft)
        raise OSError(28, "no space")

    with pytest.raises(OSError, match="no space"):
        store.commit(2, broken)
    assert store.latest().step == 1
    assert not list(store.folder.glob(".tmp*"))


def test_verification_names_the_file(store):
    path = store.commit(1, fill).path
    verify(path)
    (path / "model.safetensors").unlink()
    with pytest.raises(Damaged, match=r"model\.safetensors is missing"):
        verify(path)


def test_a_checkpoint_that_cannot_fit_is_refused_before_it_is_written(store, monkeypatch):
    store.commit(1, fill)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: os.statvfs_result and type("Usage", (), {"free": 10})())
    with pytest.raises(OSError, match="are free"):
        store.commit(2, fill)
    assert [step for step, _ in store.names()] == [1]
