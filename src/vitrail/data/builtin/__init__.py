"""Data that comes with Vitrail: `builtin:fashion` (packaged) and `builtin:shapes` (drawn on demand).

`fashion.npz` holds 10,000 training and 2,000 test images of Fashion-MNIST, 28x28 grey; its
licence (MIT) and how the subset was taken are in LICENSE-fashion-mnist beside it.
"""

from __future__ import annotations

from functools import cache
from importlib.resources import files
from urllib.parse import parse_qsl

import numpy as np

from vitrail.data.names import Names
from vitrail.data.source import Arrays, Listing, Options
from vitrail.errors import UsageError, nearest

__all__ = ["FASHION_CLASSES", "NAMES", "Builtin"]

NAMES = ("fashion", "shapes")
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat", "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)  # fmt: skip


class Builtin:
    """The reader of a `builtin:NAME` address."""

    tolerant = False

    def __init__(self, where: str) -> None:
        self.name = where
        self.which, _, query = where.removeprefix("builtin:").partition("?")
        if self.which not in NAMES:
            raise UsageError(f"there is no built-in data {self.which!r}{nearest(self.which, NAMES)}.")
        self.query = dict(parse_qsl(query, keep_blank_values=True))
        if self.which == "fashion" and self.query:
            raise UsageError(f"{where}: builtin:fashion takes no options.", hint="builtin:shapes does: ?n=1000&size=32")

    def splits(self) -> tuple[str, ...]:
        return ("train", "test")

    def open(self, split: str | None, options: Options) -> Listing:
        assert split is not None
        if self.which == "shapes":
            from vitrail.data.shapes import open_shapes

            return open_shapes(self.name, self.query, split)
        return _fashion(self.name, split)


def _fashion(name: str, split: str) -> Arrays:
    images, labels, rows = _load()[split]
    ids = Names(f"{split}/{row:05d}" for row in rows)
    note = "a subset of Fashion-MNIST: not comparable with results on all of it"
    return Arrays(name, split, FASHION_CLASSES, labels, ids, notes=(note,), images=images)


@cache
def _load() -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
    with files(__package__).joinpath("fashion.npz").open("rb") as file, np.load(file, allow_pickle=False) as stored:
        return {
            split: (stored[f"{split}_images"], stored[f"{split}_labels"].astype(np.int64), stored[f"{split}_rows"])
            for split in ("train", "test")
        }
