"""Recipes that cannot work are questioned before they run: minutes now instead of hours later."""

from __future__ import annotations

from typing import Any

import numpy as np

from vitrail.config import Recipe
from vitrail.data.source import Source
from vitrail.errors import DataError, UsageError
from vitrail.runtime import distributed
from vitrail.train.stream import Sources

__all__ = ["question"]

FEWEST_PATCHES = 16  # a grid of 4 x 4
SUPERVISED = ("softmax", "sigmoid", "bce")


def question(recipe: Recipe, sources: Sources, config: Any) -> None:
    """Raise what no override can cure; raise what looks wrong unless `train.sure=true`."""
    check_labels(recipe, sources)
    check_batch(recipe)
    check_keys(recipe)
    doubts = list(doubts_about(recipe, len(sources.train), config))
    if doubts and not recipe.train.sure:
        text, hint = doubts[0]
        more = f" (and {len(doubts) - 1} more doubts)" if len(doubts) > 1 else ""
        raise UsageError(f"{text}{more}", hint=f"{hint}; to run it all the same: train.sure=true")


def check_labels(recipe: Recipe, sources: Sources) -> None:
    """What the objective needs of the labels."""
    source, loss = sources.train, recipe.objective.loss
    if loss not in SUPERVISED:
        return
    asked = recipe.model.classes
    if asked is not None and asked != len(source.classes):
        raise DataError(
            f"model.classes={asked}, and {source.name} has {len(source.classes)} classes.",
            hint="leave model.classes out to take the data's",
        )
    if source.multilabel:
        if loss == "softmax":
            raise UsageError(f"{source.name} has several labels an image, and softmax allows one.", hint="objective.loss=sigmoid")
        return
    labels = np.asarray(source.labels)
    if not np.all(labels >= 0):
        raise DataError(
            f"{int((labels < 0).sum()):,} of {len(labels):,} images in {source.name} have no label.",
            hint="train on labelled images, or use a recipe that needs none: vitrail train mae",
        )
    if len(source.classes) < 2:
        raise DataError(f"{source.name} has {len(source.classes)} class; there is nothing to tell apart.")
    check_held(source, sources.held)


def check_held(source: Source, held: Source | None) -> None:
    if held is not None and held.fingerprint == source.fingerprint:
        raise DataError(
            f"{source.name}: the images to measure on are the training images.",
            hint="data.eval_split=… names others; data.eval_split=nothing measures nothing",
        )


def check_batch(recipe: Recipe) -> None:
    batch, world = recipe.train.batch_size, distributed.world()
    if batch < 1 or batch % world:
        lower = batch - batch % world
        raise UsageError(
            f"A batch of {batch} does not divide among {world} ranks.", hint=f"train.batch_size={lower or world} or {lower + world}"
        )


def check_keys(recipe: Recipe) -> None:
    """Keys that exclude or need one another."""
    if recipe.train.sharded_checkpoints and recipe.train.compact_checkpoints:
        raise UsageError("train.sharded_checkpoints writes every bit, train.compact_checkpoints half of them.", hint="set one of the two")
    if recipe.objective.more_teachers and recipe.objective.teacher is None:
        raise UsageError("objective.more_teachers are there, and no objective.teacher.", hint="objective.teacher is the first of them")


def doubts_about(recipe: Recipe, examples: int, config: Any) -> list[tuple[str, str]]:
    """(what looks wrong, what would be better)."""
    doubts = []
    patches = config.grid[0] * config.grid[1]
    if recipe.model.weights is None and hasattr(config, "patch_size") and patches < FEWEST_PATCHES:
        rows, columns = config.image_size
        better = max(1, min(rows, columns) // 8)
        doubts.append(
            (
                f"{recipe.model.name} cuts images of {rows}x{columns} pixels into {patches} patches; from scratch that teaches it little.",
                f"model.name={recipe.model.name.partition('/')[0]}/{better} has {rows // better}x{columns // better} patches, "
                "a larger model.image_size more, and model.weights=… need not start from nothing",
            )
        )
    batch = recipe.train.batch_size
    if batch > examples:
        doubts.append(
            (f"A batch of {batch} is more than the {examples} training images there are.", f"train.batch_size={largest_batch(examples)}")
        )
    steps, warmup = recipe.total_steps(examples), recipe.warmup_steps(examples)
    if warmup >= steps:
        doubts.append(
            (
                f"The run has {steps} steps and its warm-up {warmup}: it would end before the learning rate is reached.",
                f"schedule.warmup_steps={max(0, steps // 10)}, or a longer run",
            )
        )
    return doubts


def largest_batch(examples: int) -> int:
    """A power of two with at least eight batches an epoch."""
    return 1 << max(0, (examples // 8).bit_length() - 1)
