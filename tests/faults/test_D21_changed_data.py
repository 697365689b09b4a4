"""D21: data that changed between a save and a resume has another fingerprint, and resuming says so (exit 5)."""

import shutil

import pytest
from photos import folder, png

from vitrail.data.source import open_source
from vitrail.errors import CheckpointError
from vitrail.train.rundir import compare_sources


def identity(root, split="train"):
    source = open_source(root, split)
    return {"examples": len(source), "fingerprint": source.fingerprint}


@pytest.fixture
def data(tmp_path):
    return folder(tmp_path / "data", splits=("train", "val"))


def add(data):
    (data / "train" / "cat" / "new.png").write_bytes(png(77))


def remove(data):
    (data / "train" / "cat" / "1.png").unlink()


def edit(data):
    (data / "train" / "cat" / "1.png").write_bytes(png(78))


def edit_one_byte(data):
    path = data / "train" / "cat" / "1.png"
    body = bytearray(path.read_bytes())
    body[-20] ^= 1
    path.write_bytes(body)


def relabel(data):
    (data / "train" / "cat" / "1.png").rename(data / "train" / "dog" / "9.png")


def rename_class(data):
    for split in ("train", "val"):
        (data / split / "cat").rename(data / split / "lion")


@pytest.mark.parametrize("change", [add, remove, edit, edit_one_byte, relabel, rename_class])
def test_every_change_is_noticed(data, change):
    before = identity(data)
    change(data)
    with pytest.raises(CheckpointError, match="data changed") as caught:
        compare_sources(before, identity(data))
    assert caught.value.exit_code == 5 and "--accept-dataset-change" in caught.value.hint
    compare_sources(before, identity(data), accept=True)


def test_healthy_unchanged_touched_or_moved_data_go_on(data, tmp_path):
    before = identity(data)
    for path in data.rglob("*.png"):
        path.touch()
    compare_sources(before, identity(data))
    (data / "val" / "cat" / "0.png").write_bytes(png(5))  # another split's affair
    shutil.move(data, tmp_path / "elsewhere")
    compare_sources(before, identity(tmp_path / "elsewhere"))
