"""The figure of a small study: a line a series over the design's axis, or a row a cell; every seed is a faint dot."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitrail.evaluate.intervals import Interval
from vitrail.study.mini.design import Cell, Design

__all__ = ["draw"]

COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
Point = tuple[Cell, float, Interval, Sequence[float]]  # cell, x, mean over the seeds, each seed


def draw(design: Design, points: Sequence[Point], path: Path) -> Path | None:
    """Draw to a PNG; None where matplotlib is not installed (the extra `plots`)."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    figure = Figure(figsize=(7.5, 4.5), layout="constrained")
    axes = figure.subplots()
    (over_x if design.x_label else by_row)(design, points, axes)
    axes.set_title(design.title, fontsize=11)
    figure.savefig(path, dpi=130)
    return path


def over_x(design: Design, points: Sequence[Point], axes: Any) -> None:
    for number, series in enumerate(dict.fromkeys(cell.series for cell, *_ in points)):
        colour = COLOURS[number % len(COLOURS)]
        mine = sorted((point for point in points if point[0].series == series), key=lambda point: point[1])
        axes.errorbar(
            [x for _, x, _, _ in mine], [mean.value for _, _, mean, _ in mine], yerr=errors([mean for _, _, mean, _ in mine]),
            color=colour, marker="o", capsize=3, label=series,
        )  # fmt: skip
        for _, x, _, seeds in mine:
            axes.plot([x] * len(seeds), seeds, ".", color=colour, alpha=0.35)
    if design.x_log:
        axes.set_xscale("log")
    axes.set_xlabel(design.x_label)
    axes.set_ylabel(design.measure)
    axes.legend()
    axes.grid(alpha=0.3)


def by_row(design: Design, points: Sequence[Point], axes: Any) -> None:
    rows = range(len(points))
    means = [mean for _, _, mean, _ in points]
    axes.errorbar([mean.value for mean in means], rows, xerr=errors(means), fmt="o", color=COLOURS[0], capsize=3)
    for row, (_, _, _, seeds) in zip(rows, points):
        axes.plot(seeds, [row] * len(seeds), ".", color=COLOURS[1], alpha=0.6)
    axes.set_yticks(list(rows), [cell.name for cell, *_ in points])
    axes.invert_yaxis()
    axes.set_xlabel(f"{design.measure} (bars: 95 % over seeds; dots: seeds)")
    axes.grid(alpha=0.3)


def errors(means: Sequence[Interval]) -> list[list[float]]:
    """Below and above each mean; nothing where one seed gives no interval."""
    return [[0.0 if m.low != m.low else m.value - m.low for m in means], [0.0 if m.high != m.high else m.high - m.value for m in means]]
