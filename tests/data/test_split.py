"""Split expressions: parts that share nothing, miss nothing, keep every class, and nest."""

import itertools

import numpy as np
import pytest
from photos import folder

from vitrail.data.source import open_source
from vitrail.data.split import by_role, listed, nested, parse, shard_splits, shuffled
from vitrail.errors import DataError, UsageError


@pytest.fixture(scope="module")
def sorted_by_class():
    """1,000 samples, 10 classes, one after another, as a folder lists them."""
    return [np.zeros((1, 1), np.uint8)] * 1000, np.repeat(np.arange(10), 100)


def indices(source):
    return source.indices.tolist()


def test_two_parts_that_meet_share_nothing_and_miss_nothing(sorted_by_class):
    a, b = open_source(sorted_by_class, "train[:98%]"), open_source(sorted_by_class, "train[98%:]")
    assert len(a) == 980 and len(b) == 20
    assert sorted(indices(a) + indices(b)) == list(range(1000))


def test_a_small_part_of_a_class_sorted_set_holds_every_class(sorted_by_class):
    part = open_source(sorted_by_class, "[:20]")
    assert np.bincount(part.labels, minlength=10).min() >= 1
    assert np.bincount(part.labels, minlength=10).max() <= 3


def test_subsets_for_data_size_studies_are_nested(sorted_by_class):
    whole = open_source(sorted_by_class)
    parts = nested(whole, [1, 3, 10, 30, 100], seed=5)
    assert [len(part) for part in parts] == [10, 30, 100, 300, 1000]
    for small, large in itertools.pairwise(parts):
        assert set(indices(small)) < set(indices(large))


def test_the_seed_chooses_and_nothing_else_does(sorted_by_class):
    first = open_source(sorted_by_class, "[:10%]")
    assert indices(first) == indices(open_source(sorted_by_class, "[:10%]"))
    assert indices(first) != indices(open_source(sorted_by_class, "[:10%]", split_seed=1))
    assert first.fingerprint == open_source(sorted_by_class, "[:10%]").fingerprint


def test_counts_negatives_sums_and_parts_of_parts(sorted_by_class):
    assert len(open_source(sorted_by_class, "[:1_000]")) == 1000
    assert len(open_source(sorted_by_class, "[-50:]")) == 50
    assert len(open_source(sorted_by_class, "[:-50]")) == 950
    assert len(open_source(sorted_by_class, "[:10%]+[90%:]")) == 200
    assert len(open_source(sorted_by_class, "[90%:][:20]")) == 20
    assert set(indices(open_source(sorted_by_class, "[90%:][:20]"))) < set(indices(open_source(sorted_by_class, "[90%:]")))


def test_the_official_order_is_taken_as_it_is(sorted_by_class):
    part = open_source(sorted_by_class, "[:150]", order="official")
    assert indices(part) == list(range(150)) and part.official and part.notes == ()
    assert "not the official split" in open_source(sorted_by_class, "[:150]").notes[0]


def test_an_official_list_of_ids_is_taken_in_its_own_order(tmp_path):
    for split in ("train", "val"):
        folder(tmp_path, (f"{split}cat", f"{split}dog"))
    source = open_source(tmp_path, classes=["traincat", "traindog", "valcat", "valdog"])
    part = listed(source, ["valdog/1.png", "traincat/2.png"], "authors")
    assert part.official and [part.id(i) for i in range(2)] == ["valdog/1.png", "traincat/2.png"]
    with pytest.raises(DataError, match="does not hold 1 of the 2"):
        listed(source, ["valdog/1.png", "nowhere/9.png"])
    with pytest.raises(DataError, match="has several 1 of the 1"):
        listed(source, ["1"])


def test_sums_of_splits(tmp_path):
    folder(tmp_path, splits=("train", "val"))
    both = open_source(tmp_path, "train+val")
    assert len(both) == 12 and both.read(11).id == "val/dog/2.png"
    assert len(open_source(tmp_path, "train[:4]+val[:50%]")) == 7


@pytest.mark.parametrize("text", ["train[", "[:2.5]", "[:101%]", "train[:5000]", "[a:b]", "[0:0]", "[:600]+[:600]", "train++val"])
def test_what_makes_no_sense_is_refused(sorted_by_class, text):
    with pytest.raises(UsageError):
        open_source(sorted_by_class, text)


def test_parse():
    assert [(t.name, t.parts) for t in parse("train[:80%][5:] + val")] == [("train", (("", "80%"), ("5", ""))), ("val", ())]


def test_shuffled_is_a_permutation_in_which_every_stretch_is_balanced():
    labels = np.repeat(np.arange(4), [10, 200, 1000, 90])
    order = shuffled(labels, 3)
    assert sorted(order.tolist()) == list(range(1300))
    for start in range(0, 1300, 130):
        counts = np.bincount(labels[order[start : start + 130]], minlength=4)
        assert np.abs(counts - np.array([1, 20, 100, 9])).max() <= 1


def test_names_of_files_and_folders_tell_their_split():
    assert shard_splits(["d/train-00000-of-00002.parquet", "d/validation-00000-of-00001.parquet"]) == {
        "train": ["d/train-00000-of-00002.parquet"],
        "val": ["d/validation-00000-of-00001.parquet"],
    }
    assert list(shard_splits(["a/test/0000.parquet", "a/train/0000.parquet"])) == ["train", "test"]
    assert shard_splits(["x/train/0.tar", "x/train/1.tar"]) == {}  # the address, not the names, says train
    assert shard_splits(["part-1.parquet", "part-2.parquet"]) == {}
    assert list(by_role({"validation": "val", "dev": "val", "train": "train"})) == ["train", "dev", "validation"]
