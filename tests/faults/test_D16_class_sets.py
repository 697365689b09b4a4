"""D16: splits, or data and a checkpoint, that disagree about the classes are refused with the difference."""

import shutil

import pytest
from photos import folder

from vitrail.cli import main
from vitrail.data.classes import require_same_classes
from vitrail.data.source import open_source
from vitrail.errors import DataError


@pytest.fixture
def data(tmp_path):
    return folder(tmp_path, ("ant", "bee", "cat"), splits=("train", "val"))


def test_healthy(data):
    assert open_source(data, "train").classes == open_source(data, "val").classes == ("ant", "bee", "cat")


@pytest.mark.parametrize("split", ["train", "val"])
def test_a_class_that_one_split_lacks(data, split, capsys):
    shutil.rmtree(data / "val" / "bee")
    with pytest.raises(DataError, match=r"class-mismatch.*only in train: bee"):
        open_source(data, split)
    assert main(["data", "check", str(data)]) == 3
    assert "only in train: bee" in capsys.readouterr().out
    assert open_source(data, "val", allow="class-mismatch").labels.tolist() == [0] * 3 + [2] * 3


def test_a_class_that_training_never_sees(data):
    (data / "val" / "bee").rename(data / "val" / "dog")
    with pytest.raises(DataError, match="only in train: bee; only in val: dog"):
        open_source(data, "train")


def test_a_class_without_images(data):
    shutil.rmtree(data / "train" / "bee")
    (data / "train" / "bee").mkdir()
    with pytest.raises(DataError, match=r"empty-class: 1 .*bee"):
        open_source(data, "train")
    assert open_source(data, "train", allow="empty-class").classes == ("ant", "bee", "cat")


def test_a_label_in_a_table_that_training_never_sees(data):
    (data / "t.csv").write_text("path,label,split\ntrain/ant/0.png,ant,train\nval/bee/0.png,bee,val\n")
    with pytest.raises(DataError, match="only in val: bee"):
        open_source(data / "t.csv", "train")


def test_data_and_a_checkpoint_that_disagree(data):
    classes = open_source(data, "train").classes
    require_same_classes(("ant", "bee", "cat"), classes, "the checkpoint", str(data))
    with pytest.raises(DataError, match=r"only in the checkpoint: dog; only in .*: cat") as caught:
        require_same_classes(("ant", "bee", "dog"), classes, "the checkpoint", str(data))
    assert caught.value.exit_code == 3
