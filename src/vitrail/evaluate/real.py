"""ImageNet ReaL: the validation images with every label that fits (Beyer et al. 2020).

`real.json` is a list of 50,000 lists of class numbers, in the order of the images' names
(ILSVRC2012_val_00000001, …). A guess is right when it is in its image's list; images with an
empty list are not counted. An image is found by the number in its name, so a part of the
validation set in any order can be measured; a JSON object {name: [numbers]} works for other data.
"""

from __future__ import annotations

import json
import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.source import Source
from vitrail.errors import DataError
from vitrail.evaluate.intervals import Interval, wilson
from vitrail.evaluate.metrics import member

__all__ = ["Real", "accepted_labels", "score_real"]

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")
_WNID = re.compile(r"n\d{8}")


@dataclass(frozen=True)
class Real:
    """Top-1 under sets of accepted labels; `images` have at least one, `skipped` have none."""

    top1: Interval
    images: int
    skipped: int

    def to_dict(self) -> dict[str, Any]:
        return {"top1": self.top1.to_dict(), "images": self.images, "skipped": self.skipped}


def accepted_labels(path: str | Path, source: Source) -> list[tuple[int, ...]]:
    """For every image of the source, the class numbers that are right."""
    try:
        table = json.loads(Path(path).read_text("utf-8"))
        by_name = isinstance(table, dict)
        sets = {key: tuple(map(int, value)) for key, value in (table.items() if by_name else enumerate(table))}
    except (OSError, ValueError, TypeError) as error:
        raise DataError(f"{path} holds no accepted labels ({error}).", hint="real.json of google-research/reassessed-imagenet") from None
    _check_classes(source.classes, sets, path)
    keys = [_key(source.id(i), by_name) for i in range(len(source))]
    missing = [source.id(i) for i, key in enumerate(keys) if key not in sets]
    if missing:
        raise DataError(
            f"{path} says nothing about {len(missing):,} of the {len(source):,} images of {source.name}, for example {missing[0]}.",
            hint="images are found by the number in their name, ILSVRC2012_val_00000001.JPEG",
        )
    return [sets[key] for key in keys]


def _key(name: str, by_name: bool) -> Any:
    base = posixpath.basename(name)
    if by_name:
        return posixpath.splitext(base)[0] if "." in base else base
    found = _NUMBER.search(base)
    return int(found[1]) - 1 if found else name


def _check_classes(classes: Sequence[str], sets: dict[Any, tuple[int, ...]], path: str | Path) -> None:
    """The numbers are ImageNet's, so the data's classes have to be in ImageNet's order: that of their wnids."""
    top = max((k for numbers in sets.values() for k in numbers), default=-1)
    wnids = [name for name in classes if _WNID.fullmatch(name)]
    if top >= len(classes) or (wnids and wnids != sorted(wnids)):
        raise DataError(
            f"{path} numbers {top + 1:,} classes, and the data has {len(classes):,}, or has them in another order.",
            hint="use all 1000 class folders (empty ones too: --allow empty-class), or a classes.txt of the 1000 wnids in order",
        )


def score_real(guesses: np.ndarray, index: np.ndarray, sets: Sequence[tuple[int, ...]]) -> Real:
    """First guesses of the images `index`."""
    correct, counted = member(guesses, [sets[i] for i in index.tolist()])
    images = int(counted.sum())
    return Real(wilson(int(correct.sum()), images), images, len(counted) - images)
