"""ImageNet's thousand classes in their order, and data sets that name their folders by them.

A folder of ImageNet's family is named by WordNet's number (n01440764: tench) or, in ImageNet-v2,
by the class's number. A model with a thousand outputs that are named otherwise, or not at all,
has them in ImageNet's order, which is that of the WordNet numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np

from vitrail.errors import DataError

__all__ = ["owner_by_number", "owner_by_wnid", "wnids"]

IN_ORDER = "the model's 1,000 outputs are taken in ImageNet's order"
LANDMARKS = {0: "tench", 1: "goldfish", 999: "toilet"}  # words in the names of these classes, whoever wrote the names


@cache
def wnids() -> tuple[str, ...]:
    return tuple((Path(__file__).parent / "imagenet.txt").read_text("utf-8").split())


def owner_by_wnid(outputs: Sequence[str], count: int, classes: Sequence[str]) -> np.ndarray | None:
    """Which class of the data each of ImageNet's outputs is; None where names do not settle it."""
    known = {name: m for m, name in enumerate(wnids())}
    if not classes or not all(name in known for name in classes) or not _is_imagenet(outputs, count):
        return None
    owner = np.full(count, -1, dtype=np.int64)
    owner[[known[name] for name in classes]] = np.arange(len(classes))
    return owner


def owner_by_number(outputs: Sequence[str], count: int, classes: Sequence[str], data: str) -> np.ndarray:
    """The same for folders "0" … "999" (ImageNet-v2), which sort as text: 0, 1, 10, 100, …"""
    if not all(name.isdecimal() and int(name) < len(wnids()) for name in classes):
        raise DataError(f"{data}: the folders of ImageNet-v2 are named 0 to 999, and here is {classes[0]!r}.")
    if not _is_imagenet(outputs, count) and tuple(outputs) != wnids():
        raise DataError(f"the model has {count} outputs, or other ones than ImageNet's 1,000.", hint="--class-map says which are which")
    owner = np.full(count, -1, dtype=np.int64)
    owner[[int(name) for name in classes]] = np.arange(len(classes))
    return owner


def _is_imagenet(outputs: Sequence[str], count: int) -> bool:
    """A thousand outputs without names, or with names that are ImageNet's in words."""
    if count != len(wnids()):
        return False
    return not outputs or all(word in outputs[m].lower() for m, word in LANDMARKS.items())
