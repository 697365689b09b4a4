"""Measuring during a run: the held-out part through the same code as `vitrail eval`, with the average's weights."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from vitrail.data.batch import Batch
from vitrail.errors import UsageError, nearest
from vitrail.evaluate.score import evaluating, score
from vitrail.runtime import distributed
from vitrail.runtime.faults import fault
from vitrail.runtime.watchdog import Watchdog
from vitrail.train.objective import Objective, Supervised
from vitrail.train.run import Run
from vitrail.train.stream import HeldFeed

__all__ = ["Measure", "smaller_is_better"]


class Measure:
    """`measure(step)` gives figures, or None where nothing is held out."""

    def __init__(self, run: Run, dog: Watchdog) -> None:
        self.run, self.dog = run, dog
        self.feed = run.held()
        self.last: dict[str, Any] = {}

    def __call__(self, step: int) -> dict[str, Any] | None:
        if self.feed is None:
            return None
        fault("eval.start")
        average = self.run.ema.applied(self.run.model) if self.run.ema is not None else nullcontext()
        with average:
            self.last = self.labelled(self.feed) if isinstance(self.run.objective, Supervised) else self.unlabelled(self.feed)
            distributed.reshard(self.run.objective)
        fault("eval.done")
        return self.last

    def labelled(self, feed: HeldFeed) -> dict[str, Any]:
        counts = score(
            Scorer(self.run.objective),  # type: ignore[arg-type]
            self.watched(feed),
            device=self.run.device,
            precision=self.run.precision.name,
            classes=self.run.objective.classes,  # type: ignore[arg-type]
            normalise=feed.preprocess.normalise,
        )
        return counts.to_dict()

    def unlabelled(self, feed: HeldFeed) -> dict[str, Any]:
        """The objective's own loss; what is hidden of an image depends on the image alone."""
        total = torch.zeros(2, dtype=torch.float64, device=self.run.device)
        with evaluating(self.run.objective):
            for batch in self.watched(feed):
                images = batch.images.to(self.run.precision.weights)
                losses = self.run.objective(images, None, *self.run.objective.prepare(images, batch.labels, batch.position))
                total += torch.stack([losses[batch.valid].sum(dtype=torch.float64), batch.valid.sum(dtype=torch.float64)])
        loss, images_seen = distributed.sum_across(total).tolist()
        return {"images": int(images_seen), "loss": loss / max(1.0, images_seen)}

    def watched(self, feed: HeldFeed) -> Iterator[Batch]:
        for batch in feed:
            fault("eval.batch")
            yield batch
            self.dog.beat("a held-out batch")

    def is_better(self, figures: dict[str, Any], best: dict[str, Any]) -> bool:
        """By `eval.metric` (losses and errors: the smaller), or by the loss where there is no such figure."""
        name = self.run.recipe.eval.metric
        if name not in figures:
            if isinstance(self.run.objective, Supervised):
                raise UsageError(f"eval.metric={name!r} is not measured{nearest(name, figures)}.")
            name = "loss"
        sign = -1.0 if smaller_is_better(name) else 1.0
        return not best or sign * figures[name] > sign * best[name]


def smaller_is_better(metric: str) -> bool:
    return metric in ("loss", "ece")


class Scorer:
    """The objective's `predict` with the manners of a module, for `score`."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    @property
    def training(self) -> bool:
        return self._objective.training

    def eval(self) -> None:
        self._objective.eval()

    def train(self, mode: bool = True) -> None:
        self._objective.train(mode)

    def __call__(self, images: Tensor) -> Tensor:
        return self._objective.predict(images)
