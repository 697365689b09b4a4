"""Folders: classes, splits, and what is refused."""

import numpy as np
import pytest
from photos import folder, png

from vitrail.data.source import list_splits, open_source
from vitrail.errors import DataError, UsageError


def test_a_folder_a_class(tmp_path):
    source = open_source(folder(tmp_path, ("dog", "cat", "Ant")))
    assert source.classes == ("Ant", "cat", "dog") and source.labels.tolist() == [0] * 3 + [1] * 3 + [2] * 3
    assert source.id(4) == "cat/1.png" and source.read(4).label == 1
    assert source.read(0).data == png(6)


def test_folders_nested_below_a_class_belong_to_it(tmp_path):
    folder(tmp_path, count=1)
    (tmp_path / "cat" / "indoor" / "2020").mkdir(parents=True)
    (tmp_path / "cat" / "indoor" / "2020" / "x.JPG").write_bytes(png(9))
    source = open_source(tmp_path)
    assert source.classes == ("cat", "dog") and source.labels.tolist() == [0, 0, 1]
    assert list(source.ids) == ["cat/0.png", "cat/indoor/2020/x.JPG", "dog/0.png"]


@pytest.mark.parametrize("spelled", ["val", "valid", "validation", "Validation", "dev"])
def test_splits_go_by_their_usual_names(tmp_path, spelled):
    folder(tmp_path, splits=("train", spelled))
    assert list_splits(tmp_path) == ("train", "val")
    assert len(open_source(tmp_path, "val")) == len(open_source(tmp_path, "validation")) == 6
    assert open_source(tmp_path, "train").id(0) == "train/cat/0.png"
    with pytest.raises(UsageError, match="has the splits train, val"):
        open_source(tmp_path)
    with pytest.raises(DataError, match="no split 'test', only train, val"):
        open_source(tmp_path, "test")


def test_a_class_called_train_beside_other_vehicles_is_a_class(tmp_path):
    source = open_source(folder(tmp_path, ("bus", "car", "train")))
    assert source.classes == ("bus", "car", "train") and list_splits(tmp_path) == ()


def test_a_test_split_without_classes_has_no_labels(tmp_path):
    folder(tmp_path, splits=("train",))
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "1.png").write_bytes(png(50))
    source = open_source(tmp_path, "test")
    assert source.labels.tolist() == [-1] and "no sample has a label" in source.notes


def test_a_flat_folder_opens_without_labels_only(tmp_path):
    for i in range(3):
        (tmp_path / f"{i}.png").write_bytes(png(i))
    with pytest.raises(DataError, match="3 images, but no sub-folder"):
        open_source(tmp_path)
    source = open_source(tmp_path, labelled=False)
    assert len(source) == 3 and source.classes == () and source.labels.tolist() == [-1] * 3


def test_a_list_of_files_keeps_its_order(tmp_path):
    folder(tmp_path)
    paths = [tmp_path / "dog" / "1.png", tmp_path / "cat" / "2.png"]
    source = open_source(paths)
    assert [source.read(i).data for i in range(2)] == [path.read_bytes() for path in paths]
    with pytest.raises(DataError, match=r"no such file: nowhere\.png"):
        open_source(["nowhere.png", *paths])


def test_what_is_no_image_hidden_or_of_the_system_is_passed_over(tmp_path):
    folder(tmp_path, count=1)
    for name in ("Thumbs.db", ".hidden.png", "notes.txt", "._0.png"):
        (tmp_path / "cat" / name).write_bytes(b"x")
    (tmp_path / ".git").mkdir()
    (tmp_path / "__MACOSX").mkdir()
    source = open_source(tmp_path)
    assert len(source) == 2 and source.classes == ("cat", "dog") and source.problems == ()


def test_one_picture_beside_the_classes_is_reported_and_many_are_refused(tmp_path):
    folder(tmp_path)
    (tmp_path / "overview.png").write_bytes(png(90))
    source = open_source(tmp_path)
    assert len(source) == 6 and [p.kind for p in source.problems] == ["extra-file"]
    for i in range(4):
        (tmp_path / f"{i}.png").write_bytes(png(i))
    with pytest.raises(DataError, match="missing-label: 5"):
        open_source(tmp_path)


def test_errors_say_what_to_do(tmp_path):
    folder(tmp_path / "photos")
    with pytest.raises(DataError, match="did you mean 'photos'"):
        open_source(tmp_path / "photo")
    with pytest.raises(DataError, match="is one image, not a data set"):
        open_source(tmp_path / "photos" / "cat" / "0.png")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="no images found"):
        open_source(tmp_path / "empty")


def test_classes_can_be_fixed_by_the_caller(tmp_path):
    folder(tmp_path, ("a", "b"), count=1)
    source = open_source(tmp_path, classes=["b", "z", "a"], allow="empty-class")
    assert source.classes == ("b", "z", "a") and source.labels.tolist() == [2, 0]
    with pytest.raises(DataError, match="unknown-class: 1"):
        open_source(tmp_path, classes=["a"])


def test_a_list_of_names_beside_the_folders_fixes_their_order(tmp_path):
    folder(tmp_path, ("a", "b"), count=1)
    (tmp_path / "classes.txt").write_text("b\na\n")
    assert open_source(tmp_path).classes == ("b", "a") and open_source(tmp_path).labels.tolist() == [1, 0]
    (tmp_path / "classes.txt").write_text("1 001.a\n2 002.b\n")  # of another kind
    assert open_source(tmp_path).classes == ("a", "b")


def test_the_fingerprint_follows_content_not_the_place(tmp_path):
    one, two = folder(tmp_path / "one"), folder(tmp_path / "two")
    assert open_source(one).fingerprint == open_source(two).fingerprint
    (two / "cat" / "0.png").write_bytes(png(77) + b"tail")
    assert open_source(one).fingerprint != open_source(two).fingerprint


def test_thousands_of_files_are_listed_at_once(tmp_path):
    import time

    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        for i in range(2000):
            (tmp_path / name / f"{i}.png").touch()
    start = time.perf_counter()
    source = open_source(tmp_path)
    assert len(source) == 4000 and time.perf_counter() - start < 2
    assert np.all(np.diff(source.labels) >= 0)
