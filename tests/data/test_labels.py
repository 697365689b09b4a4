"""Labels as they are written -> numbers."""

import numpy as np
import pytest

from vitrail.data.labels import compact, number, read_value, resolve, together
from vitrail.data.problem import Problems


@pytest.mark.parametrize(
    ("raw", "value"),
    [
        ("cat", "cat"),
        (" cat ", "cat"),
        ("7", 7),
        ("007", "007"),
        ("-1", None),
        ("-", "-"),
        (-1, None),
        ("", None),
        (None, None),
        (float("nan"), None),
        (3.0, 3),
        (np.int64(4), 4),
        (True, "true"),
        (["a", "", 3], ("a", 3)),
        ("cafe\u0301", "caf\u00e9"),
    ],
)
def test_one_value(raw, value):
    assert read_value(raw) == value


def test_several_values_in_one_cell():
    assert read_value("a|b; c", True) == ("a", "b; c")
    assert read_value("a;b", True) == ("a", "b")
    assert read_value("", True) == ()


def test_the_training_split_decides_which_classes_there_are():
    problems = Problems()
    assert resolve({"train": ["b", "a"], "val": ["a"]}, "val", None, problems) == ("a", "b") and problems.found() == ()
    assert resolve({"train": ["b"], "val": ["z"]}, "train", None, problems) == ("b",)
    assert [p.kind for p in problems.found()] == ["class-mismatch"]
    assert resolve({"train": np.array([0, 4])}, "train", None, problems) == ("0", "1", "2", "3", "4")


def test_arrays_and_lists_give_the_same_labels():
    values = [2, 0, None, 1, 9]
    names = ["zero", "one", "two"]
    for given in (values, compact(values)):
        problems = Problems()
        labels, keep, several = number(given, names, list("abcde"), problems, places=True)
        assert labels.tolist() == [2, 0, 1] and keep.tolist() == [0, 1, 3] and not several
        assert {p.kind: p.examples for p in problems.found()} == {"missing-label": ("c",), "unknown-class": ("e (9)",)}
    assert isinstance(compact(values), np.ndarray) and isinstance(compact(["x", 1]), list)
    assert together([np.array([1]), ["x"]]) == [1, "x"]
