"""How long a run is, what it does when, and whether it can work at all: known before the first step."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from vitrail.config import Recipe
from vitrail.errors import UsageError
from vitrail.train.schedule import schedule

__all__ = ["Plan", "plan_run"]


@dataclass(frozen=True)
class Plan:
    """Steps are counted from 0; "every n" acts after n, 2n, 3n … steps, and always after the last."""

    steps: int
    warmup_steps: int
    steps_per_epoch: float
    eval_every: int  # 0: at the end only
    save_every: int
    log_every: int
    lr: Callable[[int], float]

    def logs(self, done: int) -> bool:
        return done % self.log_every == 0 or done == self.steps

    def evaluates(self, done: int) -> bool:
        return done == self.steps or (self.eval_every > 0 and done % self.eval_every == 0)

    def saves(self, done: int) -> bool:
        return done % self.save_every == 0 or done == self.steps


def plan_run(recipe: Recipe, examples: int, steps: int | None = None) -> Plan:
    """The plan of a recipe on so many training images; `steps` replaces the recipe's length."""
    total = steps if steps is not None else recipe.total_steps(examples)
    warmup = recipe.warmup_steps(examples)
    per_epoch = examples / recipe.train.batch_size
    if recipe.eval.every_steps is not None:
        every = recipe.eval.every_steps
    else:
        every = max(1, round(per_epoch * (1.0 if recipe.eval.every_epochs is None else recipe.eval.every_epochs)))
    for name in ("log_every_steps", "save_every_steps"):
        if getattr(recipe.train, name) < 1:
            raise UsageError(f"train.{name} must be at least 1, not {getattr(recipe.train, name)}.")
    return Plan(
        steps=total,
        warmup_steps=warmup,
        steps_per_epoch=per_epoch,
        eval_every=every,
        save_every=recipe.train.save_every_steps,
        log_every=recipe.train.log_every_steps,
        lr=schedule(recipe.schedule, base=recipe.peak_lr, steps=total, warmup_steps=warmup),
    )
