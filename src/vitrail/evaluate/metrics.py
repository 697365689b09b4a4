"""What a classifier got right, as sums that add up over shards.

`Counts` holds integers and float64 sums only, so `Counts.of(a) + Counts.of(b)` is
`Counts.of(a and b together)`: any split over parts, ranks or days gives one answer.
Rows of `confusion` are true classes, columns predicted ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

__all__ = ["Counts", "average_precision", "mean_average_precision", "member"]

BINS = 15  # calibration bins of equal width, (low, high]
MOST_CLASSES = 4096  # beyond it no (K, K) table is kept (ImageNet-21k: 3.8 GB)


@dataclass(frozen=True, eq=False)
class Counts:
    """With several labels an image a guess is right when it is one of them, and there is no confusion table."""

    images: int
    top1: int
    top5: int
    depth: int  # how many guesses "top5" really means: min(5, classes)
    nll: float  # sum of -log p(true class), in nats
    support: np.ndarray  # (K,) int64: images (labels) of each class
    guessed: np.ndarray  # (K,) int64: first guesses of each class
    right: np.ndarray  # (K,) int64: first guesses that were right
    confusion: np.ndarray | None  # (K, K) int64; a guess outside the classes (-1) is in no column
    bins: np.ndarray  # (BINS, 3) float64: images, sum of confidence, sum of correct

    @classmethod
    def of(cls, labels: np.ndarray, guesses: np.ndarray, confidence: np.ndarray, nll: np.ndarray, classes: int) -> Counts:
        """Of rows: true class (N,) or multi-hot (N, K), guesses best first (N, depth), probability of the first, loss."""
        single = labels.ndim == 1
        hit = guesses == labels[:, None] if single else np.take_along_axis(labels > 0, guesses, axis=1)
        first, known = guesses[:, 0], guesses[:, 0] >= 0
        confusion = None
        if single and classes <= MOST_CLASSES:
            cells = (labels * classes + first)[known]
            confusion = np.bincount(cells, minlength=classes * classes).reshape(classes, classes)
        place = cls.bin_of(confidence)
        weights = (np.ones(len(labels)), confidence.astype(np.float64), hit[:, 0].astype(np.float64))
        bins = np.stack([np.bincount(place, weights=w, minlength=BINS) for w in weights], axis=1)
        return cls(
            images=len(labels),
            top1=int(hit[:, 0].sum()),
            top5=int(hit.any(axis=1).sum()),
            depth=guesses.shape[1],
            nll=float(nll.astype(np.float64).sum()),
            support=np.bincount(labels, minlength=classes) if single else (labels > 0).sum(axis=0),
            guessed=np.bincount(first[known], minlength=classes),
            right=np.bincount(first[hit[:, 0]], minlength=classes),
            confusion=confusion,
            bins=bins,
        )

    @staticmethod
    def bin_of(confidence: np.ndarray) -> np.ndarray:
        """The calibration bin of each answer."""
        found: np.ndarray = np.clip(np.ceil(confidence.astype(np.float64) * BINS).astype(np.int64) - 1, 0, BINS - 1)
        return found

    def __add__(self, other: Counts) -> Counts:
        assert self.depth == other.depth and self.support.shape == other.support.shape
        both = self.confusion is not None and other.confusion is not None
        return Counts(
            self.images + other.images,
            self.top1 + other.top1,
            self.top5 + other.top5,
            self.depth,
            self.nll + other.nll,
            self.support + other.support,
            self.guessed + other.guessed,
            self.right + other.right,
            self.confusion + other.confusion if both else None,  # type: ignore[operator]
            self.bins + other.bins,
        )

    @property
    def accuracy(self) -> float:
        return self.top1 / self.images if self.images else float("nan")

    @property
    def per_class(self) -> list[dict[str, float | int | None]]:
        """Per class: images, recall (the class's accuracy), precision, F1; None where 0/0."""
        return [
            {
                "images": int(t),
                "recall": float(r / t) if t else None,
                "precision": float(r / g) if g else None,
                "f1": float(2 * r / (t + g)) if t + g else None,
            }
            for r, t, g in zip(self.right, self.support, self.guessed)
        ]

    @property
    def mean_per_class(self) -> float:
        """Mean recall over the classes that have images (balanced accuracy)."""
        some = self.support > 0
        return float(np.mean(self.right[some] / self.support[some])) if some.any() else float("nan")

    def to_dict(self) -> dict[str, float | int]:
        """The figures a training log wants; `images` is the denominator of every share."""
        n = max(1, self.images)
        return {
            "images": self.images,
            "top1": self.top1 / n,
            f"top{self.depth}": self.top5 / n,
            "loss": self.nll / n,
            "mean_per_class": self.mean_per_class,
            "ece": self.ece,
        }

    @property
    def ece(self) -> float:
        """Expected calibration error: |accuracy - confidence| a bin, weighted by the bin's images."""
        return float(np.abs(self.bins[:, 2] - self.bins[:, 1]).sum() / self.images) if self.images else float("nan")

    @property
    def worst_bin(self) -> float:
        """Maximum calibration error over the bins that have images."""
        filled = self.bins[self.bins[:, 0] > 0]
        return float(np.max(np.abs(filled[:, 2] - filled[:, 1]) / filled[:, 0])) if len(filled) else float("nan")

    def confused(self, most: int = 5) -> list[tuple[int, int, int]]:
        """(true, predicted, images) of the commonest mistakes."""
        if self.confusion is None:
            return []
        off = self.confusion.copy()
        np.fill_diagonal(off, 0)
        best = np.argsort(-off, axis=None, kind="stable")[:most]
        rows, columns = np.unravel_index(best, off.shape)
        return [(int(r), int(c), int(off[r, c])) for r, c in zip(rows, columns) if off[r, c]]


def member(guess: np.ndarray, sets: Sequence[Sequence[int]]) -> tuple[np.ndarray, np.ndarray]:
    """(correct, counted) under sets of accepted labels, as ImageNet ReaL defines it.

    A guess is right when it is in its image's set; an image with an empty set is not counted.
    """
    counted = np.array([len(accepted) > 0 for accepted in sets], dtype=bool)
    correct = np.array([int(g) in accepted for g, accepted in zip(guess, sets)], dtype=bool)
    return correct & counted, counted


def average_precision(scores: np.ndarray, targets: np.ndarray, weights: np.ndarray | None = None) -> float:
    """Area under the precision-recall steps of one class; equal scores stand or fall together.

    sum over thresholds of (R_i - R_{i-1}) P_i, without interpolation; NaN without a positive.
    weights: how often each row counts (bootstrap).
    """
    order = np.argsort(-scores, kind="stable")
    return _area(scores[order], (targets[order] > 0).astype(np.float64), None if weights is None else weights[order])


def _area(ranked: np.ndarray, right: np.ndarray, weights: np.ndarray | None) -> float:
    """Of rows in falling order of their scores."""
    weights = np.ones(len(ranked)) if weights is None else weights.astype(np.float64)
    hits, seen = np.cumsum(right * weights), np.cumsum(weights)
    if not len(hits) or hits[-1] == 0:
        return float("nan")
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # the last row of each run of equal scores
    hits, seen = hits[last], seen[last]
    precision = np.divide(hits, seen, out=np.zeros_like(hits), where=seen > 0)
    return float(np.sum(np.diff(hits / hits[-1], prepend=0.0) * precision))


def mean_average_precision(scores: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """(mean over the classes that have a positive, AP of every class with NaN for those without)."""
    each = np.array([average_precision(scores[:, k], targets[:, k]) for k in range(scores.shape[1])])
    return mean_known(each), each


def mean_known(values: np.ndarray) -> float:
    return float(np.nanmean(values)) if len(values) and not np.isnan(values).all() else float("nan")
