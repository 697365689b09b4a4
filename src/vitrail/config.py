"""Recipes: a run described by one frozen value, read from a TOML document.

    recipe = load_recipe("table-3:jft-B/16", ["data.train=/data/jft", "optim.lr=6e-4"])

A document may build on another (`base = "other.toml"`), and may hold `[rows]`, the rows of a
table of the paper: each row is a small overlay, chosen by name after a colon. Every key is
checked against the dataclasses below; an unknown one is refused and names its nearest. The
documents that come with Vitrail live beside the code, in `vitrail/recipes`, so that an
installed wheel has them.

This file imports no torch: reading and checking a recipe is free.
"""

from __future__ import annotations

import json
import tomllib
import types
import typing
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass
from fnmatch import fnmatch
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar

from vitrail.errors import UsageError, nearest

__all__ = [
    "AdaptSpec",
    "AugmentSpec",
    "Change",
    "DataSpec",
    "EmaSpec",
    "EvalSpec",
    "Expected",
    "ModelSpec",
    "ObjectiveSpec",
    "OptimSpec",
    "Recipe",
    "ScheduleSpec",
    "SelectSpec",
    "TrainSpec",
    "diff",
    "from_dict",
    "holds_list",
    "list_recipes",
    "load_recipe",
    "override",
    "rows",
    "to_dict",
    "to_toml",
    "value_of",
]

RECIPES = Path(__file__).parent / "recipes"


@dataclass(frozen=True)
class ModelSpec:
    name: str = "B/16"  # as in create_model: "B/16", "L/16@384", "R50+ViT-B/16", "R50x1", …
    image_size: tuple[int, int] | None = None  # (rows, columns) in pixels; None: the size in the name, else 224
    classes: int | None = None  # None: as many as the data has
    weights: str | None = None  # path or URI to start from; None: fresh weights of the paper's initialisation
    new_head: bool = True  # with weights: drop the old head (and pre-logits), attach a zero linear one (paper 3.2)
    options: dict[str, Any] = field(default_factory=dict)  # further options of create_model: pool, position, drop_path


@dataclass(frozen=True)
class DataSpec:
    about: str = ""  # the data the recipe means, in words
    train: str = ""  # path or URI of the training images; empty: the user must say
    train_split: str = "train"  # a split expression: "train", "train[:99%]"
    eval: str | None = None  # None: the same source as train
    eval_split: str | None = None  # None: what train_split leaves, validation or test, else a held-out tenth; "nothing": no measuring
    examples: int | None = None  # training images the recipe expects; only for planning before the data is opened
    crop: Literal["inception", "random_resized", "resize_crop", "pad_crop", "resize"] = "inception"  # training view
    crop_area: tuple[float, float] = (0.05, 1.0)  # inception, random_resized: least and greatest part of the image
    crop_ratio: tuple[float, float] = (0.75, 1.33)  # inception, random_resized: least and greatest width / height
    crop_resize: int | None = None  # resize_crop: pixels before the crop; crop_squash says how
    crop_squash: bool = False  # resize_crop: True: to a square, aspect ignored (BiT); False: the shorter side
    crop_pad: int = 4  # pad_crop: reflected pixels added on each side before the random crop
    interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "area"] = "bilinear"  # training resize
    antialias: bool = False  # training resize; False as TensorFlow 2 does
    eval_mode: Literal["squash", "resize_small_crop", "shorter_crop", "bit"] = "squash"  # vit_jax evaluates squashed
    eval_resize: int | None = None  # resize_small_crop: shorter side in pixels before the centre crop
    eval_interpolation: Literal["nearest", "bilinear", "bicubic", "lanczos", "area"] = "bilinear"
    eval_antialias: bool = False
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # of pixels in [0, 1]; 0.5 and 0.5 give the paper's range [-1, 1]
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    sampling: Literal["shuffle", "balanced"] = "shuffle"  # balanced: every class equally often
    repeats: int = 1  # repeated augmentation (DeiT): views of one image in a batch
    resident: bool | None = None  # the whole set as uint8 on the device; None: when it is small enough
    workers: int | None = None  # decode processes; None: by the machine


