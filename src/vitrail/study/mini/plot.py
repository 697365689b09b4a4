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
    every = list(dict.fromkeys(cell.series for cell, *_ in points))
    for number, series in enumerate(every):
        colour = COLOURS[number % len(COLOURS)]
        mine = sorted((point for point in points if point[0].series == series), key=lambda point: point[1])
        places = [beside(x, number - (len(every) - 1) / 2, design) for _, x, _, _ in mine]
        means = [mean for _, _, mean, _ in mine]
        axes.errorbar(places, [mean.value for mean in means], yerr=errors(means), color=colour, marker="o", capsize=3, label=series)
        for x, (_, _, _, seeds) in zip(places, mine):
            axes.plot([x] * len(seeds), seeds, ".", color=colour, alpha=0.35)
    if design.x_log:
        axes.set_xscale("log")
    shared = sorted({x for _, x, _, _ in points})
    if len(shared) * len(every) == len(points):  # the same places for every series: name them
        axes.set_xticks(shared, [f"{x:g}" for x in shared])
        axes.minorticks_off()
    axes.set_xlabel(design.x_label)
    axes.set_ylabel(design.measure)
    axes.legend()
    axes.grid(alpha=0.3)


def beside(x: float, number: float, design: Design) -> float:
    """A little to the side, so that the intervals of series at one place can be told apart."""
    return x if design.x_compute else x * 1.04**number if design.x_log else x + 0.02 * number


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
