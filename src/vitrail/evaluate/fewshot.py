"""`fewshot`: the paper's few-shot linear accuracy, in closed form on frozen features.

    result = vitrail.fewshot("B16.npz", "photos/", shots=(5,), seeds=(0, 1, 2))
    print(result)

A few images a class, drawn as big_vision draws them, features of the layer that the head
reads, regularised least squares to {-1, 1}^K (`leastsquares`), accuracy on the whole test
split. Only images that some seed draws are looked at, and every regulariser after the first
costs one product. Images are squashed to 8/7 of the size and cropped (view="paper").
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.features import Features, Frozen, exact_device, hits_of
from vitrail.evaluate.intervals import Interval, over_seeds, wilson
from vitrail.evaluate.leastsquares import LeastSquares, choose_shots
from vitrail.evaluate.spent import Spent

__all__ = ["FewShot", "FewShotRun", "fewshot"]

SHOTS = (1, 5, 10, 25)
PAPER_L2 = 1024.0


@dataclass(frozen=True, eq=False)
class FewShotRun:
    """One draw of the training images, one regulariser."""

    shots: int
    seed: int
    l2: float
    train_images: int
    accuracy: Interval  # over the test images
    predictions: np.ndarray | None = field(default=None, repr=False)

    def to_dict(self) -> dict[str, Any]:
        told = {"shots": self.shots, "seed": self.seed, "l2": self.l2, "train_images": self.train_images}
        return {**told, "accuracy": self.accuracy.to_dict()}


@dataclass(frozen=True, eq=False)
class FewShot:
    """Every run, and its mean over the seeds."""

    model: str
    data: str
    classes: int
    test_images: int
    unreadable: int
    runs: tuple[FewShotRun, ...]
    notes: tuple[str, ...] = ()
    spent: Spent | None = None

    def mean(self, shots: int, l2: float = PAPER_L2) -> Interval:
        """Mean accuracy over the seeds, with Student's interval."""
        values = [run.accuracy.value for run in self.runs if run.shots == shots and run.l2 == l2]
        if not values:
            raise UsageError(f"no run has {shots} shots and l2 {l2:g}.")
        return over_seeds(values)

    def settings(self) -> list[tuple[int, float]]:
        return list(dict.fromkeys((run.shots, run.l2) for run in self.runs))

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "data": self.data,
            "classes": self.classes,
            "test_images": self.test_images,
            "unreadable": self.unreadable,
            "mean": [{"shots": s, "l2": l2, **self.mean(s, l2).to_dict()} for s, l2 in self.settings()],
            "runs": [run.to_dict() for run in self.runs],
            "cost": self.spent.to_dict() if self.spent else None,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        bad = f" ({self.unreadable} more could not be read)" if self.unreadable else ""
        lines = [f"few-shot accuracy of {self.model} on {self.data}, closed-form least squares"]
        lines.append(f"measured on {self.test_images:,} images{bad} of {self.classes} classes")
        for shots, l2 in self.settings():
            seeds = sum(run.shots == shots and run.l2 == l2 for run in self.runs)
            lines.append(f"{shots:3d}-shot  l2 {l2:<8g} {self.mean(shots, l2).percent()}  mean of {seeds} seed{'s' if seeds > 1 else ''}")
        lines += [f"cost      {self.spent}"] if self.spent else []
        return "\n".join([*lines, *(f"note      {note}" for note in self.notes)])


