"""`knn`: accuracy of the nearest neighbours in frozen features, weighted as DINO weighs them.

Features are scaled to length 1; each of the k most alike training images votes for its class
with the weight exp(cosine / temperature). Many k cost one search.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.features import Features, Frozen, exact_device
from vitrail.evaluate.intervals import Interval, wilson
from vitrail.evaluate.spent import Spent

__all__ = ["Neighbours", "knn", "votes"]

BLOCK, CHUNK = 1024, 65536  # test rows, training rows compared at a time


@dataclass(frozen=True)
class Neighbours:
    """Top-1 for every k."""

    model: str
    data: str
    train_images: int
    test_images: int
    unreadable: int  # of both splits
    temperature: float
    top1: dict[int, Interval]
    notes: tuple[str, ...] = ()
    spent: Spent | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "data": self.data,
            "train_images": self.train_images,
            "test_images": self.test_images,
            "unreadable": self.unreadable,
            "temperature": self.temperature,
            "top1": {str(k): value.to_dict() for k, value in self.top1.items()},
            "cost": self.spent.to_dict() if self.spent else None,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        bad = f"; {self.unreadable} more could not be read" if self.unreadable else ""
        lines = [f"nearest neighbours of {self.model} on {self.data}"]
        lines.append(f"{self.test_images:,} test images among {self.train_images:,} training images{bad}")
        lines += [f"k = {k:<5d} {value.percent()}" for k, value in self.top1.items()]
        lines += [f"cost      {self.spent}"] if self.spent else []
        return "\n".join([*lines, *(f"note      {note}" for note in self.notes)])


def knn(
    model: str | nn.Module | None = None,
    data: Any = None,
    *,
    k: Sequence[int] = (10, 20, 100, 200),
    temperature: float = 0.07,
    train_split: str | None = None,
    test_split: str | None = None,
    train: Features | None = None,
    test: Features | None = None,
    view: str | Preprocess = "eval",
    device: str | None = None,
    allow: Collection[str] = (),
    **options: Any,
) -> Neighbours:
    """k-NN accuracy of a model on a data set, or of features that are there already (`train`, `test`)."""
    if not k or min(k) < 1 or temperature <= 0:
        raise UsageError("k-NN needs at least one k (1 or more) and a temperature above 0.")
    name, frozen = "features", None
    if train is None or test is None:
        if model is None or data is None:
            raise UsageError("k-NN needs a model and data, or the features of both splits.")
        frozen = Frozen.of(model, data, view=view, device=device, allow=allow, **options)
        name = frozen.name
        train = frozen.features(frozen.source(train_split, "train"))
        test = frozen.features(frozen.source(test_split, "test"))
    bad = len(train.unreadable) + len(test.unreadable)
    train, test = train.labelled(), test.labelled()
    if train.classes != test.classes:
        raise DataError(f"the training split has {len(train.classes)} classes and the test split {len(test.classes)}, or other names.")
    if not len(train) or not len(test):
        raise DataError(f"{train.source}: no labelled image can be read.")
    counts = sorted({min(one, len(train)) for one in k})
    place = exact_device(device)
    hits = dict.fromkeys(counts, 0)
    for at in range(0, len(test), BLOCK):
        likeness, labels = nearest_rows(_unit(test.features[at : at + BLOCK], place), train, counts[-1], place)
        truth = torch.from_numpy(test.labels[at : at + BLOCK]).to(place)
        for count in counts:
            said = votes(likeness[:, :count], labels[:, :count], len(train.classes) or int(train.labels.max()) + 1, temperature)
            hits[count] += int((said == truth).sum())
    found = {count: wilson(hits[count], len(test)) for count in counts}
    notes = tuple(dict.fromkeys((*train.notes, *test.notes)))
    return Neighbours(name, train.source, len(train), len(test), bad, temperature, found, notes, frozen.spent() if frozen else None)


def _unit(rows: np.ndarray, place: torch.device) -> Tensor:
    return F.normalize(torch.from_numpy(np.array(rows)).to(place), dim=1)


def nearest_rows(queries: Tensor, train: Features, k: int, place: torch.device) -> tuple[Tensor, Tensor]:
    """(cosines, labels) of the k most alike training rows, best first."""
    best = torch.empty(len(queries), 0, device=place)
    labels = torch.empty(len(queries), 0, dtype=torch.int64, device=place)
    for at in range(0, len(train), CHUNK):
        alike = queries @ _unit(train.features[at : at + CHUNK], place).T
        here = torch.from_numpy(train.labels[at : at + CHUNK]).to(place).expand(len(queries), -1)
        best, labels = torch.cat([best, alike], 1), torch.cat([labels, here], 1)
        best, order = best.topk(min(k, best.shape[1]), dim=1)
        labels = labels.gather(1, order)
    return best, labels


def votes(likeness: Tensor, labels: Tensor, classes: int, temperature: float) -> Tensor:
    """The class with the largest sum of exp(cosine / temperature)."""
    weights = (likeness.double() / temperature).exp()
    return torch.zeros(len(likeness), classes, dtype=torch.float64, device=likeness.device).scatter_add_(1, labels, weights).argmax(1)
