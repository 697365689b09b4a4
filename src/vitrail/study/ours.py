"""Runs of one's own, matched to the rows of a table: "ours" is what they measured, nothing else.

A finished fine-tuning run belongs to (row, column) when its recipe is the column's, its model
the row's, and its weights came from the row's pre-training: from a run of the recipe that
`pretraining_recipe` names, or from a public checkpoint that the row lists. `vitrail vtab` leaves
one file for all its tasks; of it only official splits and the paper's protocol count.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vitrail.config import list_recipes
from vitrail.errors import UsageError
from vitrail.model.names import config_for
from vitrail.study.targets import Row, Target, load_target

__all__ = ["Finished", "finetuning_recipe", "finished_runs", "ours", "pretraining_recipe"]

FINETUNING = {
    "ImageNet": "imagenet",
    "CIFAR-10": "cifar10",
    "CIFAR-100": "cifar100",
    "Oxford-IIIT Pets": "pets",
    "Oxford Flowers-102": "flowers",
}
VTAB = "VTAB (19 tasks)"  # of Table 2; the columns of Table 9 are the tasks, and their mean
AS_PUBLISHED = "fine-tuned as in Table 4"  # what `vitrail vtab` says of the paper's protocol
PRETRAINING = {"JFT-300M": "jft", "ImageNet-21k": "imagenet21k", "ImageNet": "imagenet"}


@dataclass(frozen=True)
class Finished:
    """One finished run, as its run.json tells."""

    path: Path
    recipe: str
    model: str
    weights: str
    seed: int
    top1: float


def pretraining_recipe(row: Row) -> str | None:
    """The packaged recipe of a row's pre-training, where there is one."""
    model = (row.create or row.model).removeprefix("ViT-")
    length = f"-{row.epochs}ep" if row.epochs and row.pretrain != "ImageNet" else ""
    names = [f"table-3:{PRETRAINING.get(row.pretrain, '')}-{model}{length}"]
    if row.optimizer:
        names = [f"table-7:{model}-{row.optimizer.lower()}"]
    return next((name for name in names if name in _recipes()), None)


@cache
def _recipes() -> frozenset[str]:
    return frozenset(list_recipes())


def finetuning_recipe(target: Target, row: Row, column: str) -> str | None:
    """The packaged recipe of a column: Table 4, with Table 2's larger images for ImageNet."""
    short = FINETUNING.get(column)
    if short is None:
        return None
    if short == "imagenet" and target.name == "table-2":
        size = {"ViT-L/16": "@512", "ViT-H/14": "@518"}.get(row.model)
        return f"table-4:imagenet-{row.model.removeprefix('ViT-')}{size}" if size else None
    if short == "imagenet" and not row.model.startswith("ViT-"):
        return "table-4:imagenet-resnet"
    return f"table-4:{short}"


def finished_runs(folder: str | Path) -> list[Finished]:
    """Every finished supervised run, and every measured task of VTAB, at or below a folder."""
    top = Path(folder)
    if not top.is_dir():
        raise UsageError(f"{folder} is no folder of runs.", hint="--runs is where `vitrail train --out` wrote, or a folder above it")
    return [*_finished(top), *_vtab(top)]


def _finished(top: Path) -> Iterator[Finished]:
    from vitrail.runtime.metrics import read_metrics  # imports torch, which a table alone does not need

    for path in sorted(top.rglob("run.json")):
        try:
            told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            recipe = told["recipe"]
            if told["status"] != "finished":
                continue
            measured = [line["eval"]["top1"] for line in read_metrics(path.parent / "metrics.jsonl") if "top1" in line.get("eval", {})]
            if measured:
                weights = recipe["model"]["weights"] or ""
                yield Finished(path.parent, recipe["name"], recipe["model"]["name"], weights, int(told["seed"]), float(measured[-1]))
        except (OSError, ValueError, KeyError):
            continue  # not a run of ours, or one that is being written


def _vtab(top: Path) -> Iterator[Finished]:
    """The tasks of each vtab.json; their mean too, for a seed that has all of them."""
    tasks = set(load_target("table-9").columns) - {"Mean"}
    for path in sorted(top.rglob("vtab.json")):
        try:
            told: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            weights, runs = (
                str(told["about"]["model"]),
                [run for run in told["runs"].values() if run["official"] and run["how"] == AS_PUBLISHED],
            )
            found: dict[int, dict[str, float]] = {}
            for run in runs:
                found.setdefault(int(run["seed"]), {})[run["task"]] = run["right"] / run["images"]
        except (OSError, ValueError, KeyError, TypeError, ZeroDivisionError):
            continue
        for seed, by_task in found.items():
            if tasks <= by_task.keys():
                by_task["Mean"] = sum(by_task[task] for task in tasks) / len(tasks)
            for task, top1 in by_task.items():
                yield Finished(path.parent, f"vtab:{task}", "", weights, seed, top1)


def ours(target: Target, row: Row, column: str, runs: list[Finished]) -> tuple[Finished, ...]:
    """The runs that belong to a number of the paper."""
    if target.name == "table-9" or column == VTAB:
        recipe = f"vtab:{'Mean' if column == VTAB else column}"
        return tuple(run for run in runs if run.recipe == recipe and _came_from(run, row))
    named = finetuning_recipe(target, row, column)
    if named is None:
        return ()
    return tuple(run for run in runs if run.recipe == named and _same_model(run.model, row) and _came_from(run, row))


def _same_model(name: str, row: Row) -> bool:
    try:
        return config_for(name, image_size=224) == config_for(row.create or row.model, image_size=224)
    except UsageError:
        return False


def _came_from(run: Finished, row: Row) -> bool:
    if any(run.weights.removeprefix("hf://") == known.removeprefix("hf://") for known in row.weights):
        return True
    recipe, origin = pretraining_recipe(row), Path(run.weights).parent / "run.json"
    if recipe is None or not run.weights or not origin.is_file():
        return False
    try:
        return bool(json.loads(origin.read_text(encoding="utf-8"))["recipe"]["name"] == recipe)
    except (ValueError, KeyError, TypeError):
        return False
