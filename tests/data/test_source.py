"""Arrays, and what every source has in common."""

import numpy as np
import pytest
import torch
from photos import folder, png

from vitrail.data.classes import require_same_classes
from vitrail.data.source import Source, open_source
from vitrail.errors import DataError, UsageError


def test_arrays_of_numpy_torch_lists_and_encoded_files():
    images = np.random.default_rng(0).integers(0, 256, (5, 6, 7, 3), dtype=np.uint8)
    for given in (images, torch.from_numpy(images), list(images)):
        source = open_source((given, torch.tensor([0, 1, 2, 1, 0])))
        assert isinstance(source, Source) and source.classes == ("0", "1", "2")
        assert np.array_equal(source.read(3).data, images[3]) and source.read(3).label == 1
    source = open_source(([png(0), png(1)], [1, 0]), classes=["a", "b"])
    assert source.read(1).data == png(1) and source.classes == ("a", "b")


def test_several_labels_and_none():
    images = np.zeros((3, 4, 4), np.uint8)
    assert open_source((images, [(0, 2), [], [1, 1]])).labels == [(0, 2), (), (1,)]
    assert open_source((images, None)).labels.tolist() == [-1] * 3


@pytest.mark.parametrize(
    ("images", "labels", "words"),
    [
        (np.zeros((2, 4, 4, 3), np.float32), [0, 1], "uint8"),
        (np.zeros((2, 3, 8, 8), np.uint8), [0, 1], "shape"),
        (np.zeros((2, 4, 4), np.uint8), [0], "2 images but 1 labels"),
        (np.zeros((2, 4, 4), np.uint8), [0, -2], "negative"),
        (np.zeros((2, 4, 4), np.uint8), [0.5, 1.0], "labels of type"),
    ],
)
def test_arrays_that_cannot_be_meant_are_refused(images, labels, words):
    with pytest.raises(DataError, match=words):
        open_source((images, labels))


def test_an_edited_array_has_another_fingerprint():
    images = np.zeros((3, 4, 4), np.uint8)
    before = open_source((images, [0, 1, 0])).fingerprint
    assert before == open_source((images.copy(), [0, 1, 0])).fingerprint
    images[1, 0, 0] = 1
    assert before != open_source((images, [0, 1, 0])).fingerprint != open_source((images, [0, 1, 1])).fingerprint


def test_a_source_opens_again_as_itself(tmp_path):
    source = open_source(folder(tmp_path))
    assert open_source(source) is source and len(open_source(source, "[:2]")) == 2


def test_unknown_kinds_and_options_are_named(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'missing-file'"):
        open_source(tmp_path, allow="missing-files")
    with pytest.raises(UsageError, match="unknown option 'lable'"):
        open_source(f"{tmp_path}?lable=x")
    with pytest.raises(UsageError, match="needs its labels"):
        open_source(np.zeros((2, 4, 4), np.uint8))


def test_what_is_allowed_can_stand_in_the_address(tmp_path):
    folder(tmp_path / "data", count=1)
    (tmp_path / "data" / "empty").mkdir()
    folder(tmp_path / "outside", ("x",), count=1)
    (tmp_path / "data" / "cat" / "x").symlink_to(tmp_path / "outside" / "x")
    with pytest.raises(DataError) as caught:
        open_source(tmp_path / "data")
    assert "?allow=empty-class&follow-links=yes" in caught.value.hint
    source = open_source(f"{tmp_path / 'data'}?allow=empty-class&follow-links=yes")
    assert len(source) == 3 and source.classes == ("cat", "dog", "empty")
    with pytest.raises(UsageError, match="did you mean 'empty-class'"):
        open_source(f"{tmp_path / 'data'}?allow=emptyclass")


def test_a_question_mark_can_be_part_of_a_pattern(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow as pa

    for k in range(2):
        pq.write_table(pa.table({"image": pa.array([png(k)], pa.binary()), "label": [0]}), tmp_path / f"part{k}.parquet")
    assert len(open_source(f"{tmp_path}/part?.parquet")) == 2
    assert len(open_source(f"{tmp_path}/part?.parquet?label=label")) == 2


def test_two_lists_of_classes_that_differ_are_refused_with_the_difference():
    require_same_classes(("a", "b"), ("a", "b"), "the checkpoint", "the data")
    with pytest.raises(DataError, match="only in the checkpoint: b; only in the data: c"):
        require_same_classes(("a", "b"), ("a", "c"), "the checkpoint", "the data")
    with pytest.raises(DataError, match="another order"):
        require_same_classes(("a", "b"), ("b", "a"), "the checkpoint", "the data")
