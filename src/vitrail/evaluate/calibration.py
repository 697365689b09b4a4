"""Temperature scaling: one number, fitted on held-out images, that divides all logits (Guo et al. 2017).

It changes no first guess, only how sure the model says it is.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from vitrail.errors import DataError
from vitrail.evaluate.metrics import BINS, Counts

__all__ = ["Scaling", "bins_at", "expected_error", "fit_temperature", "scale"]

COLDEST, HOTTEST = 0.01, 100.0


@dataclass(frozen=True)
class Scaling:
    """Calibration on the measured images, before and after; `images` is how many fitted the temperature."""

    temperature: float
    split: str
    images: int
    ece_before: float
    ece_after: float
    loss_before: float
    loss_after: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        fitted = f"temperature {self.temperature:.3f}, fitted on {self.images:,} images of {self.split}"
        return f"ECE {100 * self.ece_after:.2f} points, loss {self.loss_before:.4f} -> {self.loss_after:.4f}, at {fitted}"


def expected_error(bins: np.ndarray) -> float:
    """ECE of (BINS, 3) images, sum of confidence, sum of correct: |accuracy - confidence| a bin, weighted by its images."""
    images = bins[:, 0].sum()
    return float(np.abs(bins[:, 2] - bins[:, 1]).sum() / images) if images else math.nan


def bins_at(temperature: float, scores: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """(BINS, 3) at a temperature; images without a label are left out."""
    known = labels >= 0
    scores, labels = scores[known], labels[known]
    confidence = np.exp(log_softmax(scores, temperature).max(axis=1, initial=-np.inf))
    correct = (scores.argmax(axis=1) == labels).astype(np.float64)
    place = Counts.bin_of(confidence)
    return np.stack([np.bincount(place, weights=w, minlength=BINS) for w in (np.ones(len(labels)), confidence, correct)], axis=1)


def fit_temperature(scores: np.ndarray, labels: np.ndarray) -> float:
    """The T at which softmax(scores / T) has the least mean -log p(label); golden section, as the loss is convex in 1/T."""
    known = (labels >= 0) & np.isfinite(np.take_along_axis(scores, np.maximum(labels, 0)[:, None], 1)[:, 0])
    if not known.any():
        raise DataError("no labelled image to fit a temperature on.")
    scores, labels = scores[known].astype(np.float64), labels[known]
    low, high = math.log(COLDEST), math.log(HOTTEST)
    ratio = (math.sqrt(5) - 1) / 2
    a, b = high - ratio * (high - low), low + ratio * (high - low)
    left, right = (loss_at(scores, labels, math.exp(x)) for x in (a, b))
    while high - low > 1e-4:
        if left < right:
            high, b, right = b, a, left
            a = high - ratio * (high - low)
            left = loss_at(scores, labels, math.exp(a))
        else:
            low, a, left = a, b, right
            b = low + ratio * (high - low)
            right = loss_at(scores, labels, math.exp(b))
    return math.exp((low + high) / 2)


def log_softmax(scores: np.ndarray, temperature: float) -> np.ndarray:
    scaled = scores.astype(np.float64) / temperature
    scaled -= scaled.max(axis=1, keepdims=True)
    result: np.ndarray = scaled - np.log(np.exp(scaled).sum(axis=1, keepdims=True))
    return result


def loss_at(scores: np.ndarray, labels: np.ndarray, temperature: float) -> float:
    return float(-np.take_along_axis(log_softmax(scores, temperature), labels[:, None], 1).mean())


def scale(temperature: float, split: str, images: int, scores: np.ndarray, labels: np.ndarray) -> Scaling:
    """What the temperature does to the calibration of other images."""
    known = labels >= 0
    if not known.any():
        raise DataError("no labelled image to judge a temperature by.")
    errors = [expected_error(bins_at(t, scores, labels)) for t in (1.0, temperature)]
    losses = [loss_at(scores[known], labels[known], t) for t in (1.0, temperature)]
    return Scaling(temperature, split, images, errors[0], errors[1], losses[0], losses[1])
