"""What a small study is: cells (one training each, times the seeds), what is measured, and how its claim is judged."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any, Literal

from vitrail.config import ModelSpec
from vitrail.evaluate.intervals import Interval, difference

__all__ = ["Cell", "Design", "Figures", "Verdict", "at_least", "compare"]

Figures = Mapping[str, Sequence[float]]  # cell -> what was measured, in per cent, one a seed


@dataclass(frozen=True)
class Cell:
    """One point of a design. Every cell trains on the upstream images and is measured on the downstream ones."""

    name: str
    series: str  # the line it belongs to in the figure
    model: ModelSpec
    x: float | None = None  # its place on the figure's axis; None: its compute, or a place of its own
    changes: Mapping[str, Any] = field(default_factory=dict)  # recipe keys over the study's
    percent: float = 100.0  # of the upstream images
    pretrain: Literal["supervised", "masked", "none"] = "supervised"


@dataclass(frozen=True)
class Verdict:
    """A claim of the paper beside what was found at this scale."""

    claim: str
    found: str
    holds: bool | None  # None: the seeds do not decide

    def to_dict(self) -> dict[str, Any]:
        return {"claim": self.claim, "found": self.found, "verdict": self.word}

    @property
    def word(self) -> str:
        return {True: "holds", False: "does not hold", None: "not decided"}[self.holds]


@dataclass(frozen=True)
class Design:
    """A grid of cells. `finetune`: measured by fine-tuning downstream; otherwise by 5-shot least squares."""

    name: str
    title: str
    targets: tuple[str, ...]  # what of the paper it is the small form of
    cells: tuple[Cell, ...]
    judge: Callable[[Figures], list[Verdict]]
    x_label: str = ""
    x_log: bool = False
    x_compute: bool = False  # x is the compute of each run
    finetune: bool = False
    note: str = ""

    @property
    def measure(self) -> str:
        return "top-1 after fine-tuning, %" if self.finetune else "5-shot linear top-1, %"


def compare(claim: str, better: str, a: Sequence[float], worse: str, b: Sequence[float]) -> Verdict:
    """Whether a is above b: by Welch's interval of the difference, decided only where it leaves out zero."""
    gap = difference(a, b)
    return Verdict(claim, f"{better} {fmean(a):.1f}, {worse} {fmean(b):.1f}: {points(gap)}", sign(gap))


def at_least(claim: str, one: str, a: Sequence[float], other: str, b: Sequence[float], margin: float) -> Verdict:
    """Whether a is no more than `margin` points below b."""
    gap = difference(a, b)
    holds = True if gap.low >= -margin else False if gap.high < -margin else None
    return Verdict(claim, f"{one} {fmean(a):.1f}, {other} {fmean(b):.1f}: {points(gap)}, allowed {-margin:g}", holds)


def points(gap: Interval) -> str:
    if gap.low != gap.low:
        return f"difference {gap.value:+.1f} points (one seed: no interval)"
    return f"difference {gap.value:+.1f} points [{gap.low:+.1f}, {gap.high:+.1f}]"


def sign(gap: Interval) -> bool | None:
    return True if gap.low > 0 else False if gap.high < 0 else None
