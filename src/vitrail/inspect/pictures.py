"""The images of a report: some of a source, spread evenly over it, read again whenever they are needed."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data import decode
from vitrail.data.header import EXTENSIONS
from vitrail.data.source import Source, list_splits, open_source
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, DecodeError, UsageError

__all__ = ["Picture", "Pictures", "open_pictures"]

PREFERRED = ("test", "val", "train")  # what is shown where a source has several splits


@dataclass(frozen=True)
class Picture:
    """One image: upright original uint8 (height, width, 3), what the model is given of it, and where that lies."""

    id: str
    label: int | tuple[int, ...]
    original: np.ndarray
    view: Tensor
    box: tuple[float, float, float, float]


@dataclass
class Pictures:
    """`index` are the chosen samples of the source; one that cannot be read is dropped from it and named in `unreadable`."""

    source: Source
    preprocess: Preprocess
    index: list[int]
    notes: list[str] = field(default_factory=list)
    unreadable: list[str] = field(default_factory=list)

    def __len__(self) -> int:
        return len(self.index)

    def read(self, place: int) -> Picture:
        record = self.source.read(self.index[place])
        original = decode.pixels(record.data, where=record.id)
        view = self.preprocess(original)
        return Picture(record.id, record.label, original, view, self.preprocess.box(*original.shape[:2]))

    def batches(self, size: int) -> Iterator[tuple[list[int], Tensor]]:
        """(places, views (B, C, H, W)), skipping what cannot be read; afterwards `index` holds only what can."""
        places: list[int] = []
        views: list[Tensor] = []
        bad: list[int] = []
        for place in range(len(self.index)):
            try:
                views.append(self.read(place).view)
                places.append(place)
            except DecodeError as error:
                bad.append(place)
                self.unreadable.append(str(error.message))
            if len(views) == size:
                yield places, torch.stack(views)
                places, views = [], []
        if views:
            yield places, torch.stack(views)
        self.index = [number for place, number in enumerate(self.index) if place not in set(bad)]

    def labels(self) -> np.ndarray | None:
        """(N) class numbers of the source; None where it has none, or several an image."""
        if self.source.multilabel:
            return None
        labels = np.asarray(self.source.labels)[self.index]
        return None if (labels < 0).any() else labels


def open_pictures(images: Any, preprocess: Preprocess, *, split: str | None = None, count: int = 128) -> Pictures:
    """images: None (shapes drawn at the model's size), an address, an image file, a list of files or arrays, or a Source."""
    notes: list[str] = []
    if images is None:
        rows, columns = preprocess.image_size
        source = open_source(f"builtin:shapes?n={max(count, 8)}&test={max(count, 8)}&size={rows}x{columns}&classes=8", "test")
        notes.append("No images were given, so coloured shapes were drawn: what heads do with them says little about photographs.")
    else:
        source = as_source(images, split)
        notes += list(source.notes)
    if count < 1:
        raise UsageError(f"count={count}: at least one image has to be looked at.")
    spread = np.linspace(0, len(source) - 1, min(count, len(source))).round().astype(int)
    return Pictures(source, preprocess, [int(number) for number in spread], notes)


def as_source(images: Any, split: str | None) -> Source:
    if isinstance(images, (str, os.PathLike)) and Path(images).suffix.lower() in EXTENSIONS and Path(images).is_file():
        images = [images]
    if isinstance(images, list) or (isinstance(images, Sequence) and not isinstance(images, (str, tuple))):
        return listed(images)
    if not isinstance(images, (str, os.PathLike)):
        return open_source(images, split)
    where = os.fspath(images)
    splits = list_splits(where)
    if split is None and splits:
        split = next((name for name in PREFERRED if name in splits), splits[0])
    try:
        return open_source(where, split, allow="all")
    except DataError:  # a folder of pictures without classes will do for looking
        return open_source(where, split, allow="all", labelled=False)


def listed(images: Sequence[Any]) -> Source:
    """Files and arrays as a source without labels."""
    if not images:
        raise UsageError("an empty list of images shows nothing.")
    held: list[Any] = []
    for image in images:
        if isinstance(image, (str, os.PathLike)):
            try:
                held.append(Path(image).read_bytes())
            except OSError as error:
                raise DataError(f"{image}: {error.strerror or error}.") from None
        else:
            held.append(image)
    source = open_source((held, np.full(len(held), -1)))
    return source
