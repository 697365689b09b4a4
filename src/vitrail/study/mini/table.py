"""What a small study found: a table with intervals, the verdicts on the paper's claims, the figure, all three in files."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from vitrail.evaluate.intervals import Interval, over_seeds
from vitrail.runtime.disk import write_atomic
from vitrail.runtime.progress import duration
from vitrail.study.cost import core_days
from vitrail.study.mini.cells import DRAWS, LABELLED, SHOTS, CellResult
from vitrail.study.mini.design import Cell, Design, Verdict
from vitrail.study.mini.plot import draw

__all__ = ["Line", "Study"]


@dataclass(frozen=True)
class Line:
    """One cell over its seeds. Accuracies in per cent."""

    cell: Cell
    accuracy: Interval
    upstream: float | None
    results: tuple[CellResult, ...]

    @property
    def x(self) -> float:
        """Its place on the figure's axis: as designed, else its compute."""
        return self.cell.x if self.cell.x is not None else self.results[0].exaflops


@dataclass(frozen=True)
class Study:
    design: Design
    results: tuple[CellResult, ...]
    seeds: int
    steps: int
    device: str
    upstream: str
    downstream: str

    @cached_property
    def lines(self) -> tuple[Line, ...]:
        lines = []
        for cell in self.design.cells:
            mine = tuple(result for result in self.results if result.cell == cell.name)
            known = [result.upstream for result in mine if result.upstream is not None]
            upstream = sum(known) / len(known) if known else None
            lines.append(Line(cell, over_seeds([result.accuracy for result in mine]), upstream, mine))
        return tuple(lines)

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        return tuple(self.design.judge({line.cell.name: [result.accuracy for result in line.results] for line in self.lines}))

    @property
    def exaflops(self) -> float:
        return sum(result.exaflops for result in self.results)

    @property
    def seconds(self) -> float:
        return sum(result.seconds for result in self.results)

    @property
    def joules(self) -> float | None:
        known = [result.joules for result in self.results if result.joules is not None]
        return sum(known) if len(known) == len(self.results) else None

    def protocol(self) -> str:
        """One sentence on what was done."""
        how = (
            f"then fine-tuned on {LABELLED} % of the training images of"
            if self.design.finetune
            else f"then frozen and measured by {SHOTS}-shot least squares (mean of {DRAWS} draws) on"
        )
        runs = f"{self.seeds} seed{'s' if self.seeds > 1 else ''}"
        return f"{self.steps:,} steps a run on {self.upstream}, {how} {self.downstream}; {runs}; {self.device}"

    def cost(self) -> str:
        low, high = core_days(self.exaflops)
        energy = "" if self.joules is None else f", {self.joules / 3.6e6:.2g} kWh of the GPU"
        return (
            f"{self.exaflops:.3g} exaFLOPs in {duration(self.seconds)}{energy} "
            f"({low * 86400:.2g} to {high * 86400:.2g} TPUv3-core-seconds at the paper's pace)"
        )

    def to_dict(self) -> dict[str, Any]:
        return {
            "study": self.design.name,
            "targets": list(self.design.targets),
            "protocol": self.protocol(),
            "measure": self.design.measure,
            "cells": [
                {
                    "cell": line.cell.name,
                    "series": line.cell.series,
                    "x": line.x,
                    "accuracy": line.accuracy.to_dict(),
                    "upstream": line.upstream,
                    "runs": [result.to_dict() for result in line.results],
                }
                for line in self.lines
            ],
            "verdicts": [verdict.to_dict() for verdict in self.verdicts],
            "exaflops": self.exaflops,
            "seconds": self.seconds,
            "joules": self.joules,
            "note": self.design.note,
        }

    def __str__(self) -> str:
        width = max(len(line.cell.name) for line in self.lines)
        lines = [f"{self.design.title} (small form of {', '.join(self.design.targets)})", f"  {self.protocol()}"]
        lines += [f"  {self.design.note}"] if self.design.note else []
        lines += [
            "",
            f"  {'cell':{width}s}  {self.design.measure + ' (95 %)':>26s} {'upstream':>9s} {'MMACs':>7s} {'images':>9s} {'exaFLOPs':>9s}",
        ]
        for line in self.lines:
            first, upstream = line.results[0], f"{line.upstream:.1f}" if line.upstream is not None else "-"
            lines.append(
                f"  {line.cell.name:{width}s}  {interval(line.accuracy):>26s} {upstream:>9s} {first.macs / 1e6:7.1f} "
                f"{first.images:9,d} {first.exaflops:9.2g}"
            )
        lines.append("")
        lines += [f"  {verdict.word:13s} {verdict.claim} {verdict.found}" for verdict in self.verdicts]
        return "\n".join([*lines, f"  cost          {self.cost()}"])

    def markdown(self) -> str:
        """The same as a page, for benchmarks/results."""
        rows = [_row(line) for line in self.lines]
        head = f"| cell | {self.design.measure} | upstream top-1, % | MMACs | different images | images seen | exaFLOPs a run |"
        return "\n".join(
            [
                f"# {self.design.title}, small",
                "",
                f"The small form of {', '.join(self.design.targets)}. {self.protocol()}. {self.design.note}".rstrip(),
                "Intervals are 95 %, Student's t over the seeds.",
                "",
                "![figure](figure.png)",
                "",
                head,
                "| --- | --- | --- | --- | --- | --- | --- |",
                *rows,
                "",
                "| claim of the paper | at this scale | found |",
                "| --- | --- | --- |",
                *(f"| {verdict.claim} | **{verdict.word}** | {verdict.found} |" for verdict in self.verdicts),
                "",
                f"Cost: {self.cost()}.",
                "",
            ]
        )

    def write(self, folder: Path) -> None:
        """report.md, result.json, and figure.png where matplotlib is installed."""
        write_atomic(folder / "result.json", json.dumps(self.to_dict(), indent=1).encode())
        write_atomic(folder / "report.md", self.markdown().encode())
        draw(
            self.design,
            [(line.cell, line.x, line.accuracy, [result.accuracy for result in line.results]) for line in self.lines],
            folder / "figure.png",
        )


def _row(line: Line) -> str:
    first, upstream = line.results[0], "-" if line.upstream is None else f"{line.upstream:.1f}"
    seen = f"{first.train_images:,} | {first.images:,} | {first.exaflops:.2g}"
    return f"| {line.cell.name} | {interval(line.accuracy)} | {upstream} | {first.macs / 1e6:.1f} | {seen} |"


def interval(value: Interval) -> str:
    if value.low != value.low:
        return f"{value.value:.1f} (one seed)"
    return f"{value.value:.1f} [{value.low:.1f}, {value.high:.1f}]"