@dataclass(frozen=True)
class AugmentSpec:
    flip: float = 0.5  # probability of the horizontal flip
    randaugment: Literal["none", "tf", "timm"] = "none"  # whose list of operations
    randaugment_layers: int = 2  # operations an image
    randaugment_magnitude: float = 0.0  # 0 … 10 and beyond (15 and 20 in AugReg)
    randaugment_std: float = 0.0  # timm: spread of the magnitude (0.5 in DeiT)
    three_augment: bool = False  # DeiT-III: one of grey, solarise, blur
    colour_jitter: float = 0.0  # brightness, contrast and saturation, each up to this factor
    erasing: float = 0.0  # probability of random erasing
    mixup: float = 0.0  # alpha of the Beta; 0: off
    cutmix: float = 0.0  # alpha of the Beta; 0: off
    mix_probability: float = 1.0  # probability that a group is mixed at all
    mix_switch: float = 0.5  # with both on: probability of cutmix


@dataclass(frozen=True)
class OptimSpec:
    name: Literal["adamw", "sgd", "adafactor", "lamb"] = "adamw"
    lr: float = 1e-3  # the base (peak) learning rate
    lr_batch: int | None = None  # 256: lr is for a batch of 256 and is scaled linearly; None: lr as it stands
    betas: tuple[float, float] = (0.9, 0.999)  # adamw, lamb, adafactor (its second is the cap of the decay)
    eps: float = 1e-8
    momentum: float = 0.9  # sgd: heavy ball, m <- momentum m + g
    weight_decay: float = 0.0  # as torch AdamW: p <- p - lr * weight_decay * p
    coupled_decay: bool = False  # sgd: add weight_decay * p to the gradient instead (L2, as BiT)
    decay: Literal["kernels", "all"] = "kernels"  # kernels: no biases, norms, tokens or position tables
    head_weight_decay: float | None = None  # None: as the rest ("Scaling Vision Transformers" has 100 times as much)
    momentum_dtype: Literal["float32", "bfloat16"] = "float32"  # first moment or momentum, as stored
    clip_norm: float | None = None  # g <- g min(1, clip_norm / |g|) over all parameters
    layer_decay: float = 1.0  # rate of a layer = lr * layer_decay ** (layers above it)
    head_lr: float = 1.0  # rate of the head = lr * head_lr


@dataclass(frozen=True)
class ScheduleSpec:
    decay: Literal["linear", "cosine", "rsqrt", "stair", "constant"] = "cosine"
    warmup_steps: int = 0  # the decayed rate times min(1, step / warmup_steps)
    warmup_epochs: float | None = None  # instead of warmup_steps
    cooldown_steps: int = 0  # the decayed rate times min(1, steps left / cooldown_steps)
    end_lr: float | None = None  # None: 1e-5 for linear (the paper's code), 0 for cosine
    timescale_steps: int = 10_000  # rsqrt: lr / sqrt(1 + steps since warm-up / timescale)
    stair_steps: tuple[int, ...] = ()  # stair: from these steps on …
    stair_fractions: tuple[float, ...] = ()  # … or from these parts of the run on …
    stair_factors: tuple[float, ...] = ()  # … the base rate times these factors


@dataclass(frozen=True)
class ObjectiveSpec:
    loss: Literal["softmax", "sigmoid", "bce", "masked_patches", "mae"] = "softmax"
    label_smoothing: float = 0.0
    head_bias: float = 0.0  # first bias of the head: -10 for sigmoid on ImageNet-21k and JFT, -6.9 on ImageNet
    class_weights: Literal["none", "balanced"] = "none"  # balanced: a class counts inversely to its frequency
    binarise: bool = False  # bce: a mixed target counts fully for each of its classes (DeiT-III)
    teacher: str | None = None  # path or URI of the teacher; None: no distillation
    more_teachers: tuple[str, ...] = ()  # the mean of all teachers' probabilities is what is learnt
    distill: Literal["hard", "soft"] = "hard"  # the teacher's decision, or its softened probabilities (KL)
    distill_weight: float = 0.5  # loss = (1 - w) * labels + w * teacher
    distill_temperature: float = 1.0  # soft: both sides are divided by it; the KL is multiplied by its square
    mask_rate: float = 0.5  # masked_patches 0.5; mae 0.75: part of the patches corrupted or hidden
    mask_exact: bool = True  # masked_patches: exactly round(rate * patches); False: each patch by its own coin
    mask_target: Literal["mean_colour", "downsized", "pixels"] = "mean_colour"  # paper B.1.2: (1), (2), (3)
    decoder_width: int = 512  # mae
    decoder_depth: int = 8  # mae
    decoder_heads: int = 16  # mae
    normalised_pixels: bool = True  # mae: targets with zero mean and unit variance inside each patch


