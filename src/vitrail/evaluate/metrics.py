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


@dataclass(frozen=True, eq=False)
class Counts:
    images: int
    top1: int
    top5: int
    depth: int  # how many guesses "top5" really means: min(5, classes)
    nll: float  # sum of -log p(true class), in nats
    confusion: np.ndarray  # (K, K) int64
    bins: np.ndarray  # (BINS, 3) float64: images, sum of confidence, sum of correct

    @classmethod
    def of(
        cls, labels: np.ndarray, guesses: np.ndarray, confidence: np.ndarray, nll: np.ndarray, classes: int
    ) -> Counts:
        """Of rows: true class (N,), guesses best first (N, depth), probability of the first guess, -log p(true)."""
        hit = guesses == labels[:, None]
        confusion = np.bincount(labels * classes + guesses[:, 0], minlength=classes * classes)
        place = np.clip(np.ceil(confidence.astype(np.float64) * BINS).astype(np.int64) - 1, 0, BINS - 1)
        weights = (np.ones(len(labels)), confidence.astype(np.float64), hit[:, 0].astype(np.float64))
        bins = np.stack([np.bincount(place, weights=w, minlength=BINS) for w in weights], axis=1)
        return cls(
            images=len(labels),
            top1=int(hit[:, 0].sum()),
            top5=int(hit.any(axis=1).sum()),
            depth=guesses.shape[1],
            nll=float(nll.astype(np.float64).sum()),
            confusion=confusion.reshape(classes, classes),
            bins=bins,
        )

    def __add__(self, other: Counts) -> Counts:
        assert self.depth == other.depth and self.confusion.shape == other.confusion.shape
        return Counts(
            self.images + other.images,
            self.top1 + other.top1,
            self.top5 + other.top5,
            self.depth,
            self.nll + other.nll,
            self.confusion + other.confusion,
            self.bins + other.bins,
        )

    @property
    def per_class(self) -> list[dict[str, float | int | None]]:
        """Per class: images, recall (the class's accuracy), precision, F1; None where 0/0."""
        right = np.diag(self.confusion)
        true, guessed = self.confusion.sum(axis=1), self.confusion.sum(axis=0)
        return [
            {
                "images": int(t),
                "recall": float(r / t) if t else None,
                "precision": float(r / g) if g else None,
                "f1": float(2 * r / (t + g)) if t + g else None,
            }
            for r, t, g in zip(right, true, guessed)
        ]

    @property
    def mean_per_class(self) -> float:
        """Mean recall over the classes that have images (balanced accuracy)."""
        true = self.confusion.sum(axis=1)
        return float(np.mean(np.diag(self.confusion)[true > 0] / true[true > 0])) if self.images else float("nan")

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


def average_precision(scores: np.ndarray, targets: np.ndarray) -> float:
    """Area under the precision-recall steps of one class; equal scores stand or fall together.

    sum over thresholds of (R_i - R_{i-1}) P_i, without interpolation; NaN without a positive.
    """
    positives = int(targets.sum())
    if positives == 0:
        return float("nan")
    order = np.argsort(-scores, kind="stable")
    ranked, right = scores[order], np.cumsum(targets[order].astype(np.int64))
    last = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))  # the last row of each run of equal scores
    precision = right[last] / (last + 1)
    recall = right[last] / positives
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))


def mean_average_precision(scores: np.ndarray, targets: np.ndarray) -> tuple[float, np.ndarray]:
    """(mean over the classes that have a positive, AP of every class with NaN for those without)."""
    each = np.array([average_precision(scores[:, k], targets[:, k]) for k in range(scores.shape[1])])
    return (float(np.nanmean(each)) if not np.isnan(each).all() else float("nan")), each
