"""What a sweep has found out: its runs, the images they used, the result; and the file it is kept in.

out/sweep.json     {"recipe", "splits", "trials": {point: Trial}, "finals": {point and seed: Trial}}
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from vitrail.config import Recipe, diff, from_dict, to_dict
from vitrail.errors import UsageError
from vitrail.evaluate.intervals import Interval, over_seeds, wilson
from vitrail.runtime import distributed
from vitrail.runtime.disk import write_atomic
from vitrail.runtime.progress import duration

__all__ = ["Book", "Splits", "SweepResult", "Trial"]


@dataclass(frozen=True)
class Splits:
    """Which images do what. `dev` is never a part of `test`."""

    search: str  # trained on while choosing
    dev: str  # chosen by
    train: str  # trained on in the end
    test: str | None  # measured on in the end; None: as the recipe says


@dataclass(frozen=True)
class Trial:
    """One finished run: a point on the development images, or a final one on the test images."""

    point: dict[str, Any]
    name: str
    seed: int
    value: float | None  # of the metric, by the last weights; None: the run failed
    images: int
    steps: int
    seconds: float
    path: str
    failed: str = ""

    def interval(self, metric: str) -> Interval | None:
        """Of a share of images; other metrics have none."""
        if self.value is None or not metric.startswith("top"):
            return None
        return wilson(round(self.value * self.images), self.images)

    def shown(self, metric: str) -> str:
        if self.value is None:
            return f"failed: {self.failed}"
        sure = self.interval(metric)
        return sure.percent() if sure is not None else f"{metric} {self.value:.4f}"


@dataclass(frozen=True)
class SweepResult:
    """What was tried, what was chosen, and what it gives."""

    path: Path
    recipe: str
    metric: str
    splits: Splits
    trials: tuple[Trial, ...]
    best: Trial
    finals: tuple[Trial, ...]
    notes: tuple[str, ...] = ()

    @property
    def values(self) -> list[float]:
        return [trial.value for trial in self.finals if trial.value is not None]

    @property
    def mean(self) -> Interval | None:
        """Of the final runs, with Student's interval over the seeds."""
        return over_seeds(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def weights(self) -> Path | None:
        """The first final run's model."""
        return Path(self.finals[0].path) / "last.safetensors" if self.finals else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "metric": self.metric,
            "splits": asdict(self.splits),
            "trials": [asdict(trial) for trial in self.trials],
            "best": asdict(self.best),
            "finals": [asdict(trial) for trial in self.finals],
            "mean": self.mean.to_dict() if self.mean else None,
            "deviation": self.deviation,
            "notes": list(self.notes),
            "weights": str(self.weights) if self.weights else None,
            "out": str(self.path),
        }

    def __str__(self) -> str:
        lines = [f"{len(self.trials)} points, chosen by {self.metric} on {self.splits.dev} ({self.best.images:,} images)"]
        width = max(len(trial.name) for trial in self.trials)
        for trial in self.trials:
            mark = "*" if trial == self.best else " "
            lines.append(f"{mark} {trial.name:{width}s}  {trial.shown(self.metric)}  {trial.steps:,} steps, {duration(trial.seconds)}")
        if self.finals:
            lines.append(f"{self.best.name}, trained on {self.splits.train}")
            lines += [f"  seed {trial.seed:<{max(1, width - 5)}d}  {trial.shown(self.metric)}" for trial in self.finals]
            lines.append(self._summary())
        lines += [f"note: {note}" for note in self.notes]
        lines.append(f"next  vitrail inspect {self.weights}" if self.weights else f"next  {self.path / 'sweep.json'} holds every figure")
        return "\n".join(lines)

    def _summary(self) -> str:
        share = self.metric.startswith("top")
        scale, unit = (100.0, " %") if share else (1.0, "")
        spread = f" ± {scale * self.deviation:.2f}" if self.deviation is not None else ""
        return (
            f"mean  {scale * fmean(self.values):.2f}{spread}{unit} over {len(self.values)} seeds"
            if self.values
            else "every final run failed"
        )


@dataclass
class Book:
    """sweep.json: rank 0 writes it after every run, every rank knows what it says."""

    path: Path
    recipe: Recipe
    trials: dict[str, Trial] = field(default_factory=dict)
    finals: dict[str, Trial] = field(default_factory=dict)
    splits: Splits | None = None

    def open(self, splits: Splits) -> None:
        """Take up what an earlier call found out; refuse another recipe's."""
        saved = distributed.broadcast_object(self._read() if distributed.is_main() else None)
        self.splits = splits
        if saved is None:
            return
        changes = [
            change for change in diff(from_dict(saved["recipe"]), self.recipe) if change.kind != "free" or change.key == "data.train"
        ]
        told = [str(change) for change in changes]
        if saved["splits"] != asdict(splits):
            told.append(f"splits: {saved['splits']} -> {asdict(splits)}")
        if told:
            raise UsageError(
                f"{self.path} holds a sweep of another recipe:\n  " + "\n  ".join(told),
                hint="choose another --out, or the recipe it began with",
            )
        self.trials = {name: Trial(**body) for name, body in saved["trials"].items()}
        self.finals = {name: Trial(**body) for name, body in saved["finals"].items()}

    def _read(self) -> dict[str, Any] | None:
        try:
            return json.loads((self.path / "sweep.json").read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UsageError(f"{self.path / 'sweep.json'} cannot be read ({error}).", hint="choose another --out") from None

    def write(self) -> None:
        if not distributed.is_main():
            return
        assert self.splits is not None
        body = {
            "recipe": to_dict(self.recipe),
            "splits": asdict(self.splits),
            "trials": {name: asdict(trial) for name, trial in self.trials.items()},
            "finals": {name: asdict(trial) for name, trial in self.finals.items()},
        }
        write_atomic(self.path / "sweep.json", (json.dumps(body, indent=1) + "\n").encode())