def fewshot(
    model: str | nn.Module | None = None,
    data: Any = None,
    *,
    shots: Sequence[int] = SHOTS,
    seeds: Sequence[int] = (0, 1, 2),
    l2: Sequence[float] = (PAPER_L2,),
    train_split: str | None = None,
    test_split: str | None = None,
    train: Features | None = None,
    test: Features | None = None,
    view: str | Preprocess = "paper",
    keep_predictions: bool = False,
    device: str | None = None,
    allow: Collection[str] = (),
    **options: Any,
) -> FewShot:
    """Few-shot accuracy of a model on a data set, or of features that are there already (`train`, `test`).

    options: image_size, and those of `extract_features` (batch_size, precision, workers, cache).
    """
    if not shots or min(shots) < 1 or not seeds or not l2 or min(l2) <= 0:
        raise UsageError("few-shot needs at least one number of shots (1 or more), one seed and one l2 above 0.")
    name, where, frozen = "features", train.source if train else "", None
    if train is None or test is None:
        if model is None or data is None:
            raise UsageError("few-shot needs a model and data, or the features of both splits.")
        frozen = Frozen.of(model, data, view=view, device=device, allow=allow, **options)
        name, source = frozen.name, frozen.source(train_split, "train")
        where, labels = source.name, _one_label(source)
        drawn = [choose_shots(labels, len(source.classes), max(shots), seed) for seed in seeds]
        test = frozen.features(frozen.source(test_split, "test")).labelled()
        train = frozen.features(source, np.unique(np.concatenate(drawn)))
        train = _as_whole(train, labels)
    place = exact_device(device)
    test = test.labelled()
    found = _measure(name, where, train, test, sorted(set(shots)), list(seeds), list(l2), place, keep_predictions)
    return replace(found, spent=frozen.spent()) if frozen else found


def _one_label(source: Any) -> np.ndarray:
    if source.multilabel:
        raise DataError(f"{source.name}: images have several labels; few-shot accuracy needs one.")
    return np.asarray(source.labels, np.int64)


@dataclass(frozen=True, eq=False)
class _Whole(Features):
    """Features of some images of a source, with the labels of all: draws are made among all of them."""

    every_label: np.ndarray = field(default_factory=lambda: np.zeros(0, np.int64))


def _as_whole(some: Features, labels: np.ndarray) -> _Whole:
    return _Whole(
        some.features, some.labels, some.index, some.classes, some.source, some.split, some.notes, some.unreadable, every_label=labels
    )  # fmt: skip


def _measure(
    name: str, where: str, train: Features, test: Features, shots: Sequence[int], seeds: Sequence[int], l2: Sequence[float],
    place: torch.device, keep: bool,
) -> FewShot:  # fmt: skip
    if train.classes and test.classes and train.classes != test.classes:
        raise DataError(f"the training split has {len(train.classes)} classes and the test split {len(test.classes)}, or other names.")
    classes = len(train.classes) or int(max(train.labels.max(), test.labels.max())) + 1
    labels = train.every_label if isinstance(train, _Whole) else train.labels
    row_of = np.full(len(labels), -1)
    row_of[train.index if isinstance(train, _Whole) else np.arange(len(train))] = np.arange(len(train))
    runs, lost, notes = [], 0, list(dict.fromkeys((*train.notes, *test.notes)))
    for count in shots:
        if (np.bincount(labels[labels >= 0], minlength=classes) < count).any():
            notes.append(f"some classes have fewer than {count} training images and give all they have")
        for seed in seeds:
            chosen = row_of[choose_shots(labels, classes, count, seed)]
            lost += int((chosen < 0).sum())
            chosen = chosen[chosen >= 0]
            runs += _solve(train.rows(chosen), test, classes, count, seed, l2, place, keep)
    if lost:
        notes.append(f"{lost} drawn training images could not be read and are left out")
    return FewShot(name, where, classes, len(test), len(test.unreadable), tuple(runs), tuple(notes))


def _solve(
    drawn: Features, test: Features, classes: int, count: int, seed: int, l2: Sequence[float], place: torch.device, keep: bool
) -> list[FewShotRun]:
    x, y = torch.from_numpy(np.array(drawn.features)).to(place), torch.from_numpy(drawn.labels).to(place)
    problem = LeastSquares.fit(x, y, classes)
    runs = []
    for strength in l2:
        answers = [(said, true) for said, true in hits_of(lambda rows, s=strength: problem.scores(rows, s).argmax(1), test, place)]  # type: ignore[misc]
        right = int(sum((said == true).sum() for said, true in answers))
        kept = torch.cat([said for said, _ in answers]).cpu().numpy() if keep else None
        runs.append(FewShotRun(count, seed, float(strength), len(drawn), wilson(right, len(test)), kept))
    return runs
