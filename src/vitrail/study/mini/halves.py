"""Upstream and downstream images of a small study.

Transfer needs classes that pre-training has not seen. With a second address the whole first one
is upstream and the second downstream; with one, evenly spaced classes are held back: a fifth of
them, at least four. The two halves are then written once, as tar shards, and named in every table.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.names import Names
from vitrail.data.pack import pack
from vitrail.data.source import Listing, Record, Source, list_splits, open_source
from vitrail.errors import DataError, UsageError

__all__ = ["Half", "halves", "held_back"]

FEWEST, SHARE = 4, 0.2  # downstream classes
INLINE = 12_000  # test images below which starting decode processes for every cell would cost more than they save


@dataclass(frozen=True)
class Half:
    """Where the training and the test images of one half are."""

    what: str
    train: str
    train_split: str
    test: str
    test_split: str

    def opened(self, train: bool) -> Source:
        return open_source(self.train, self.train_split) if train else open_source(self.test, self.test_split)

    @cached_property
    def workers(self) -> int | None:
        """Processes that decode its test images: 0 decodes in this one, None takes one a core."""
        return 0 if len(self.opened(train=False)) < INLINE else None


@dataclass(eq=False)
class SomeClasses(Listing):
    """Some classes of a source, numbered anew."""

    base: Any = None
    rows: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))

    def read(self, i: int) -> Record:
        return Record(self.base.read(int(self.rows[i])).data, self.label(i), self.id(i))

    def sizes(self) -> np.ndarray:
        return np.frombuffer(bytes.fromhex(self.base.fingerprint[:16]) * len(self), "<i8")


def held_back(classes: int) -> list[int]:
    """The downstream classes: evenly spaced, so that a list sorted by kind gives some of every kind."""
    count = max(FEWEST, round(SHARE * classes))
    if classes < 2 * FEWEST:
        raise DataError(f"{classes} classes are too few to hold some back for the transfer.", hint="--transfer names other images")
    return sorted({int((k + 0.5) * classes / count) for k in range(count)})


def halves(data: str, transfer: str | None, out: Path) -> tuple[Half, Half]:
    """(upstream, downstream)."""
    train, test = splits_of(data)
    if transfer is not None:
        theirs = splits_of(transfer)
        return Half(data, data, train, data, test), Half(transfer, transfer, theirs[0], transfer, theirs[1])
    classes = open_source(data, train).classes
    down = held_back(len(classes))
    up = [k for k in range(len(classes)) if k not in down]
    return tuple(_written(data, (train, test), kept, len(classes), out / name) for name, kept in (("upstream", up), ("downstream", down)))  # type: ignore[return-value]


def splits_of(where: str) -> tuple[str, str]:
    """The training split, and the one to test on; cut from the training images where there is no other."""
    have = list_splits(where)
    train = "train" if "train" in have or not have else have[0]
    test = next((name for name in ("test", "val") if name in have and name != train), None)
    return (train, test) if test else (f"{train}[:85%]", f"{train}[85%:]")


def _written(data: str, splits: tuple[str, str], kept: list[int], classes: int, folder: Path) -> Half:
    for name, split in zip(("train", "test"), splits):
        if not (folder / name / "pack.json").is_file() or not any((folder / name).glob("*.tar")):
            pack(some_classes(open_source(data, split), kept), folder / name, to="tar", progress=False)
    what = f"{len(kept)} of the {classes} classes of {data}"
    return Half(what, str(folder / "train"), "train", str(folder / "test"), "train")


def some_classes(source: Source, kept: list[int]) -> SomeClasses:
    """The images of these classes; each class has to have some."""
    if source.multilabel:
        raise UsageError(f"{source.name}: images have several labels; a small study needs one.")
    labels = np.asarray(source.labels)
    rows = np.flatnonzero(np.isin(labels, kept))
    number = np.full(len(source.classes) + 1, -1)  # the last place is for "no label"
    number[kept] = np.arange(len(kept))
    found = number[labels[rows]]
    if len(np.unique(found)) < len(kept):
        raise DataError(f"{source.name} ({source.split}): some classes have no image.", hint="vitrail data check lists them")
    names = tuple(source.classes[k] for k in kept)
    return SomeClasses(source.name, source.split, names, found, Names(source.id(int(i)) for i in rows), base=source, rows=rows)