@dataclass(frozen=True)
class EmaSpec:
    decay: float | None = None  # 0.9999 in Table 2; None: no average is kept
    debias: bool = False  # True: start from nothing and divide by 1 - decay ** updates; False: start from the weights
    ramp: bool = False  # decay of update t is min(decay, (1 + t) / (10 + t))


@dataclass(frozen=True)
class AdaptSpec:
    train: Literal["all", "head", "lora"] = "all"  # which weights learn
    frozen_blocks: int = 0  # with all: the stem and this many first blocks stay as they are
    lora_rank: int = 8
    lora_alpha: float = 16.0  # the low-rank product is multiplied by lora_alpha / lora_rank
    lora_targets: tuple[str, ...] = ("attention.qkv", "attention.out")  # endings of the linear layers' names


@dataclass(frozen=True)
class TrainSpec:
    batch_size: int = 512  # global: over all ranks and micro-batches
    epochs: float | None = None  # one of epochs and steps
    steps: int | None = None
    seed: int = 0
    precision: Literal["auto", "fp64", "fp32", "tf32", "bf16", "fp16", "fp8"] = "auto"  # auto: bf16 on a GPU, else fp32
    micro_batch_size: int | None = None  # images a device at once; None: the largest that fits
    compile: bool | None = None  # torch.compile; None: on a GPU
    save_memory: bool = False  # keep a third of the activations: norms and the MLP's hidden layer are computed again
    kernels: Literal["auto", "plain", "fused"] = "auto"  # auto: the fused kernels on a GPU they were made for (docs/kernels.md)
    residual: Literal["float32", "bfloat16"] = "float32"  # the sum that runs through the blocks, with fused kernels
    checkpoint_blocks: bool = False  # keep each block's input alone and compute the block again in the backward pass
    log_every_steps: int = 50
    save_every_steps: int = 1000
    save_every_s: float | None = None  # also after this many seconds
    keep_checkpoints: int = 2
    compact_checkpoints: bool = False  # half the size: weights and average in float16, moments in bfloat16; a resume is then rounded
    publish_dtype: Literal["float32", "bfloat16", "float16"] = "float32"  # of best.safetensors and last.safetensors
    deterministic: bool = False  # the same bits on every run of one machine (on a CPU that holds anyway)
    parallel: Literal["ddp", "fsdp"] = "ddp"  # several ranks: a copy of the weights each, or FSDP2 shards
    sharded_checkpoints: bool = False  # with fsdp: each rank writes its own part
    max_minutes: float | None = None  # measure the speed first, then fix the number of steps to fit; steps is the most
    stop_after_minutes: float | None = None  # of this process: save, exit 75; the same command goes on
    stall_timeout_s: float = 1800.0  # nothing finished for so long: show where, exit 6; 0: never
    skip_nonfinite: int = 0  # steps with NaN or Inf passed over (weights untouched) before the run stops with exit 4
    trackers: tuple[str, ...] = ()  # "tensorboard", "wandb", "mlflow"; metrics.jsonl is always written
    stop_after_evals: int | None = None  # early stopping: evaluations without a better one; None: run to the end
    sure: bool = False  # run although the recipe looks as if it cannot work (see train/question.py)


@dataclass(frozen=True)
class EvalSpec:
    every_steps: int | None = None  # None: at the end of each epoch
    every_epochs: float | None = None
    batch_size: int | None = None  # None: by memory
    metric: str = "top1"  # which figure decides what is best


