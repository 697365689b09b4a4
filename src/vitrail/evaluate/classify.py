"""`evaluate`: a model on a data set, every number with its denominator.

    result = vitrail.evaluate("runs/photos/last.safetensors", "photos/", split="test")
    print(result)              result.top1.value, result.counts.confusion, result.to_dict()

No image is dropped or doubled: a file that cannot be read is named in `unreadable_files` and
missing from `images`; an image without a label is counted in `unlabelled`.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from vitrail.data.loader import EvalStream
from vitrail.data.source import Source, list_splits, open_source
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.answers import Answers
from vitrail.evaluate.classes import owner_by_map, owner_by_name
from vitrail.evaluate.intervals import Interval, wilson
from vitrail.evaluate.metrics import Counts, mean_average_precision
from vitrail.evaluate.score import answers_of, no_counts, part_counts, score
from vitrail.runtime import distributed
from vitrail.runtime.device import pick_device

__all__ = ["Evaluation", "evaluate", "score"]

EVAL_SPLITS = ("test", "val")


@dataclass(frozen=True, eq=False)
class Evaluation:
    """What was measured, on how many images, how surely, at what speed."""

    model: str
    data: str
    split: str | None
    classes: tuple[str, ...]
    images: int
    unreadable_files: tuple[str, ...]
    unlabelled: int
    top1: Interval
    top5: Interval
    counts: Counts
    mean_ap: float | None  # several labels an image
    seconds: float
    precision: str
    device: str
    notes: tuple[str, ...] = ()
    answers: Answers | None = field(default=None, repr=False)  # of this rank, a row an image

    @property
    def unreadable(self) -> int:
        return len(self.unreadable_files)

    def to_dict(self) -> dict[str, Any]:
        per_class = [{"class": name, **row} for name, row in zip(self.classes, self.counts.per_class)]
        return {
            "model": self.model,
            "data": self.data,
            "split": self.split,
            "images": self.images,
            "unreadable": self.unreadable,
            "unlabelled": self.unlabelled,
            "top1": self.top1.to_dict(),
            f"top{self.counts.depth}": self.top5.to_dict(),
            **{name: value for name, value in self.counts.to_dict().items() if name in ("loss", "mean_per_class", "ece")},
            "mean_ap": self.mean_ap,
            "images_per_s": self.images / self.seconds if self.seconds else None,
            "precision": self.precision,
            "device": self.device,
            "notes": list(self.notes),
            "per_class": per_class,
        }

    def __str__(self) -> str:
        of = f"{self.images:,} images" + (f", {self.unreadable} more unreadable" if self.unreadable else "")
        of += f", {self.unlabelled} more without a label" if self.unlabelled else ""
        lines = [
            f"top-1        {self.top1.percent()}  of {of}; 95 % interval (Wilson)",
            f"top-{self.counts.depth}        {self.top5.percent()}",
            f"a class      {100 * self.counts.mean_per_class:.2f} % on average",
            f"calibration  ECE {100 * self.counts.ece:.2f} points",
        ]
        if self.mean_ap is not None:
            lines.append(f"mAP          {100 * self.mean_ap:.2f} %")
        for true, said, count in self.counts.confused(3):
            lines.append(f"mistaken     {self.classes[true]} for {self.classes[said]}: {count}")
        lines.append(f"speed        {self.images / max(1e-9, self.seconds):,.0f} images/s, {self.precision} on {self.device}")
        return "\n".join([*lines, *(f"note         {note}" for note in self.notes)])


def evaluate(
    model: str | nn.Module,
    data: Any,
    *,
    split: str | None = None,
    class_map: Mapping[str, Any] | None = None,
    restrict: bool = True,
    batch_size: int | None = None,
    precision: str = "auto",
    device: str | None = None,
    workers: int | None = None,
    image_size: Any = None,
    keep_answers: bool = False,
) -> Evaluation:
    """Measure a model (weights, or one loaded) on a data set (an address, or a Source).

    split: default the test split, else the validation split. class_map: class of the data -> outputs.
    restrict: outputs that stand for no class of the data cannot be answered.
    """
    name, network = _model(model, image_size)
    source = _source(data, split)
    classes = tuple(source.classes)
    outputs = tuple(network.card.classes)
    count = network.config.classes
    if class_map is not None:
        owner = owner_by_map(class_map, outputs, count, classes)
    else:
        owner = owner_by_name(outputs, classes, name, source.name)
        if owner is None and count != len(classes):
            raise DataError(
                f"{name} has {count} outputs, and {source.name} has {len(classes)} classes.",
                hint="fine-tune a head for this data (vitrail finetune), or give a --class-map",
            )
    place = pick_device(device)
    network = network.to(place)
    batch = batch_size or (256 if place.type == "cuda" else 32)
    options = {"owner": torch.from_numpy(owner).to(place), "restrict": restrict} if owner is not None else {}
    start, parts = time.monotonic(), []
    with distributed.group(), EvalStream(
        source, network.card.transform(), batch_size=batch, rank=distributed.rank(), world=distributed.world(), workers=workers
    ) as stream:  # fmt: skip
        found = answers_of(
            network, stream, device=place, precision=precision, classes=len(classes), keep_scores=source.multilabel, **options
        )
        for part in found:
            part.refuse_nonfinite()
            parts.append(part)
        everyone = distributed.gather_objects((parts, [str(bad.get("id", bad)) for bad in stream.quarantine]))
    rows = [part for theirs, _ in everyone for part in theirs]
    bad = tuple(sorted(name for _, names in everyone for name in names))
    return _conclude(name, source, rows, bad, time.monotonic() - start, precision, place, keep_answers)


def _conclude(
    name: str, source: Source, parts: list[Answers], bad: tuple[str, ...], seconds: float, precision: str, place: torch.device, keep: bool
) -> Evaluation:
    classes = tuple(source.classes)
    counts = sum((part_counts(part, len(classes)) for part in parts), no_counts(len(classes)))
    whole = Answers.join(parts) if parts else None
    unlabelled = int((whole.labels < 0).sum()) if whole is not None and whole.labels.ndim == 1 else 0
    mean_ap = None
    if whole is not None and source.multilabel and whole.scores is not None:
        mean_ap = mean_average_precision(whole.scores, whole.labels)[0]
    resolved = ("bf16" if place.type == "cuda" else "fp32") if precision == "auto" else precision
    return Evaluation(
        name, source.name, source.split, classes, counts.images, bad, unlabelled,
        wilson(counts.top1, counts.images), wilson(counts.top5, counts.images), counts, mean_ap, seconds, resolved, str(place),
        tuple(source.notes), whole if keep else None,
    )  # fmt: skip


def _model(model: str | nn.Module, image_size: Any) -> tuple[str, Any]:
    if isinstance(model, nn.Module):
        if not hasattr(model, "card"):
            raise UsageError(
                "this model has no card, so nobody knows how its images are prepared.", hint="model = vitrail.load_model(path)"
            )
        return model.card.name or type(model).__name__, model
    from vitrail.weights.load import load_model

    return str(model), load_model(str(model), image_size=image_size)


def _source(data: Any, split: str | None) -> Source:
    if split is None and isinstance(data, str):
        have = list_splits(data)
        split = next((name for name in EVAL_SPLITS if name in have), None)
        if split is None and have:
            raise UsageError(
                f"{data} has no test or validation split, only {', '.join(have)}.", hint=f"say which images: --split '{have[0]}[90%:]'"
            )
    return open_source(data, split=split)
