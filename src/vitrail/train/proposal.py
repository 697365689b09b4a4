"""From weights and a folder of pictures to a recipe, with a reason for every choice.

    facts    = look(data)                                what there is: images, classes, splits, sizes
    proposal = propose(weights, config, card, facts, …)  a Recipe, and sentences that say why

The rules are BiT-HyperRule's and Table 4's: SGD with momentum, cosine, no weight decay, clip 1,
a new zero head, and a number of steps by the size of the data. Where a machine is too slow for
that many (no GPU), the same schedule is shortened to a time budget, and the batch and the rate
go down together.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from vitrail.config import (
    AdaptSpec,
    AugmentSpec,
    DataSpec,
    ModelSpec,
    ObjectiveSpec,
    OptimSpec,
    Recipe,
    ScheduleSpec,
    SelectSpec,
    TrainSpec,
)
from vitrail.data.source import Source, list_splits, open_source
from vitrail.errors import DataError, DecodeError, UsageError

__all__ = ["Facts", "Proposal", "Wishes", "look", "propose"]

HYPERRULE = ((20_000, 500, 100), (500_000, 10_000, 500), (None, 20_000, 500))  # images below, steps, warm-up (BiT)
RULE_BATCH, RULE_RATE = 512, 0.01  # Table 4: batch 512; the middle of its grid …
RULE_GRID = (0.001, 0.003, 0.01, 0.03)  # … which `vitrail sweep` tries
CPU_BATCH, CPU_MINUTES = 32, 10.0
BF16_WIDTH = 128  # without a GPU: narrower layers lose more by the conversions than they gain
CPU_WATCHED = 1000  # images measured on the way without a GPU; the reported number is of all of them


@dataclass(frozen=True)
class Wishes:
    """What a user said; None: by the rules."""

    image_size: tuple[int, int] | None = None
    steps: int | None = None
    epochs: float | None = None
    minutes: float | None = None
    lr: float | None = None
    batch_size: int | None = None
    adapt: AdaptSpec = field(default_factory=AdaptSpec)
    balanced: bool = False
    class_weights: bool = False
    early_stop: int | None = None
    seed: int = 0


@dataclass(frozen=True)
class Facts:
    """What a data set is, as far as a recipe needs to know."""

    address: str
    train_split: str
    test_split: str
    dev_split: str | None  # for choosing when to stop; never the split that is reported
    test_images: int
    official_test: bool  # False: the test images were held out of the training images
    classes: tuple[str, ...]
    counts: np.ndarray  # training images of each class
    multilabel: bool
    side: float  # median of sqrt(height * width) over some images, in pixels

    @property
    def examples(self) -> int:
        return int(self.counts.sum())

    @property
    def majority(self) -> float:
        """The accuracy of always saying the largest class."""
        return float(self.counts.max() / max(1, self.counts.sum()))

    def balance(self) -> str:
        """One line about class sizes, with what to do when they differ a lot."""
        least, most = int(self.counts.min()), int(self.counts.max())
        line = f"{self.examples:,} training images of {len(self.classes)} classes, {least:,} to {most:,} a class"
        if most > 10 * max(1, least):
            rare = ", ".join(self.classes[i] for i in np.argsort(self.counts, kind="stable")[:3])
            line += f" (rarest: {rare}); --balanced or --class-weights makes rare classes count"
        return line


@dataclass(frozen=True)
class Proposal:
    recipe: Recipe
    reasons: tuple[str, ...]


# ---------------------------------------------------------------- what there is


def look(data: str, *, dev: bool = False) -> Facts:
    """Open the data once; find which images to train on, to stop by (`dev`), and to report."""
    train, test, chosen_by, official = _splits(data, dev)
    source = open_source(data, split=train)
    if len(source.classes) < 2:
        raise DataError(f"{data} has {len(source.classes)} class(es); a classifier needs two.", hint="one folder a class: data/cat/1.jpg")
    try:
        images = len(open_source(data, split=test))
    except UsageError:
        raise DataError(
            f"{data} has {len(source)} images to train on, too few to hold any out.", hint="add images, or a test folder beside train"
        ) from None
    return Facts(data, train, test, chosen_by, images, official, tuple(source.classes), _counts(source), source.multilabel, _side(source))


def _splits(data: str, dev: bool) -> tuple[str, str, str | None, bool]:
    """(train, test, dev, is the test split the data's own)."""
    have = list_splits(data)
    first = "train" if "train" in have or not have else have[0]
    own = next((name for name in ("test", "val") if name in have and name != first), None)
    if own is None and not dev:
        return f"{first}[:90%]", f"{first}[90%:]", None, False
    if own is None:
        return f"{first}[:80%]", f"{first}[90%:]", f"{first}[80%:90%]", False
    if not dev:
        return first, own, None, True
    return (first, own, "val", True) if own == "test" and "val" in have else (f"{first}[:90%]", own, f"{first}[90%:]", True)


def _counts(source: Source) -> np.ndarray:
    if source.multilabel:
        flat = np.asarray([c for labels in source.labels for c in labels], dtype=np.int64)  # type: ignore[union-attr]
    else:
        flat = np.asarray(source.labels)
    return np.bincount(flat[flat >= 0], minlength=len(source.classes))


def _side(source: Source) -> float:
    """From the headers of a few images, spread over the set."""
    from vitrail.data.decode import probe

    sides = []
    for i in np.unique(np.linspace(0, len(source) - 1, 32).astype(int)):
        try:
            data = source.read(int(i)).data
            height, width = data.shape[:2] if isinstance(data, np.ndarray) else probe(data)[1:3]
        except DecodeError:
            continue
        sides.append((height * width) ** 0.5)
    if not sides:
        raise DataError("none of the images looked at can be read.", hint="vitrail data check lists what is wrong")
    return float(np.median(sides))


# ---------------------------------------------------------------- what to do with it


def propose(weights: str, config: Any, card: Any, facts: Facts, wishes: Wishes, *, gpu: bool) -> Proposal:
    """The recipe for these weights (`config`: their architecture) on this data."""
    reasons = [facts.balance()]
    own = "its own split" if facts.official_test else "held out, as the data has no test split of its own"
    reasons.append(f"reported on {facts.test_split}, {facts.test_images:,} images: {own}")
    size = _image_size(config, facts, wishes, gpu, reasons)
    train, schedule = _length(facts, wishes, gpu, reasons)
    rate = wishes.lr if wishes.lr is not None else RULE_RATE * train.batch_size / RULE_BATCH
    reasons.append(f"SGD with momentum, rate {rate:g}" + ("" if wishes.lr else f" ({RULE_RATE:g} at a batch of {RULE_BATCH}, scaled)"))
    if wishes.adapt.train != "all" or wishes.adapt.frozen_blocks:
        reasons.append(f"only part of the weights learn: {_adapted(wishes.adapt)}")
    if not gpu and hasattr(config, "depth") and config.width >= BF16_WIDTH and cpu_multiplies_bf16():
        reasons.append("products in bfloat16, which this processor multiplies faster (train.precision=fp32 does not)")
        train = replace(train, precision="bf16")
    loss = "sigmoid" if facts.multilabel else "softmax"
    recipe = Recipe(
        name="finetune",
        paper="Table 4 and BiT-HyperRule",
        model=ModelSpec(name="", image_size=size, weights=weights, new_head=True),
        data=_data(facts, wishes, card, size, config, watched=None if gpu else CPU_WATCHED),
        augment=AugmentSpec(flip=0.5),
        optim=OptimSpec(name="sgd", lr=rate, momentum=0.9, clip_norm=1.0),
        schedule=schedule,
        objective=ObjectiveSpec(loss=loss, class_weights="balanced" if wishes.class_weights else "none"),  # type: ignore[arg-type]
        adapt=wishes.adapt,
        train=replace(train, seed=wishes.seed, stop_after_evals=wishes.early_stop),
        select=SelectSpec(grid={"optim.lr": tuple(rate * train.batch_size / RULE_BATCH for rate in RULE_GRID)}),
    )
    return Proposal(recipe, tuple(reasons))


def _adapted(spec: AdaptSpec) -> str:
    if spec.train == "head":
        return "the head"
    if spec.train == "lora":
        return f"the head and rank-{spec.lora_rank} updates of {', '.join(spec.lora_targets)}"
    return f"all but the first {spec.frozen_blocks} blocks"


def _image_size(config: Any, facts: Facts, wishes: Wishes, gpu: bool, reasons: list[str]) -> tuple[int, int]:
    """The paper fine-tunes at a higher resolution than it pre-trains (section 3.2), where pixels and machine allow."""
    if wishes.image_size is not None:
        return wishes.image_size
    rows, columns = config.image_size
    stride = rows // config.grid[0]
    if gpu and 160 <= rows < 320 and facts.side >= rows:
        raised = [round(side * 12 / 7 / stride) * stride for side in (rows, columns)]  # 224 -> 384
        reasons.append(f"at {raised[0]} x {raised[1]} pixels: higher than in pre-training ({rows}), as the paper does")
        return raised[0], raised[1]
    why = "the images are no larger" if facts.side <= rows else "more cost time: --image-size"
    reasons.append(f"at the weights' own {rows} x {columns} pixels ({why})")
    return rows, columns


def _length(facts: Facts, wishes: Wishes, gpu: bool, reasons: list[str]) -> tuple[TrainSpec, ScheduleSpec]:
    """Steps, batch and warm-up."""
    if wishes.steps is not None and wishes.epochs is not None:
        raise UsageError("--steps and --epochs both say how long.", hint="give one of them")
    rule_steps, rule_warmup = next((steps, warm) for below, steps, warm in HYPERRULE if below is None or facts.examples < below)
    batch, steps, minutes = wishes.batch_size or _batch(facts, gpu), wishes.steps, wishes.minutes
    if wishes.epochs is not None:
        steps = max(1, round(wishes.epochs * facts.examples / batch))
    if steps is not None:
        reasons.append(f"{steps:,} steps of {batch}, as asked")
    else:
        steps = round(rule_steps * RULE_BATCH / batch)
        reasons.append(f"at most {steps:,} steps of {batch}: the rule for {facts.examples:,} images")
        if minutes is None and not gpu:
            minutes = CPU_MINUTES
            reasons.append(f"no GPU here, so at most {minutes:g} minutes (--minutes)")
    warmup = min(rule_warmup * RULE_BATCH // batch, max(1, steps // 10))
    return TrainSpec(batch_size=batch, steps=steps, max_minutes=minutes), ScheduleSpec(decay="cosine", warmup_steps=warmup)


def _batch(facts: Facts, gpu: bool) -> int:
    """The paper's; smaller where there are few images (several updates a pass) or no GPU (several a second)."""
    batch = RULE_BATCH if gpu else CPU_BATCH
    while batch > 8 and batch > facts.examples // 4:
        batch //= 2
    return batch


def cpu_multiplies_bf16() -> bool:
    """Whether matrix products in bfloat16 have instructions of their own here (AMX, AVX-512 BF16): others emulate them."""
    known = ("_is_amx_tile_supported", "_is_avx512_bf16_supported")
    return any(getattr(torch.cpu, name, lambda: False)() for name in known)


def _data(facts: Facts, wishes: Wishes, card: Any, size: tuple[int, int], config: Any, watched: int | None) -> DataSpec:
    """Views as the weights' card says; the training crop keeps at least a third of a small picture.

    watched: measure at most so many of the test images on the way (what is chosen by is measured whole).
    """
    view = card.transform()
    few = watched is not None and facts.dev_split is None and facts.test_images > watched
    return DataSpec(
        train=facts.address,
        train_split=facts.train_split,
        eval_split=facts.dev_split or (f"{facts.test_split}[:{watched}]" if few else facts.test_split),
        crop="inception",
        crop_area=(0.35, 1.0) if facts.side < 1.5 * size[0] else (0.05, 1.0),
        interpolation=view.interpolation,
        antialias=view.antialias,
        eval_mode=view.mode,
        eval_resize=view.resize if size == tuple(config.image_size) else None,
        eval_interpolation=view.interpolation,
        eval_antialias=view.antialias,
        mean=tuple(view.mean),
        std=tuple(view.std),
        sampling="balanced" if wishes.balanced else "shuffle",
    )