@dataclass(frozen=True)
class SelectSpec:
    """How the paper chooses a learning rate: a grid, judged on a held-out part of the training set."""

    grid: dict[str, tuple] = field(default_factory=dict)  # recipe key -> values to try
    dev_percent: float = 0.0  # part of the training split held out to choose by; 0: its val split, else 10, 2 or 1 by its size
    seeds: int = 1  # final runs on the whole training split; mean and standard deviation are reported


@dataclass(frozen=True)
class Expected:
    """A figure to hold a run against: published by its authors, or measured by us (then with the record)."""

    metric: str = ""  # "ImageNet top-1, %"
    value: float = 0.0
    kind: Literal["published", "measured"] = "published"
    source: str = ""  # the table, or the file in benchmarks/results


@dataclass(frozen=True)
class Recipe:
    name: str = ""
    paper: str = ""  # where the recipe comes from
    note: str = ""  # what the source leaves open, and what was chosen
    model: ModelSpec = field(default_factory=ModelSpec)
    data: DataSpec = field(default_factory=DataSpec)
    augment: AugmentSpec = field(default_factory=AugmentSpec)
    optim: OptimSpec = field(default_factory=OptimSpec)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    objective: ObjectiveSpec = field(default_factory=ObjectiveSpec)
    ema: EmaSpec = field(default_factory=EmaSpec)
    adapt: AdaptSpec = field(default_factory=AdaptSpec)
    train: TrainSpec = field(default_factory=TrainSpec)
    eval: EvalSpec = field(default_factory=EvalSpec)
    select: SelectSpec = field(default_factory=SelectSpec)
    expected: tuple[Expected, ...] = ()

    def total_steps(self, examples: int | None = None) -> int:
        """Optimizer steps of the run. An epoch is a pass over `examples` (default: the recipe's own count)."""
        if self.train.steps is not None:
            return self.train.steps
        count = examples if examples is not None else self.data.examples
        if self.train.epochs is None or count is None:
            raise UsageError(
                f"The recipe {self.name!r} does not say how long to train.",
                hint="set train.steps, or train.epochs together with data.examples",
            )
        return round(self.train.epochs * count / self.train.batch_size)

    def warmup_steps(self, examples: int | None = None) -> int:
        if self.schedule.warmup_epochs is None:
            return self.schedule.warmup_steps
        count = examples if examples is not None else self.data.examples
        if count is None:
            raise UsageError("schedule.warmup_epochs needs to know the size of the data.", hint="set data.examples")
        return round(self.schedule.warmup_epochs * count / self.train.batch_size)

    @property
    def peak_lr(self) -> float:
        """The base rate after linear scaling with the batch (`optim.lr_batch`)."""
        optim = self.optim
        return optim.lr if optim.lr_batch is None else optim.lr * self.train.batch_size / optim.lr_batch


# ---------------------------------------------------------------- reading


def list_recipes() -> list[str]:
    """Names of all packaged recipes; documents with rows appear once a row, as `document:row`."""
    names: list[str] = []
    for path in sorted(RECIPES.rglob("*.toml")):
        name = path.relative_to(RECIPES).with_suffix("").as_posix()
        names += [f"{name}:{row}" for row in rows(path)] or [name]
    return names


def rows(path: Path) -> tuple[str, ...]:
    """The rows a document offers, in its own order."""
    return tuple(_document(path).get("rows", {}))


