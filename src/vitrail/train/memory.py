"""What fits: whether a model does at all, and how many images go through at once, without changing what a step computes."""

from __future__ import annotations

from typing import Any

import torch

from vitrail.config import Recipe
from vitrail.errors import UsageError
from vitrail.model.cost import cost_of
from vitrail.runtime import distributed
from vitrail.runtime.device import Precision
from vitrail.weights.archive import available_memory

__all__ = ["activation_bytes", "first_micro_batch", "question_memory"]

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
    """What activations may take."""
    return (GPU_SHARE if device.type == "cuda" else CPU_SHARE) * room_on(device)


def room_on(device: torch.device) -> int:
    return torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()


def question_memory(recipe: Recipe, config: Any, device: torch.device, precision: Precision) -> None:
    """Refuse a model whose weights and optimizer cannot fit, before anything is moved; `train.sure` tries all the same."""
    if device.type not in ("cpu", "cuda") or recipe.train.sure or recipe.adapt.train != "all":
        return
    need, room = state_bytes(recipe, config, precision), room_on(device)
    if need > room:
        raise UsageError(
            f"{recipe.model.name or 'The model'} has {cost_of(config).parameters / 1e6:,.0f} million weights; with gradients, moments "
            f"and average they take {need / 2**30:.1f} GiB, and {device} has {room / 2**30:.1f} GiB free.",
            hint="a smaller model, train.parallel=fsdp over several devices, or adapt.train=lora; to try all the same: train.sure=true",
        )


def state_bytes(recipe: Recipe, config: Any, precision: Precision) -> int:
    """Weights, gradients, moments and average of one rank."""
    spec, full = recipe.optim, 8 if precision.name == "fp64" else 4
    first = full if spec.momentum_dtype == "float32" else 2
    second = {"adamw": full, "lamb": full}.get(spec.name, 0)  # adafactor keeps rows and columns of it only
    each = 2 * full + first + second + (full if recipe.ema.decay is not None else 0)
    ranks = distributed.world() if recipe.train.parallel == "fsdp" else 1
    return cost_of(config).parameters * each // ranks


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
