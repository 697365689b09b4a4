"""ImageNet-C: 15 corruptions at 5 severities, and mCE, the mean corruption error (Hendrycks and Dietterich 2019).

    CE of a corruption = sum over severities of our error / sum over severities of AlexNet's
    mCE = mean of the 15 CEs, in percent: AlexNet has 100

The images are stored as they are to be seen (224 pixels), so nothing is cropped; a model of
another size gets them resized. Further corruptions that lie in the folder (speckle_noise, …) are
measured and reported, and do not enter the mean.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from vitrail.data.source import open_source
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.classify import match_classes, open_asker
from vitrail.evaluate.folder import prepare_folder
from vitrail.evaluate.intervals import Interval, wilson
from vitrail.evaluate.protocols import find_protocol
from vitrail.evaluate.score import part_counts
from vitrail.evaluate.spent import Spent
from vitrail.runtime import distributed
from vitrail.runtime.disk import write_atomic

__all__ = ["ALEXNET", "Corruptions", "corruption", "mean_corruption_error"]

# top-1 error of AlexNet, mean over the five severities (github.com/hendrycks/robustness)
ALEXNET = {
    "gaussian_noise": 0.886428, "shot_noise": 0.894468, "impulse_noise": 0.922640, "defocus_blur": 0.819880,
    "glass_blur": 0.826268, "motion_blur": 0.785948, "zoom_blur": 0.798360, "snow": 0.866816, "frost": 0.826572,
    "fog": 0.819324, "brightness": 0.564592, "contrast": 0.853204, "elastic_transform": 0.646056, "pixelate": 0.717840,
    "jpeg_compression": 0.606500,
}  # fmt: skip
FURTHER = ("gaussian_blur", "saturate", "spatter", "speckle_noise")
SEVERITIES = (1, 2, 3, 4, 5)


@dataclass(frozen=True)
class Level:
    """One corruption at one severity."""

    corruption: str
    severity: int
    images: int
    unreadable: int
    top1: Interval

    @property
    def error(self) -> float:
        return 1.0 - self.top1.value

    def to_dict(self) -> dict[str, Any]:
        return {**dataclasses.asdict(self), "top1": self.top1.to_dict()}


@dataclass(frozen=True)
class Corruptions:
    """Every level that was found; mCE only when all 75 were."""

    model: str
    data: str
    levels: tuple[Level, ...]
    spent: Spent
    precision: str
    notes: tuple[str, ...] = ()

    @property
    def errors(self) -> dict[str, dict[int, float]]:
        found: dict[str, dict[int, float]] = {}
        for level in self.levels:
            found.setdefault(level.corruption, {})[level.severity] = level.error
        return found

    @property
    def mce(self) -> float:
        return mean_corruption_error(self.errors)[0]

    @property
    def absent(self) -> list[str]:
        return mean_corruption_error(self.errors)[1]

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.model,
            "data": self.data,
            "protocol": "imagenet-c",
            "mce": None if math.isnan(self.mce) else self.mce,
            "absent": self.absent,
            "corruption_error": {name: ratio(name, by) for name, by in self.errors.items() if ratio(name, by) is not None},
            "levels": [level.to_dict() for level in self.levels],
            "precision": self.precision,
            "cost": self.spent.to_dict(),
            "notes": list(self.notes),
        }

    def __str__(self) -> str:
        images = sum(level.images for level in self.levels)
        lines = [
            f"{self.data}, as imagenet-c: {images:,} images",
            f"{'top-1, %':20s}" + "".join(f"{s:>7d}" for s in SEVERITIES) + "     CE",
        ]
        for name, by in self.errors.items():
            cells = "".join(f"{100 * (1 - by[s]):7.1f}" if s in by else "      -" for s in SEVERITIES)
            own = ratio(name, by)
            lines.append(f"{name:20s}{cells}" + (f"{100 * own:7.1f}" if own is not None else "      -"))
        if self.absent:
            few = ", ".join(self.absent[:6]) + (f" … ({len(self.absent)} in all)" if len(self.absent) > 6 else "")
            lines.append(f"mCE                 none: it needs all 75 levels, and these are absent: {few}")
        else:
            lines.append(f"mCE                 {100 * self.mce:.2f} (AlexNet: 100; less is better)")
        bad = sum(level.unreadable for level in self.levels)
        lines += [f"unreadable          {bad:,} files more"] if bad else []
        lines.append(f"cost                {self.spent}, {self.precision}")
        return "\n".join([*lines, *(f"note                {note}" for note in self.notes)])


def ratio(name: str, by: Mapping[int, float]) -> float | None:
    """The corruption error of one corruption; None where AlexNet's or a severity is unknown."""
    if name not in ALEXNET or set(by) != set(SEVERITIES):
        return None
    return sum(by.values()) / (len(SEVERITIES) * ALEXNET[name])