def load_recipe(name: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """A path, a packaged name, or either with `:row`; then `a.b=c` overrides in order."""
    path, row = _locate(str(name))
    table = _flatten(path)
    offered = table.pop("rows", {})
    if row is None and offered:
        raise UsageError(
            f"{path.name} holds the rows of a table; say which.",
            hint=f"one of: {', '.join(f'{path.stem}:{r}' for r in offered)}",
        )
    if row is not None:
        if row not in offered:
            raise UsageError(f"{path.name} has no row {row!r}{nearest(row, offered)}.")
        table = _merge(table, offered[row])
    table.setdefault("name", path.stem if row is None else f"{path.stem}:{row}")
    return override(_build(Recipe, table, where=path.name), overrides)


def override(recipe: Recipe, assignments: Iterable[str]) -> Recipe:
    """A recipe with `a.b=c` assignments applied; each value is read as its field's type wants it."""
    table = asdict(recipe)
    for text in assignments:
        key, sign, value = text.partition("=")
        if not sign or not key.strip():
            raise UsageError(f"{text!r} is no override.", hint="write key=value, for example optim.lr=0.003")
        parts, hint = _hint(key.strip().split("."))
        node = table
        for part in parts[:-1]:
            node = node[part]
        node[parts[-1]] = _parse(value.strip(), hint, where=key.strip())
    return _build(Recipe, table, where="overrides") if table != asdict(recipe) else recipe


def holds_list(key: str) -> bool:
    """Whether a dotted key holds several values; an unknown key is refused."""
    hint = _hint(key.split("."))[1]
    return any(kind is tuple or typing.get_origin(kind) is tuple for kind in (hint, *typing.get_args(hint)))


def value_of(recipe: Recipe, key: str) -> Any:
    """What a recipe holds under a dotted key."""
    node: Any = recipe
    for part in _hint(key.split("."))[0]:
        node = node[part] if isinstance(node, Mapping) else getattr(node, part)
    return node


def from_dict(table: Mapping[str, Any]) -> Recipe:
    """The recipe of `to_dict` (run.json)."""
    return _build(Recipe, table, where="recipe")


def _locate(name: str) -> tuple[Path, str | None]:
    for text, row in ((name, None), _split_row(name)):
        for path in (Path(text), RECIPES / f"{text}.toml", RECIPES / text):
            if path.suffix == ".toml" and path.is_file():
                return path, row
    if name.partition(":")[0].endswith(".toml"):
        raise UsageError(f"There is no recipe file {name!r}.", hint="vitrail train --list shows the packaged recipes")
    raise UsageError(f"There is no recipe {name!r}{nearest(name, list_recipes())}.")


def _split_row(name: str) -> tuple[str, str | None]:
    text, sign, row = name.partition(":")
    return (text, row) if sign else (name, None)


@cache
def _read(path: Path, modified_ns: int) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise UsageError(f"{path}: not a TOML document ({problem}).") from problem


def _document(path: Path) -> dict[str, Any]:
    return json.loads(json.dumps(_read(path, path.stat().st_mtime_ns)))  # a copy nobody else holds


def _flatten(path: Path, seen: tuple[Path, ...] = ()) -> dict[str, Any]:
    """A document on top of its bases. The rows of a base are not inherited."""
    path = path.resolve()
    if path in seen:
        raise UsageError(f"{path.name} is its own base, by way of {' -> '.join(p.name for p in seen)}.")
    table = _document(path)
    base = table.pop("base", None)
    if base is None:
        return table
    text, row = _split_row(base)
    base_path = path.parent / text
    if not base_path.is_file():
        raise UsageError(f"{path.name}: its base {text!r} does not exist beside it.")
    below = _flatten(base_path, (*seen, path))
    offered = below.pop("rows", {})
    if row is not None:
        if row not in offered:
            raise UsageError(f"{path.name}: its base {text!r} has no row {row!r}{nearest(row, offered)}.")
        below = _merge(below, offered[row])
    below.pop("name", None)
    below.pop("expected", None)  # a figure belongs to the exact recipe it was reported for
    return _merge(below, table)


def _merge(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(below)
    for key, value in above.items():
        old = merged.get(key)
        merged[key] = _merge(old, value) if isinstance(old, Mapping) and isinstance(value, Mapping) else value
    return merged


# ---------------------------------------------------------------- typing

T = TypeVar("T")


def _hints(cls: Any) -> dict[str, Any]:
    return _hints_of(cls)


@cache
def _hints_of(cls: Any) -> dict[str, Any]:
    return typing.get_type_hints(cls)


def _hint(parts: Sequence[str]) -> tuple[list[str], Any]:
    """The steps of a dotted key, and its declared type. What follows a free table is one key of it."""
    kind: Any = Recipe
    for depth, part in enumerate(parts):
        if typing.get_origin(kind) is dict:
            return [*parts[:depth], ".".join(parts[depth:])], typing.get_args(kind)[1]
        known = _hints(kind) if is_dataclass(kind) else {}
        if part not in known:
            key = ".".join(parts[: depth + 1])
            raise UsageError(f"A recipe has no key {key!r}{_nearest_key(parts[: depth + 1])}.")
        kind = known[part]
    if is_dataclass(kind):
        raise UsageError(f"{'.'.join(parts)!r} is a section, not a value.", hint=f"its keys: {', '.join(_hints(kind))}")
    return list(parts), kind


def _nearest_key(parts: Sequence[str]) -> str:
    """The nearest key in the same section, or, when the section has none like it, anywhere in a recipe."""
    everywhere = {leaf.rsplit(".", 1)[-1]: leaf for leaf in _leaves(Recipe)}
    section: Any = Recipe
    for part in parts[:-1]:
        section = _hints(section)[part]
    prefix = "".join(f"{part}." for part in parts[:-1])
    known = [prefix + name for name in _hints(section)] if is_dataclass(section) else []
    guess = nearest(".".join(parts), known)
    if "did you mean" not in guess and parts[-1] in everywhere:
        return f" (did you mean {everywhere[parts[-1]]!r}?)"
    return guess


def _leaves(cls: Any, prefix: str = "") -> list[str]:
    found = []
    for name, kind in _hints(cls).items():
        found += _leaves(kind, f"{prefix}{name}.") if is_dataclass(kind) else [prefix + name]
    return found


def _build(cls: type[T], table: Mapping[str, Any], where: str, prefix: str = "") -> T:
    hints = _hints(cls)
    values = {}
    for key, value in table.items():
        if key not in hints:
            parts = (prefix + key).split(".")
            raise UsageError(f"{where}: a recipe has no key {prefix + key!r}{_nearest_key(parts)}.")
        values[key] = _coerce(value, hints[key], where, prefix + key)
    return cls(**values)


def _coerce(value: Any, hint: Any, where: str, key: str) -> Any:
    """A TOML value as its field wants it; the only liberties are int -> float and list -> tuple."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any:
        return value
    if is_dataclass(hint) and isinstance(hint, type):
        if not isinstance(value, Mapping):
            raise UsageError(f"{where}: {key} is a section and needs keys, not {value!r}.")
        return _build(hint, value, where, "" if key.startswith("expected") else key + ".")
    if origin in (types.UnionType, typing.Union):
        if value is None:
            return None
        return _coerce(value, next(a for a in args if a is not type(None)), where, key)
    if origin is Literal:
        if value in args:
            return value
        raise UsageError(f"{where}: {key} cannot be {value!r}{nearest(str(value), map(str, args))}.")
    if (origin is tuple or hint is tuple) and isinstance(value, list | tuple):
        if args and args[-1] is not Ellipsis and len(value) != len(args):
            raise UsageError(f"{where}: {key} needs {len(args)} values, not {len(value)}.")
        kinds = [args[0]] * len(value) if args and args[-1] is Ellipsis else list(args) or [Any] * len(value)
        return tuple(_coerce(v, k, where, f"{key}[{i}]") for i, (v, k) in enumerate(zip(value, kinds)))
    if origin is dict and isinstance(value, Mapping):
        return {str(k): _coerce(v, args[1], where, f"{key}.{k}") for k, v in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and isinstance(value, hint) and not (hint is int and isinstance(value, bool)):
        return value
    raise UsageError(f"{where}: {key} must be {_say(hint)}, not {value!r}.")


def _say(hint: Any) -> str:
    names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
    return names.get(hint, "a list of values" if typing.get_origin(hint) is tuple else str(hint))


def _parse(text: str, hint: Any, where: str) -> Any:
    """The text of a command-line override as TOML would have said it for this type."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if text.lower() in ("none", "null", ""):
            return None
        return _parse(text, next(a for a in args if a is not type(None)), where)
    if hint is bool:
        if text.lower() in ("true", "yes", "on", "1"):
            return True
        if text.lower() in ("false", "no", "off", "0"):
            return False
    if hint is int or hint is float:
        try:
            number = float(text)
        except ValueError:
            return text  # _coerce says what is wrong
        return int(number) if hint is int and number.is_integer() else number
    if origin is tuple or hint is tuple:
        inner = [part.strip() for part in text.strip("[]()").split(",") if part.strip()]
        if len(inner) == 1 and len(args) == 2 and args[-1] is not Ellipsis:
            inner *= 2  # image_size=384 means (384, 384)
        kind = args[0] if args else Any
        return [_parse(part, kind, where) for part in inner]
    if origin is dict:
        raise UsageError(f"{where} is a table; assign one of its keys, for example {where}.NAME=VALUE.")
    return _guess(text) if hint is Any else text


def _guess(text: str) -> Any:
    """A value of unknown type: as TOML reads it, else as text."""
    try:
        return tomllib.loads(f"x = {text}")["x"]
    except tomllib.TOMLDecodeError:
        return {"True": True, "False": False, "None": None}.get(text, text)


# ---------------------------------------------------------------- writing


def to_dict(recipe: Recipe) -> dict[str, Any]:
    """Plain JSON types, for run.json and cards; `from_dict` reads it back."""
    return json.loads(json.dumps(asdict(recipe)))


def to_toml(recipe: Recipe) -> str:
    """The keys that differ from the defaults, as a document that `load_recipe` reads back."""
    top, sections = [], []
    for item in fields(recipe):
        value, default = getattr(recipe, item.name), _default(item)
        if item.name == "expected":
            for figure in value:
                sections.append("\n".join(["[[expected]]", *_lines(asdict(figure), {})]))
        elif is_dataclass(value):
            lines = _lines(asdict(value), asdict(default))  # type: ignore[call-overload, arg-type]
            if lines:
                sections.append("\n".join([f"[{item.name}]", *lines]))
        elif value != default:
            top.append(f"{item.name} = {_toml(value)}")
    return "\n\n".join(["\n".join(top), *sections]).strip() + "\n"


def _default(item: Any) -> Any:
    return item.default_factory() if item.default_factory is not MISSING else item.default


def _lines(table: Mapping[str, Any], default: Mapping[str, Any]) -> list[str]:
    return [f"{k} = {_toml(v)}" for k, v in table.items() if v is not None and (k not in default or v != default[k])]


def _toml(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_toml(v)}" for k, v in value.items()) + " }" if value else "{}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(v) for v in value) + "]"
    return json.dumps(value, ensure_ascii=False) if isinstance(value, str) else repr(value)


