"""How many images go through a device at once, without changing what a step computes."""

from __future__ import annotations

from typing import Any

import torch

from vitrail.config import Recipe
from vitrail.errors import UsageError
from vitrail.runtime.device import Precision
from vitrail.weights.archive import available_memory

__all__ = ["activation_bytes", "first_micro_batch"]

CPU_SHARE, GPU_SHARE = 0.25, 0.85  # of the free memory that activations may take


def first_micro_batch(recipe: Recipe, config: Any, share: int, device: torch.device, precision: Precision) -> int:
    """The size to begin with: as asked, else the largest part of the share that an estimate allows.

    A GPU that runs out of memory all the same says so, and the step halves what it takes; a CPU's process is killed.
    """
    asked = recipe.train.micro_batch_size
    if asked is not None:
        if asked < 1:
            raise UsageError(f"train.micro_batch_size must be at least 1, not {asked}.")
        return largest_divisor(share, min(asked, share))
    if device.type not in ("cpu", "cuda"):
        return share
    spec = recipe.train
    held = activation_bytes(config, precision, flash=device.type == "cuda", recompute=spec.checkpoint_blocks, lean=spec.save_memory)
    return largest_divisor(share, max(1, min(share, int(free_bytes(device) / held))))


def free_bytes(device: torch.device) -> float:
    if device.type == "cuda":
        return GPU_SHARE * torch.cuda.mem_get_info(device)[0]
    return CPU_SHARE * available_memory()


def activation_bytes(config: Any, precision: Precision, *, flash: bool, recompute: bool = False, lean: bool = False) -> int:
    """What the backward pass needs of one image, roughly: every layer's inputs (recomputed blocks keep only their own)."""
    size = 8 if precision.name == "fp64" else 2 if precision.name in ("bf16", "fp16", "fp8") else 4
    if hasattr(config, "depth"):
        layer = 14 * config.width + 3 * config.mlp_width + (0 if flash else config.heads * config.tokens)
        of_each = config.width if recompute else 8 * config.width if lean else layer
        kept = config.depth * of_each + (layer if recompute or lean else 0)
        return int(size * config.tokens * kept)
    rows, columns = config.image_size
    return int(size * rows * columns * config.width * 3 * sum(config.layers) / 4)


def largest_divisor(number: int, most: int) -> int:
    return next(n for n in range(most, 0, -1) if number % n == 0)