def mean_corruption_error(errors: Mapping[str, Mapping[int, float]]) -> tuple[float, list[str]]:
    """(mCE as a share: 1 is AlexNet's, NaN while anything is absent; what is absent, "fog/3")."""
    absent = [f"{name}/{s}" for name in ALEXNET for s in SEVERITIES if s not in errors.get(name, {})]
    if absent:
        return math.nan, absent
    return sum(ratio(name, errors[name]) or 0.0 for name in ALEXNET) / len(ALEXNET), []


def corruption(
    model: str | nn.Module, folder: str | Path, *, out: str | Path | None = None, allow: Collection[str] = (), **options: Any
) -> Corruptions:
    """Measure a model on a folder of ImageNet-C, as its archives unpack: [GROUP/]CORRUPTION/SEVERITY/CLASS/IMAGE.

    options: batch_size, precision, device, workers, image_size, cache, progress, as of `evaluate`.
    """
    found = find_levels(folder)
    if out is not None:
        prepare_folder(out)
    asker, name = open_asker(model, **options)
    view = dataclasses.replace(asker.model.card.transform(), mode="squash", resize=None)
    convention = find_protocol("imagenet-c")
    levels: list[Level] = []
    notes: dict[str, None] = {}
    spent = None
    if tuple(view.image_size) != (224, 224):
        notes[f"the stored images of 224 pixels are resized to {view.image_size[0]} x {view.image_size[1]}"] = None
    for what, severity, path in found:
        source = open_source(str(path), allow=allow)
        match = match_classes(asker.model, source, name, None, None, convention)
        survey = asker.survey(source, view, owner=match.owner, restrict=match.restrict)
        kept = survey.answers.labels >= 0
        counts = part_counts(survey.answers.rows(kept), len(source.classes))
        levels.append(Level(what, severity, counts.images, len(survey.unreadable), wilson(counts.top1, counts.images)))
        spent = survey.spent if spent is None else spent + survey.spent
        notes |= dict.fromkeys((*match.notes, *convention.note(len(source))))
    assert spent is not None
    result = Corruptions(name, str(folder), tuple(levels), spent, asker.precision, tuple(notes))
    if out is not None and distributed.is_main():
        write_atomic(Path(out) / "result.json", (json.dumps(result.to_dict(), indent=1) + "\n").encode())
    return result


def find_levels(folder: str | Path) -> list[tuple[str, int, Path]]:
    """(corruption, severity, folder) of everything below; groups (noise, blur, weather, digital, extra) may be left out."""
    base = Path(folder).expanduser()
    if not base.is_dir():
        raise DataError(f"{folder}: no such folder.", hint="the folder that the archives of ImageNet-C were unpacked in")
    below = [base, *sorted(p for p in base.iterdir() if p.is_dir() and p.name not in (*ALEXNET, *FURTHER))]
    places = {p.name: p for parent in below for p in sorted(parent.iterdir()) if p.is_dir() and p.name in (*ALEXNET, *FURTHER)}
    found = [
        (name, severity, places[name] / str(severity))
        for name in (*ALEXNET, *FURTHER)
        for severity in SEVERITIES
        if name in places and (places[name] / str(severity)).is_dir()
    ]
    if not found:
        raise DataError(
            f"{folder} holds no corruption of ImageNet-C ({', '.join(list(ALEXNET)[:3])}, …).", hint="NAME/gaussian_noise/1/n01440764/…"
        )
    return found


def refuse_other_options(options: dict[str, Any]) -> dict[str, Any]:
    """The options of `vitrail eval` that make sense here; the others were asked for in vain."""
    for name in ("split", "class_map", "restrict", "real", "calibrate", "speed"):
        if options.pop(name, None):
            raise UsageError(f"--{name.replace('_', '-')} does not go together with --protocol imagenet-c.")
    options.pop("bootstrap", None)
    return options