# ---------------------------------------------------------------- comparing

# What a resumed run may change without a word: these alter no weight, or (data.train: the same images may lie elsewhere)
# another question is asked about them, whether the fingerprint is the same.
_FREE = (
    "name paper note expected* select.* eval.* data.about data.train data.train_split data.eval data.eval_split data.workers data.resident "
    "data.eval_* train.log_* train.save_* train.keep_* train.compact_* train.publish_* train.stop_after_evals train.micro_batch_size "
    "train.compile train.kernels train.checkpoint_blocks train.parallel train.sharded_checkpoints train.stop_after_minutes "
    "train.max_minutes train.stall_timeout_s train.skip_nonfinite train.trackers train.sure"
).split()
# What cannot change: the checkpoint holds tensors of this shape, or the sample order would break.
_FIXED = (
    "model.* data.sampling data.repeats train.batch_size train.seed optim.name "
    "optim.momentum_dtype objective.loss objective.mask_target objective.decoder_* ema.* adapt.*"
).split()


@dataclass(frozen=True)
class Change:
    key: str  # dotted
    old: Any
    new: Any
    kind: Literal["free", "noted", "fixed"]  # free: no weight depends on it; noted: say so; fixed: not on resume

    def __str__(self) -> str:
        return f"{self.key}: {self.old!r} -> {self.new!r}"


def diff(old: Recipe, new: Recipe) -> list[Change]:
    """Every key in which two recipes differ, and what that means for resuming one as the other."""
    a, b = _dotted(to_dict(old)), _dotted(to_dict(new))
    return [Change(k, a.get(k), b.get(k), _kind(k)) for k in {**a, **b} if a.get(k) != b.get(k)]


def _kind(key: str) -> Literal["free", "noted", "fixed"]:
    if any(fnmatch(key, pattern) for pattern in _FREE):
        return "free"
    return "fixed" if any(fnmatch(key, pattern) for pattern in _FIXED) else "noted"


def _dotted(table: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        if isinstance(value, Mapping) and value:
            flat |= _dotted(value, f"{prefix}{key}.")
        else:
            flat[prefix + key] = value
    return flat
