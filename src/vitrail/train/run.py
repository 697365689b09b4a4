"""Everything a run holds, opened in order: data, model, objective, optimizer, average, checkpoints."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from vitrail.config import Recipe, to_dict
from vitrail.data.augment import Augment
from vitrail.data.crop import TrainView
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.score import precision_for
from vitrail.kernels.fp8 import train_fp8
from vitrail.model.fused import fuse
from vitrail.runtime import distributed
from vitrail.runtime.device import Precision, deterministic, pick_device
from vitrail.train.distill import Distilled, Teacher
from vitrail.train.ema import Ema
from vitrail.train.mae import Mae
from vitrail.train.masked import MaskedPatches
from vitrail.train.memory import first_micro_batch, question_memory
from vitrail.train.objective import Objective, Supervised, balanced_weights
from vitrail.train.optim import Optimizer, build_optimizer
from vitrail.train.plan import Plan, plan_run
from vitrail.train.question import question
from vitrail.train.rundir import RunDirectory, versions
from vitrail.train.saver import Saver
from vitrail.train.scale import LossScale
from vitrail.train.start import starting_model
from vitrail.train.state import TrainState
from vitrail.train.step import TrainStep
from vitrail.train.store import CheckpointStore
from vitrail.train.stream import HeldFeed, Sources, TrainFeed, open_sources
from vitrail.weights.load import load_model

__all__ = ["Run", "open_run"]


@dataclass
class Run:
    """One training run, ready to step."""

    recipe: Recipe
    folder: RunDirectory
    device: torch.device
    precision: Precision
    sources: Sources
    view: TrainView
    preprocess: Preprocess
    model: Any  # the plain module, inside any wrapper
    objective: Objective
    optimizer: Optimizer
    ema: Ema | None
    step: TrainStep
    plan: Plan
    state: TrainState
    saver: Saver
    kernels: str = ""  # which path the blocks take, and why

    def feed(self) -> TrainFeed:
        """Batches from the step the run is at."""
        return TrainFeed(self.sources, self.recipe, self.view, self.device, self.state.step, self.step.prepare)

    def held(self) -> HeldFeed | None:
        if self.sources.held is None:
            return None
        batch = self.recipe.eval.batch_size or 2 * self.step.micro * distributed.world()
        return HeldFeed(self.sources.held, self.preprocess, self.recipe, self.device, batch)

    def about(self) -> dict[str, Any]:
        """What run.json and every checkpoint say of the run."""
        return {
            "recipe": to_dict(self.recipe),
            "steps": self.plan.steps,
            "data": self.sources.describe(),
            "seed": self.recipe.train.seed,
            "precision": self.precision.name,
            "kernels": self.kernels,
            "world": distributed.world(),
            "versions": versions(),
        }


def open_run(recipe: Recipe, folder: RunDirectory, device_name: str | None, steps: int | None = None) -> Run:
    """Open everything; `steps` is the length an earlier process of this run settled on."""
    device = pick_device(device_name)
    if device.type not in ("cpu", "cuda"):
        raise UsageError(
            f"training does not run on {device}: losses are summed in float64.", hint="--device cpu; eval and predict take mps"
        )
    deterministic(recipe.train.deterministic)
    precision = precision_for(recipe.train.precision, device)
    sources = open_sources(recipe.data)
    model = starting_model(recipe, sources.train)
    config: Any = model.config
    question(recipe, sources, config)
    question_memory(recipe, config, device, precision)
    view, preprocess = TrainView.of(recipe.data, config.image_size), Preprocess.of(recipe.data, config.image_size)
    plan = plan_run(recipe, len(sources.train), steps)

    objective = build_objective(recipe, model.to(device, precision.weights), precision, preprocess, sources).to(device)
    kernels = fuse(model, device, recipe.train.kernels, recipe.train.residual, precision.name)
    scales = train_fp8(model) if precision.name == "fp8" else None
    forward = spread(objective, recipe, device)
    optimizer = build_optimizer(objective.named(), recipe.optim)
    ema = Ema(model, recipe.ema) if recipe.ema.decay is not None else None
    if ema is not None:
        optimizer.carry(ema)
    scale = LossScale(device, on=precision.scaled)
    group, share = mix_group(recipe), recipe.train.batch_size // distributed.world()
    micro = first_micro_batch(recipe, config, share, device, precision)
    step = TrainStep(
        objective,
        optimizer,
        ema,
        scale,
        Augment(
            recipe.augment,
            seed=recipe.train.seed,
            classes=getattr(objective, "classes", 0),
            group=group,
            mean=recipe.data.mean,
            std=recipe.data.std,
        ),
        device=device,
        micro=micro,
        chunk=min(share, math.lcm(micro, group)),
        seed=recipe.train.seed,
        draws_inside=draws_inside(config),
        skip_nonfinite=recipe.train.skip_nonfinite,
        shrink=recipe.train.micro_batch_size is None and distributed.world() == 1,
    )
    step.forward, step.scales = forward, scales
    if recipe.train.compile or (recipe.train.compile is None and device.type == "cuda"):
        compile_objective(objective, same_bits=recipe.train.deterministic)
    objective.train()

    parts: dict[str, Any] = {"model": model, "optimizer": optimizer}
    if ema is not None:
        parts["ema"] = ema
    if scale.on:
        parts["scale"] = scale
    if scales is not None:
        parts["fp8"] = scales
    if objective.extras():
        parts["objective"] = Extras(objective)
    state = TrainState(parts)
    run = Run(recipe, folder, device, precision, sources, view, preprocess, model, objective, optimizer, ema, step, plan, state, None)  # type: ignore[arg-type]
    run.kernels = kernels
    spec = recipe.train
    store = CheckpointStore(folder.checkpoints, spec.keep_checkpoints)
    run.saver = Saver(store, run.about(), sharded=spec.sharded_checkpoints, compact=spec.compact_checkpoints)
    return run


def build_objective(recipe: Recipe, model: nn.Module, precision: Precision, preprocess: Preprocess, sources: Sources) -> Objective:
    """What the recipe trains the model to do."""
    spec, mean, std = recipe.objective, preprocess.mean, preprocess.std
    if spec.loss == "masked_patches":
        return MaskedPatches(model, spec, precision, mean, std, recipe.train.seed)
    if spec.loss == "mae":
        return Mae(model, spec, precision, mean, std, recipe.train.seed)
    classes = len(sources.train.classes)
    weights = balanced_weights(sources.train.labels, classes) if spec.class_weights == "balanced" else None
    if spec.teacher is None:
        return Supervised(model, spec, precision, mean, std, classes=classes, weights=weights)
    device, known = next(model.parameters()).device, sources.train.classes
    teachers = [open_teacher(name, known, device, precision) for name in (spec.teacher, *spec.more_teachers)]
    return Distilled(model, spec, precision, mean, std, teachers=teachers, classes=classes, weights=weights)


def open_teacher(name: str, classes: Sequence[str], device: torch.device, precision: Precision) -> Teacher:
    """A frozen model; one that knows the same classes in another order would teach the wrong ones."""
    model: Any = load_model(name).to(device, precision.weights)
    theirs = tuple(model.card.classes)
    if theirs != tuple(classes) and sorted(theirs) == sorted(classes):
        raise DataError(f"{name} knows the classes of the data in another order.", hint="a teacher trained on the same data")
    return Teacher(model, model.card.transform(), precision, name)


def compile_objective(objective: Objective, *, same_bits: bool) -> None:
    """`same_bits`: the compiler chooses kernels by rule, not by timing them, which another process might decide otherwise."""
    if same_bits:
        from torch._inductor import config

        if hasattr(config, "deterministic"):  # torch 2.10 and later
            config.deterministic = True
    objective.compile()
    if isinstance(objective, Distilled):
        objective.compile_teachers()


def spread(objective: Objective, recipe: Recipe, device: torch.device) -> Any:
    """The objective over the ranks: what is called in its place. With FSDP the objective itself changes."""
    if distributed.world() == 1:
        return objective
    if recipe.train.parallel == "fsdp":
        return distributed.shard(objective, getattr(objective.model, "blocks", ()), device, methods=("predict",))
    return distributed.wrap_data_parallel(objective, device)


def mix_group(recipe: Recipe) -> int:
    """Samples that mixup and cutmix pair among themselves: 8, fewer where the batch would then not divide among 8 ranks.

    A function of the global batch alone, so that a run may change its number of ranks.
    """
    if not (recipe.augment.mixup or recipe.augment.cutmix):
        return 1
    batch = recipe.train.batch_size
    group = next((size for size in (8, 4, 2) if batch % (8 * size) == 0), math.gcd(batch, 2))
    share = batch // distributed.world()
    if group < 2 or share % group:
        raise UsageError(
            f"mixup and cutmix pair images in groups of {max(2, group)}, which do not fill the {share} images of a rank.",
            hint=f"train.batch_size={max(1, round(batch / 16)) * 16} divides among up to 8 ranks",
        )
    return group


def draws_inside(config: Any) -> bool:
    return bool(getattr(config, "dropout", 0.0) or getattr(config, "drop_path", 0.0))


class Extras:
    """The objective's own parameters as a part of the state."""

    def __init__(self, objective: Objective) -> None:
        self._objective = objective

    def state_dict(self) -> dict[str, torch.Tensor]:
        return self._objective.extras()

    @torch.no_grad()
    def load_state_dict(self, table: dict[str, torch.Tensor]) -> None:
        for name, value in self._objective.extras().items():
            value.copy_(table[name])
