"""ImageNet's order, and folders named by it."""

import pytest

from vitrail.errors import DataError
from vitrail.evaluate.imagenet import owner_by_number, owner_by_wnid, wnids


def test_the_thousand_are_in_their_order():
    table = wnids()
    assert len(table) == len(set(table)) == 1000 and list(table) == sorted(table)
    # tench, goldfish, English springer (217), church (497), French horn (566), toilet tissue (999)
    assert [table[k] for k in (0, 1, 217, 497, 566, 999)] == ["n01440764", "n01443537", "n02102040", "n03028079", "n03394916", "n15075141"]


def test_outputs_without_names_or_with_words_are_in_imagenets_order():
    words = tuple(f"word {k}" for k in range(1000))
    named = tuple({0: "tench, Tinca tinca", 1: "Goldfish", 999: "toilet tissue"}.get(k, words[k]) for k in range(1000))
    classes = ("n02102040", "n01440764")  # as the data lists them
    for outputs in ((), named):
        owner = owner_by_wnid(outputs, 1000, classes)
        assert owner[217] == 0 and owner[0] == 1 and (owner >= 0).sum() == 2
    assert owner_by_wnid(words, 1000, classes) is None  # a thousand other classes
    assert owner_by_wnid((), 21843, classes) is None
    assert owner_by_wnid((), 1000, ("n02102040", "cat")) is None


def test_numbered_folders_are_numbers_although_they_sort_as_text():
    classes = sorted(map(str, range(1000)))
    owner = owner_by_number((), 1000, classes, "v2")
    assert classes[2] == "10" and owner[10] == 2 and all(int(classes[owner[m]]) == m for m in range(1000))
    with pytest.raises(DataError, match="0 to 999"):
        owner_by_number((), 1000, ["n01440764"], "v2")
    with pytest.raises(DataError, match="10 outputs"):
        owner_by_number((), 10, ["0"], "v2")
