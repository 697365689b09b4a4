"""One cell of a small study: train, measure, write the file that says it is done.

OUT/cells/NAME-s0.json      what was measured; there, the cell is not run again
OUT/runs/NAME-s0/           the training run (its checkpoints go when the cell is done)
"""

from __future__ import annotations

import dataclasses
import gc
import json
import re
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from vitrail.config import DataSpec, Recipe
from vitrail.data.source import open_source
from vitrail.evaluate.features import extract_features
from vitrail.evaluate.fewshot import fewshot
from vitrail.model.cost import cost_of, exaflops
from vitrail.runtime.device import pick_device
from vitrail.runtime.disk import write_atomic
from vitrail.runtime.energy import joules
from vitrail.study.mini.design import Cell, Design
from vitrail.study.mini.halves import Half
from vitrail.study.mini.scale import Scale, config
from vitrail.train.loop import TrainResult, train
from vitrail.weights.load import load_model

__all__ = ["CellResult", "Setting", "cell_file", "run_cell"]

SHOTS, DRAWS, POOL = 5, 10, 25  # few-shot: images a class, draws averaged, images a class to draw from
LABELLED = 20  # per cent of the downstream training images that fine-tuning gets
EVALUATIONS = 5  # of the held-out upstream images during a run; the best weights go on


@dataclass(frozen=True)
class Setting:
    """What all cells of a study share."""

    design: Design
    scale: Scale
    up: Half
    down: Half
    steps: int
    out: Path
    device: str | None


@dataclass(frozen=True)
class CellResult:
    """One training and its measure. Accuracies are in per cent."""

    cell: str
    seed: int
    accuracy: float  # the study's measure, downstream
    upstream: float | None  # held-out accuracy of the pre-training, on its own classes
    train_images: int  # different ones
    images: int  # seen, all stages
    macs: int
    parameters: int
    exaflops: float  # all stages
    seconds: float
    joules: float | None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def run_cell(cell: Cell, seed: int, setting: Setting) -> CellResult:
    """The result, from its file if it is there."""
    done = cell_file(cell, seed, setting.out)
    if done.is_file():
        return CellResult(**json.loads(done.read_text(encoding="utf-8")))
    folder, began, device = setting.out / "runs" / done.stem, time.monotonic(), pick_device(setting.device)
    energy = joules(device)
    stages = [] if cell.pretrain == "none" else [_train(_pretraining(cell, seed, setting), folder / "pretrain", setting)]
    weights = stages[0].model if stages else None
    if setting.design.finetune:
        stages.append(_train(_finetuning(cell, seed, setting, weights), folder / "finetune", setting))
        accuracy = 100 * stages[-1].metrics["top1"]
    else:
        assert weights is not None
        accuracy = _fewshot(weights, setting)
    used = joules(device)
    cost = cost_of(config(cell.model))
    result = CellResult(
        cell.name, seed, accuracy, 100 * stages[0].best["top1"] if "top1" in stages[0].best and cell.pretrain == "supervised" else None,
        _count(stages[0]), sum(stage.images for stage in stages), cost.macs, cost.parameters,
        sum(exaflops(config(cell.model), stage.images) for stage in stages), time.monotonic() - began,
        None if energy is None or used is None else used - energy,
    )  # fmt: skip
    write_atomic(done, json.dumps(result.to_dict(), indent=1).encode())
    for checkpoints in folder.glob("*/checkpoints"):
        shutil.rmtree(checkpoints)
    gc.collect()  # pictures that lay on a GPU make room for the next cell's
    return result


def cell_file(cell: Cell, seed: int, out: Path) -> Path:
    """Where a cell's result is, once it is finished."""
    name = re.sub(r"[^A-Za-z0-9]+", "-", cell.name).strip("-")
    return out / "cells" / f"{name}-s{seed}.json"


def _train(recipe: Recipe, folder: Path, setting: Setting) -> TrainResult:
    return train(recipe, folder, device=setting.device, progress=False)


def _count(stage: TrainResult) -> int:
    return int(json.loads((stage.path / "run.json").read_text(encoding="utf-8"))["data"]["examples"])


# ---------------------------------------------------------------- recipes


def _pretraining(cell: Cell, seed: int, setting: Setting) -> Recipe:
    """The scale's recipe on (a part of) the upstream images."""
    part = "" if cell.percent == 100 else f"[:{cell.percent:g}%]"
    recipe = _placed(setting.scale.recipe, setting.up, f"{setting.up.train_split}{part}", setting.steps, seed)
    return changed(dataclasses.replace(recipe, name=f"mini {setting.design.name}: {cell.name}", model=cell.model), cell.changes)


def _finetuning(cell: Cell, seed: int, setting: Setting, weights: Path | None) -> Recipe:
    """The same on a few labelled downstream images; pre-trained weights at a smaller rate, and a new head."""
    split = f"{setting.down.train_split}[:{LABELLED}%]"
    recipe = _placed(setting.scale.recipe, setting.down, split, max(1, setting.steps // 2), seed)
    model = dataclasses.replace(
        cell.model, weights=None if weights is None else str(weights), options=cell.model.options if weights is None else {}
    )
    recipe = dataclasses.replace(recipe, name=f"mini {setting.design.name}: {cell.name}, fine-tuned", model=model)
    return changed(recipe, {} if weights is None else {"optim.lr": 0.3 * recipe.optim.lr})


def _placed(recipe: Recipe, half: Half, split: str, steps: int, seed: int) -> Recipe:
    data: DataSpec = dataclasses.replace(
        recipe.data, train=half.train, train_split=split, eval=half.test, eval_split=half.test_split, workers=half.workers
    )
    return changed(
        dataclasses.replace(recipe, data=data),
        {
            "train.steps": steps,
            "train.seed": seed,
            "schedule.warmup_steps": max(1, steps // 10),
            "eval.every_steps": max(1, -(-steps // EVALUATIONS)),
        },
    )


def changed(recipe: Recipe, changes: Mapping[str, Any]) -> Recipe:
    """A recipe with some values replaced, by dotted key."""
    for key, value in changes.items():
        section, _, name = key.partition(".")
        recipe = dataclasses.replace(recipe, **{section: dataclasses.replace(getattr(recipe, section), **{name: value})})
    return recipe


# ---------------------------------------------------------------- measuring


def _fewshot(weights: Path, setting: Setting) -> float:
    """Mean 5-shot accuracy over the draws, in per cent."""
    model = load_model(str(weights))
    down, whole = setting.down, setting.down.opened(train=True)
    pool = min(POOL * len(whole.classes), len(whole))
    drawn_from = open_source(down.train, f"{down.train_split}[:{pool}]")
    train_features, test_features = (
        extract_features(model, source, cache=False, device=setting.device, workers=down.workers)
        for source in (drawn_from, down.opened(train=False))
    )
    found = fewshot(train=train_features, test=test_features, shots=(SHOTS,), seeds=range(DRAWS), device=setting.device)
    return 100 * fmean(run.accuracy.value for run in found.runs)
