"""`Evaluation`: what was measured, on how many images, how surely, and at what cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrail.evaluate.answers import Answers
from vitrail.evaluate.calibration import Scaling
from vitrail.evaluate.intervals import Interval
from vitrail.evaluate.metrics import Counts
from vitrail.evaluate.real import Real
from vitrail.evaluate.speed import Speed
from vitrail.evaluate.spent import Spent

__all__ = ["Evaluation"]


@dataclass(frozen=True, eq=False)
class Evaluation:
    """A model on a data set. `images` is the denominator of every share."""

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
    spent: Spent
    precision: str
    mean_per_class: Interval
    ece: Interval
    protocol: str | None = None
    views: str = "none"
    real: Real | None = None
    mean_ap: Interval | None = None  # several labels an image
    class_ap: np.ndarray | None = None
    scaling: Scaling | None = None
    speed: Speed | None = None
    notes: tuple[str, ...] = ()
    folder: str | None = None  # where tables and pictures were written
    answers: Answers | None = field(default=None, repr=False)  # a row an image

    @property
    def unreadable(self) -> int:
        return len(self.unreadable_files)

    @property
    def device(self) -> str:
        return self.spent.device

    @property
    def seconds(self) -> float:
        return self.spent.seconds

    def per_class(self) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = [{"class": name, **row} for name, row in zip(self.classes, self.counts.per_class)]
        for row, ap in zip(rows, self.class_ap if self.class_ap is not None else ()):
            row["ap"] = None if np.isnan(ap) else float(ap)
        return rows

    def hardest(self, most: int) -> list[tuple[str, float, int]]:
        """(class, its accuracy, its images) of the classes that are right least often."""
        known = [(row["class"], row["recall"], row["images"]) for row in self.per_class() if row["images"]]
        return sorted(known, key=lambda row: row[1])[:most]

    def to_dict(self) -> dict[str, Any]:
        said = {"real": self.real, "mean_ap": self.mean_ap, "temperature": self.scaling, "speed": self.speed}
        return {
            "model": self.model,
            "data": self.data,
            "split": self.split,
            "protocol": self.protocol,
            "views": self.views,
            "images": self.images,
            "unreadable": self.unreadable,
            "unreadable_files": list(self.unreadable_files[:100]),
            "unlabelled": self.unlabelled,
            "top1": self.top1.to_dict(),
            f"top{self.counts.depth}": self.top5.to_dict(),
            "loss": self.counts.nll / self.images if self.images else None,
            "mean_per_class": self.mean_per_class.to_dict(),
            "ece": self.ece.to_dict(),
            **{name: value.to_dict() for name, value in said.items() if value is not None},
            "precision": self.precision,
            "cost": self.spent.to_dict(),
            "folder": self.folder,
            "notes": list(self.notes),
            "per_class": self.per_class(),
        }

    def __str__(self) -> str:
        several = self.class_ap is not None
        what = "first guess among an image's labels" if several else "top-1"
        about = [f"{self.model} on {self.data}"]
        about += [f"split {self.split}"] if self.split else []
        about += [f"as {self.protocol}"] if self.protocol else []
        about += [f"{self.views} views averaged"] if self.views != "none" else []
        lines = [", ".join(about)]
        lines.append(f"top-1        {self.top1.percent()}  of {self._of()}" + (f"; {what}" if several else ""))
        lines.append(f"top-{self.counts.depth}        {self.top5.percent()}")
        if self.mean_ap is not None:
            lines.append(f"mAP          {self.mean_ap.percent()}")
        if self.real is not None:
            skipped = f"; {self.real.skipped:,} with no accepted label are not counted"
            lines.append(f"ReaL         {self.real.top1.percent()}  of {self.real.images:,} images{skipped if self.real.skipped else ''}")
        lines.append(f"a class      {self.mean_per_class.percent()}  mean over the classes")
        lines.append(f"calibration  ECE {_points(self.ece)}")
        if self.scaling is not None:
            lines.append(f"  scaled     {self.scaling}")
        hardest = self.hardest(3)
        if len(hardest) > 1:
            lines.append("hardest      " + ", ".join(f"{name} {100 * recall:.1f} % of {images:,}" for name, recall, images in hardest))
        for true, said, count in self.counts.confused(3):
            lines.append(f"mistaken     {self.classes[true]} for {self.classes[said]}: {count:,}")
        lines.append(f"cost         {self.spent}, {self.precision}")
        if self.speed is not None:
            lines.append(f"speed        {self.speed}")
        lines += [f"tables       {self.folder}"] if self.folder else []
        return "\n".join([*lines, *(f"note         {note}" for note in self.notes)])

    def _of(self) -> str:
        of = f"{self.images:,} images" + (f", {self.unreadable:,} more unreadable" if self.unreadable else "")
        return of + (f", {self.unlabelled:,} more without a label" if self.unlabelled else "")


def _points(share: Interval) -> str:
    """An interval of a share, in percentage points."""
    if share.low != share.low:
        return f"{100 * share.value:.2f} points"
    return f"{100 * share.value:.2f} points [{100 * share.low:.2f}, {100 * share.high:.2f}]"
