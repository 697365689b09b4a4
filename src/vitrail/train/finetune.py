"""`finetune`: public weights and labelled pictures in, a model and a number one can trust out.

    result = vitrail.finetune("B16.npz", "photos/")
    print(result)                      accuracy with its interval, where everything is, what to type next

The reported number comes from images that neither trained nor chose anything: the last weights
on the test split, or, with early stopping, the best weights by a part held out of training.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail.config import Recipe, override
from vitrail.data.source import open_source
from vitrail.evaluate.features import extract_features
from vitrail.evaluate.intervals import Interval, wilson
from vitrail.evaluate.leastsquares import LeastSquares
from vitrail.runtime.device import pick_device
from vitrail.runtime.progress import duration
from vitrail.train.proposal import Facts, Proposal, Wishes, look, propose

__all__ = ["FinetuneResult", "finetune", "plan_for"]

PROBE_IMAGES = 2000  # of the training set, for the yardstick of frozen features
PROBE_L2 = 1024.0


@dataclass(frozen=True)
class FinetuneResult:
    """What a fine-tuning gave. Accuracies are on `images` held-out images."""

    model: str  # where it started
    data: str
    path: Path
    accuracy: Interval
    images: int
    unreadable: int  # held-out files that could not be read, and are not in `images`
    chosen: str  # which weights were measured: "last", or "best"
    majority: float  # accuracy of always saying the largest class
    linear: Interval | None  # frozen features with a closed-form linear classifier, same images
    steps: int
    seconds: float
    exaflops: float | None
    plan: tuple[str, ...]
    report: Path | None

    @property
    def weights(self) -> Path:
        """The weights that were measured."""
        return self.path / f"{self.chosen}.safetensors"

    def verdict(self) -> str:
        """What to expect on this data, measured on it, and where this result stands."""
        known = f"always saying the largest class gives {100 * self.majority:.1f} %"
        if self.linear is not None:
            known += f", the frozen features with a linear classifier {self.linear.percent(1)}; fine-tuning usually lies above both"
        if self.accuracy.low <= self.majority:
            return known + (
                ". Yours is not surely better than the first: are the labels right (`vitrail data check`), can the classes be told apart "
                "at this size (--image-size), are the held-out images enough? `vitrail sweep` chooses the rate"
            )
        if self.linear is not None and self.accuracy.high < self.linear.low:
            return known + (
                ". Yours is lower: try a lower --lr, more --minutes or --steps, or --train head; "
                "`vitrail data check` finds wrong labels, `vitrail sweep` chooses the rate"
            )
        return known

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "data": self.data,
            "top1": self.accuracy.to_dict(),
            "images": self.images,
            "unreadable": self.unreadable,
            "weights": str(self.weights),
            "chosen": self.chosen,
            "majority": self.majority,
            "linear": self.linear.to_dict() if self.linear else None,
            "steps": self.steps,
            "seconds": round(self.seconds, 1),
            "exaflops": self.exaflops,
            "plan": list(self.plan),
            "out": str(self.path),
            "report": str(self.report) if self.report else None,
        }

    def __str__(self) -> str:
        missing = f" ({self.unreadable} more could not be read)" if self.unreadable else ""
        lines = [
            f"accuracy   {self.accuracy.percent(1)} on {self.images:,} held-out images{missing}; 95 % interval",
            f"expected   {self.verdict()}",
            f"took       {duration(self.seconds)}, {self.steps:,} steps",
            f"weights    {self.weights}",
        ]
        if self.report:
            lines.append(f"report     {self.report}")
        lines += [
            f"next       vitrail predict {self.weights} photo.jpg",
            f"           vitrail inspect {self.weights} --images {self.data}",
            f"           vitrail serve {self.weights}",
        ]
        return "\n".join(lines)


def finetune(
    model: str | None = None,
    data: str = "builtin:fashion",
    *,
    out: str | Path | None = None,
    wishes: Wishes | None = None,
    overrides: Iterable[str] = (),
    device: str | None = None,
    report: bool = True,
    resume: bool = True,
    progress: bool = True,
    say: Any = None,
) -> FinetuneResult:
    """Fine-tune `model` (a path or name of weights; default: the model in the box) on `data` (any address).

    overrides: recipe keys over the plan, "optim.lr=0.003". say: called with each line of the plan.
    The same call goes on where an interrupted one stopped.
    """
    from vitrail.train.loop import train
    from vitrail.weights.load import load_model

    start = time.monotonic()
    weights = model or default_model()
    wishes = wishes or Wishes()
    folder = Path(out) if out is not None else Path("runs") / _folder_name(weights, data)
    facts = look(data, dev=wishes.early_stop is not None)
    base = load_model(weights)
    place = pick_device(device)
    plan = propose(weights, base.config, base.card, facts, wishes, gpu=place.type == "cuda")
    recipe = override(plan.recipe, overrides)
    for line in plan.reasons if say is not None else ():
        say(line)
    linear = None if facts.multilabel else _yardstick(base, facts, place, recipe.train.precision, progress)
    del base
    result = train(recipe, folder, resume=resume, device=device, progress=progress)
    return _conclude(weights, facts, plan, folder, result, linear, start, place, report)


def plan_for(weights: str, data: str, wishes: Wishes, overrides: Iterable[str] = (), device: str | None = None) -> Recipe:
    """The recipe that `finetune` would run, with its grid of rates, for `sweep`."""
    from vitrail.weights.load import load_model

    base = load_model(weights)
    plan = propose(weights, base.config, base.card, look(data), wishes, gpu=pick_device(device).type == "cuda")
    return override(plan.recipe, overrides)


def default_model() -> str:
    """The model in the box."""
    from vitrail.weights import hub

    return hub.default_model()


def _conclude(
    weights: str,
    facts: Facts,
    plan: Proposal,
    folder: Path,
    result: Any,
    linear: Interval | None,
    start: float,
    place: torch.device,
    report: bool,
) -> FinetuneResult:  # fmt: skip
    """Measure the chosen weights once on the images set aside for it, and write the page."""
    from vitrail.evaluate.classify import evaluate
    from vitrail.weights.load import load_model

    chosen = "best" if facts.dev_split is not None else "last"
    final = load_model(str(folder / f"{chosen}.safetensors"))
    measured = evaluate(final, facts.address, split=facts.test_split, device=str(place), keep_answers=True)
    page = None
    if report:
        from vitrail.train.report import write_report

        page = write_report(folder, final, measured, plan.reasons)
    return FinetuneResult(
        weights, facts.address, folder, measured.top1, measured.images, measured.unreadable, chosen, facts.majority, linear,
        result.steps, time.monotonic() - start, result.exaflops, plan.reasons, page,
    )  # fmt: skip


def _yardstick(model: Any, facts: Facts, place: torch.device, precision: str, progress: bool) -> Interval | None:
    """Accuracy of the frozen features with the paper's closed-form classifier: what fine-tuning should beat."""
    splits = (facts.train_split, facts.test_split)
    train, test = (
        extract_features(
            model, _some(facts.address, split, PROBE_IMAGES), cache=False, device=str(place), precision=precision, progress=progress
        ).labelled()
        for split in splits
    )
    model.to("cpu")
    if len(set(train.labels.tolist())) < 2 or not len(test):
        return None
    solver = LeastSquares.fit(torch.from_numpy(train.features), torch.from_numpy(train.labels), len(facts.classes))
    said = solver.scores(torch.from_numpy(test.features), PROBE_L2).argmax(1).numpy()
    return wilson(int((said == test.labels).sum()), len(test))


def _some(address: str, split: str, most: int) -> Any:
    """At most `most` images of a split, classes in proportion."""
    whole = open_source(address, split=split)
    return whole if len(whole) <= most else open_source(address, split=f"{split}[:{most}]")


def _folder_name(weights: str, data: str) -> str:
    """runs/ti-8-photos"""
    words = [re.sub(r"[^A-Za-z0-9]+", "-", Path(str(text).split(":")[-1]).stem).strip("-") for text in (weights, data)]
    return "-".join(word for word in words if word) or "finetune"
