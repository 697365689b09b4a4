"""`study`: every cell of a small study, each seed of it, then the table, the figure and the verdicts.

study("positions", minutes=30)                 builtin:fashion, on a CPU
study("data-size", data="/data/tiny-imagenet-200", out="runs/fig4")

OUT/study.json      what was settled when the study began; the same call goes on from there
OUT/cells/          a file a finished cell      OUT/figure.png, report.md, result.json
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from vitrail.errors import UsageError
from vitrail.runtime.device import describe_device, pick_device
from vitrail.runtime.disk import write_atomic
from vitrail.runtime.lock import RunLock
from vitrail.runtime.progress import Progress, duration
from vitrail.study.mini.cells import CellResult, Setting, cell_file, run_cell
from vitrail.study.mini.design import Cell
from vitrail.study.mini.designs import design
from vitrail.study.mini.halves import halves
from vitrail.study.mini.scale import SCALES, scale_of
from vitrail.study.mini.table import Study

__all__ = ["Settled", "study"]

FEWEST_STEPS = 20
PROBES = (1, 5, 45)  # steps of the trial runs by which the length is settled; the first only warms up


@dataclass(frozen=True)
class Settled:
    """What two calls on one folder have to agree on (more seeds may be asked for later)."""

    study: str
    data: str
    transfer: str | None
    size: str
    steps: int


def study(
    name: str,
    *,
    data: str = "builtin:fashion",
    transfer: str | None = None,
    minutes: float | None = None,
    steps: int | None = None,
    seeds: int = 3,
    size: str = "auto",
    out: str | Path | None = None,
    device: str | None = None,
    progress: bool = True,
) -> Study:
    """Run a small study, or go on with it.

    transfer: images to measure on; without it, classes of `data` are held back
    minutes: the length of the runs is chosen so that all of them take about so long; steps: chosen by you
    size: "cpu" or "gpu", how large the models are
    """
    if minutes is not None and steps is not None:
        raise UsageError("--minutes chooses the number of steps, and --steps gives it: say one.")
    place = pick_device(device)
    size = ("gpu" if place.type == "cuda" else "cpu") if size == "auto" else size
    if size not in SCALES:
        raise UsageError(f"There is no size {size!r}.", hint=f"one of: {', '.join(SCALES)}")
    scale = scale_of(size)
    plan = design(name, scale)
    folder = Path(out) if out is not None else Path("runs") / f"mini-{name}"
    (folder / "cells").mkdir(parents=True, exist_ok=True)
    with RunLock(folder), Progress(quiet=not progress) as line:
        up, down = halves(data, transfer, folder / "data")
        stored = _stored(folder)
        asked = steps or (stored.steps if stored else None)
        if asked is None:
            rough = Setting(plan, scale, up, down, scale.recipe.train.steps or FEWEST_STEPS, folder, device)
            asked = rough.steps if minutes is None else steps_for(rough, minutes, seeds, line)
        settled = Settled(name, data, transfer, size, asked)
        _agree(folder, stored, settled)
        setting = Setting(plan, scale, up, down, settled.steps, folder, device)
        results = _run(setting, seeds, line)
        found = Study(plan, tuple(results), seeds, settled.steps, describe_device(place), up.what, down.what)
        found.write(folder)
        return found


def _run(setting: Setting, seeds: int, line: Progress) -> list[CellResult]:
    """Seed by seed, so that a study that is stopped has whole rounds."""
    todo = [(cell, seed) for seed in range(seeds) for cell in setting.design.cells]
    missing = [one for one in todo if not cell_file(*one, setting.out).is_file()]
    results, ran, spent = [], 0, 0.0
    for number, (cell, seed) in enumerate(todo, 1):
        result = run_cell(cell, seed, setting)
        results.append(result)
        if (cell, seed) in missing:
            ran, spent = ran + 1, spent + result.seconds
            left = duration(spent / ran * (len(missing) - ran))
            line.say(f"{number}/{len(todo)}  {cell.name}, seed {seed}: {result.accuracy:.1f} %   about {left} left")
    return results


# ---------------------------------------------------------------- settling


def steps_for(setting: Setting, minutes: float, seeds: int, line: Progress) -> int:
    """Steps a run so that all runs fit: short trial runs of each kind of cell tell a step's cost and what comes with a run."""
    line.say("measuring the speed of each kind of cell")
    began = time.monotonic()
    kinds: dict[tuple[str, str], list[Cell]] = {}
    for cell in setting.design.cells:
        kinds.setdefault((repr(cell.model), cell.pretrain), []).append(cell)
    fixed = a_step = 0.0
    for cells in kinds.values():
        largest = max(cells, key=lambda cell: cell.percent)
        _, short, long = (_seconds(largest, setting, steps) for steps in PROBES)
        slope = max(1e-6, (long - short) / (PROBES[2] - PROBES[1]))
        a_step += slope * len(cells)
        fixed += max(0.0, short - slope * PROBES[1]) * len(cells)
    tried = time.monotonic() - began
    steps = int(((minutes * 60 - tried) / seeds - fixed) / a_step)
    if steps < FEWEST_STEPS:
        need = (tried + seeds * (fixed + FEWEST_STEPS * a_step)) / 60
        raise UsageError(
            f"{len(setting.design.cells)} cells and {seeds} seeds do not fit into {minutes:g} minutes on this machine.",
            hint=f"--minutes {math.ceil(need)} or more, or fewer --seeds",
        )
    return steps


def _seconds(cell: Cell, setting: Setting, steps: int) -> float:
    from tempfile import TemporaryDirectory

    with TemporaryDirectory() as folder:
        trial = Setting(setting.design, setting.scale, setting.up, setting.down, steps, Path(folder), setting.device)
        (trial.out / "cells").mkdir()
        return run_cell(cell, 0, trial).seconds


def _stored(folder: Path) -> Settled | None:
    path = folder / "study.json"
    if not path.is_file():
        return None
    return Settled(**json.loads(path.read_text(encoding="utf-8")))


def _agree(folder: Path, stored: Settled | None, settled: Settled) -> None:
    if stored is None:
        write_atomic(folder / "study.json", json.dumps(asdict(settled), indent=1).encode())
    elif stored != settled:
        differ = [
            f"{key} {value!r}, now {asdict(settled)[key]!r}" for key, value in asdict(stored).items() if value != asdict(settled)[key]
        ]
        raise UsageError(f"{folder} holds another study: {'; '.join(differ)}.", hint="choose another --out")
