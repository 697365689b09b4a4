"""How many images fit on a device at once, without changing what a step computes."""

from __future__ import annotations

import os
from typing import Any

import torch

from vitrail.config import Recipe
from vitrail.errors import UsageError

__all__ = ["activation_bytes", "first_micro_batch"]

CPU_SHARE = 0.25  # of the free memory that activations may take


def first_micro_batch(recipe: Recipe, config: Any, share: int, device: torch.device) -> int:
    """The size to begin with: as asked, else the whole share, or on a CPU what memory clearly allows.

    A GPU that runs out of memory says so, and the step halves what it takes; a CPU is killed.
    """
    asked = recipe.train.micro_batch_size
    if asked is not None:
        if asked < 1:
            raise UsageError(f"train.micro_batch_size must be at least 1, not {asked}.")
        return largest_divisor(share, min(asked, share))
    if device.type != "cpu":
        return share
    free = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return largest_divisor(share, max(1, min(share, int(CPU_SHARE * free / activation_bytes(config)))))


def activation_bytes(config: Any) -> int:
    """Of one image in training, in float32, roughly: what each layer keeps for the backward pass."""
    if hasattr(config, "depth"):
        return int(4 * config.depth * config.tokens * (10 * config.width + 2 * config.mlp_width + config.heads * config.tokens))
    rows, columns = config.image_size
    return int(4 * rows * columns * config.width * 3 * sum(config.layers) / 4)


def largest_divisor(number: int, most: int) -> int:
    return next(n for n in range(most, 0, -1) if number % n == 0)
