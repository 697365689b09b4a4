"""Learning rates as pure functions of the step.

The base rate decays over the steps after warm-up; warm-up and cooldown multiply the decayed
rate (as vit_jax and big_vision do), so the rate at step 0 of a warmed run is exactly 0.

    lr = schedule(recipe.schedule, base=3e-3, steps=93_835)
    lr(0), lr(10_000)
"""

from __future__ import annotations

import math
from collections.abc import Callable

from vitrail.config import ScheduleSpec
from vitrail.errors import UsageError

__all__ = ["LINEAR_END", "schedule"]

LINEAR_END = 1e-5  # where the paper's linear decay ends (its released code)


def schedule(spec: ScheduleSpec, *, base: float, steps: int, warmup_steps: int | None = None) -> Callable[[int], float]:
    """step -> learning rate. `warmup_steps` replaces the spec's (when it is given in epochs)."""
    warmup = spec.warmup_steps if warmup_steps is None else warmup_steps
    if steps < 1:
        raise UsageError(f"A run needs at least one step, not {steps}.", hint="set train.steps or train.epochs")
    decayed = _decay(spec, base, steps, warmup)

    def rate(step: int) -> float:
        lr = decayed(step)
        if warmup:
            lr *= min(1.0, step / warmup)
        if spec.cooldown_steps:
            lr *= max(0.0, min(1.0, (steps - step) / spec.cooldown_steps))
        return lr

    return rate


def _decay(spec: ScheduleSpec, base: float, steps: int, warmup: int) -> Callable[[int], float]:
    def progress(step: int) -> float:
        """0 … 1 over the steps after warm-up."""
        return min(1.0, max(0.0, (step - warmup) / max(1, steps - warmup)))

    if spec.decay == "constant":
        return lambda step: base
    if spec.decay == "linear":
        end = LINEAR_END if spec.end_lr is None else spec.end_lr
        return lambda step: end + (base - end) * (1.0 - progress(step))
    if spec.decay == "cosine":
        end = 0.0 if spec.end_lr is None else spec.end_lr
        return lambda step: end + (base - end) * 0.5 * (1.0 + math.cos(math.pi * progress(step)))
    if spec.decay == "rsqrt":
        return lambda step: base / math.sqrt(1.0 + max(0, step - warmup) / spec.timescale_steps)
    return _stair(spec, base, steps)


def _stair(spec: ScheduleSpec, base: float, steps: int) -> Callable[[int], float]:
    edges = spec.stair_steps or tuple(round(part * steps) for part in spec.stair_fractions)
    if len(edges) != len(spec.stair_factors) or list(edges) != sorted(edges):
        raise UsageError(
            f"A stair needs as many factors as rising steps: {list(edges)} and {list(spec.stair_factors)}.",
            hint="set schedule.stair_steps (or stair_fractions) and schedule.stair_factors",
        )
    factors = (1.0, *spec.stair_factors)
    return lambda step: base * factors[sum(edge <= step for edge in edges)]
