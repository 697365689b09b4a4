"""`probe`: a linear classifier on frozen features, its regulariser chosen on images held out of training.

    lbfgs   multinomial logistic regression, full batch, from the strongest regulariser to the weakest (warm starts)
    ridge   the closed form of few-shot (`leastsquares`): every regulariser from one factorisation

Features are standardised with the training set's mean and deviation. The search ends when two
weaker regularisers in a row were no better on the held-out images; the chosen strength is
fitted again on all training images. The test images choose nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.split import shuffled
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, UsageError, nearest
from vitrail.evaluate.features import Features, Frozen, exact_device, hits_of
from vitrail.evaluate.intervals import Interval, wilson
from vitrail.evaluate.leastsquares import LeastSquares
from vitrail.evaluate.spent import Spent

__all__ = ["Logistic", "Probe", "linear_probe", "probe"]

GRIDS = {"lbfgs": tuple(10.0**e for e in (2, 1, 0, -1, -2, -3, -4, -5)), "ridge": tuple(2.0**e for e in range(20, -11, -2))}
CURVATURE = 0.1  # of the cross-entropy in a logit, about
Predict = Callable[[Tensor], Tensor]
DEV = 0.1  # of the training images, where no dev split is given


@dataclass(frozen=True)
class Probe:
    """What was chosen, and the accuracy on the test images."""

    model: str
    data: str
    method: str
    l2: float
    dev: dict[float, float]  # regulariser -> accuracy on the held-out images
    dev_images: int
    train_images: int
    test_images: int
    unreadable: int
    top1: Interval
    notes: tuple[str, ...] = ()
    spent: Spent | None = None

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "data": self.data,
            "method": self.method,
            "l2": self.l2,
            "dev": [{"l2": l2, "top1": value} for l2, value in self.dev.items()],
            "dev_images": self.dev_images,
            "train_images": self.train_images,
            "test_images": self.test_images,
            "unreadable": self.unreadable,
            "top1": self.top1.to_dict(),
            "cost": self.spent.to_dict() if self.spent else None,
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        bad = f" ({self.unreadable} files more could not be read)" if self.unreadable else ""
        lines = [
            f"{self.model} on {self.data}",
            f"linear probe  {self.top1.percent()} of {self.test_images:,} test images{bad}",
            f"trained on    {self.train_images:,} images, {self.method}, l2 {self.l2:g}, chosen on {self.dev_images:,} of them",
        ]
        lines += [f"cost          {self.spent}"] if self.spent else []
        return "\n".join([*lines, *(f"note          {note}" for note in self.notes)])


def probe(
    model: str | nn.Module | None = None,
    data: Any = None,
    *,
    method: str = "lbfgs",
    l2: Sequence[float] | None = None,
    train_split: str | None = None,
    dev_split: str | None = None,
    test_split: str | None = None,
    train: Features | None = None,
    dev: Features | None = None,
    test: Features | None = None,
    view: str | Preprocess = "eval",
    seed: int = 0,
    steps: int = 200,
    device: str | None = None,
    allow: Collection[str] = (),
    **options: Any,
) -> Probe:
    """Linear-probe accuracy of a model on a data set, or of features that are there already.

    dev_split: images that choose the regulariser and are then trained on as well; default: a tenth
    of the training images, every class in proportion, by `seed`. steps: of L-BFGS, at most.
    """
    name, frozen = "features", None
    if train is None or test is None:
        if model is None or data is None:
            raise UsageError("a probe needs a model and data, or the features of both splits.")
        frozen = Frozen.of(model, data, view=view, device=device, allow=allow, **options)
        name = frozen.name
        train = frozen.features(frozen.source(train_split, "train"))
        dev = frozen.features(frozen.source(dev_split, "train")) if dev_split else dev
        test = frozen.features(frozen.source(test_split, "test"))
    found = linear_probe(train, test, dev=dev, method=method, l2=l2, seed=seed, steps=steps, device=device, name=name)
    return replace(found, spent=frozen.spent()) if frozen else found


def linear_probe(
    train: Features, test: Features, *, dev: Features | None = None, method: str = "lbfgs", l2: Sequence[float] | None = None,
    seed: int = 0, steps: int = 200, device: str | None = None, name: str = "features",
) -> Probe:  # fmt: skip
    """The same on features."""
    if method not in GRIDS:
        raise UsageError(f"no probe is called {method!r}{nearest(method, GRIDS)}.")
    strengths = sorted(l2 or GRIDS[method], reverse=True)
    if strengths[-1] <= 0:
        raise UsageError("every l2 has to be above 0.")
    bad = len(train.unreadable) + len(test.unreadable) + (len(dev.unreadable) if dev else 0)
    train, test = train.labelled(), test.labelled()
    if train.classes != test.classes:
        raise DataError(f"the training split has {len(train.classes)} classes and the test split {len(test.classes)}, or other names.")
    fit_on, held, whole = _held_out(train, dev.labelled() if dev else None, seed)
    if not len(fit_on) or not len(test):
        raise DataError(f"{train.source}: no labelled image can be read.")
    classes, place = len(train.classes) or int(max(train.labels.max(), test.labels.max())) + 1, exact_device(device)
    fit = _logistic if method == "lbfgs" else _ridge
    accuracy: dict[float, float] = {}
    for strength, predict in fit(fit_on, classes, strengths if len(strengths) > 1 else [], place, steps):
        accuracy[strength] = _right(predict, held, place) / max(1, len(held))
        if _no_better(list(accuracy.values())):
            break
    chosen = max(accuracy, key=lambda s: (accuracy[s], s)) if accuracy else strengths[0]
    predict = next(fit(whole, classes, [chosen], place, steps))[1]
    notes = tuple(dict.fromkeys((*train.notes, *test.notes)))
    if len(strengths) > 2 and chosen in (strengths[0], strengths[-1]):
        notes += (f"the best l2, {chosen:g}, is at the end of the grid: widen it",)
    top1 = wilson(_right(predict, test, place), len(test))
    return Probe(name, train.source, method, chosen, accuracy, len(held), len(whole), len(test), bad, top1, notes)


def _held_out(train: Features, dev: Features | None, seed: int) -> tuple[Features, Features, Features]:
    """(to fit while choosing, to choose by, to fit at last)."""
    if dev is None:
        order = shuffled(train.labels, seed)
        cut = len(order) - max(1, round(DEV * len(order)))
        return train.rows(np.sort(order[:cut])), train.rows(np.sort(order[cut:])), train
    both = Features(
        np.concatenate([train.features, dev.features]), np.concatenate([train.labels, dev.labels]),
        np.arange(len(train) + len(dev)), train.classes, train.source, train.split,
    )  # fmt: skip
    return train, dev, both


def _right(predict: Any, test: Features, place: torch.device) -> int:
    return int(sum((said == true).sum() for said, true in hits_of(predict, test, place)))


def _on(train: Features, place: torch.device) -> tuple[Tensor, Tensor]:
    return torch.from_numpy(np.array(train.features)).to(place), torch.from_numpy(train.labels).to(place)


def _no_better(values: Sequence[float], patience: int = 2) -> bool:
    """The last `patience` values are all below the best before them."""
    return len(values) > patience and max(values[-patience:]) < max(values[:-patience])


def _ridge(train: Features, classes: int, strengths: Sequence[float], place: torch.device, steps: int) -> Iterator[tuple[float, Predict]]:
    problem = LeastSquares.fit(*_on(train, place), classes)
    for strength in strengths:
        yield strength, lambda rows, s=strength: problem.scores(rows, s).argmax(1)  # type: ignore[misc]


def _logistic(
    train: Features, classes: int, strengths: Sequence[float], place: torch.device, steps: int
) -> Iterator[tuple[float, Predict]]:
    x, y = _on(train, place)
    mean, std = x.mean(0), x.std(0, correction=0).clamp_min(1e-5)
    problem = Logistic.of((x - mean) / std, y, classes)
    weights: Tensor | None = None
    for strength in strengths:
        weights = problem.fit(strength, steps=steps, start=weights)
        yield strength, lambda rows, w=weights: _logits((rows - mean) / std, w).argmax(1)  # type: ignore[misc]


def _logits(x: Tensor, weights: Tensor) -> Tensor:
    """weights (K, D + 1): the last column is the bias."""
    return F.linear(x, weights[:, :-1], weights[:, -1])


@dataclass(frozen=True, eq=False)
class Logistic:
    """Multinomial logistic regression on features turned to their principal axes.

    There the search is scaled axis by axis with about the curvature it will meet; features of a
    network differ a thousandfold in it, and L-BFGS would stop before the small axes are found.
    """

    x: Tensor  # (n, D) features along the axes
    y: Tensor
    classes: int
    axes: Tensor  # (D, D)
    variance: Tensor  # (D,) along each

    @classmethod
    def of(cls, x: Tensor, y: Tensor, classes: int) -> Logistic:
        variance, axes = torch.linalg.eigh((x.T @ x).double() / len(x))
        axes = axes.to(x.dtype)
        return cls(x @ axes, y, classes, axes, variance.clamp_min(0).to(x.dtype))

    def fit(self, l2: float, *, steps: int = 200, start: Tensor | None = None) -> Tensor:
        """Weights (K, D + 1) at the least mean cross-entropy + l2 / (2 n) |W|^2; the bias is free."""
        scale = (CURVATURE * self.variance + l2 / len(self.y)).clamp_min(1e-8).rsqrt()
        x = self.x * scale
        if start is None:
            found = torch.zeros(self.classes, self.x.shape[1] + 1, device=self.x.device, dtype=self.x.dtype)
        else:
            found = torch.cat([start[:, :-1] @ self.axes / scale, start[:, -1:]], 1)
        found.requires_grad_(True)
        search = torch.optim.LBFGS(
            [found], max_iter=steps, history_size=10, line_search_fn="strong_wolfe", tolerance_grad=1e-6, tolerance_change=1e-12
        )

        def loss() -> Tensor:
            search.zero_grad()
            with torch.enable_grad():
                size = (found[:, :-1] * scale).square().sum()
                value = F.cross_entropy(_logits(x, found), self.y) + l2 / (2 * len(self.y)) * size
                value.backward()
            return value

        search.step(loss)  # type: ignore[no-untyped-call]
        weights = found.detach()
        return torch.cat([(weights[:, :-1] * scale) @ self.axes.T, weights[:, -1:]], 1)
