"""BiT ResNets in their three spellings, all .npz.

    bit         the released files, TensorFlow's names: resnet/block1/unit01/a/standardized_conv2d/kernel
    bit_paper   big_vision's bit_paper.py (the same v2 network): block1/unit01/conv1/kernel
    bit_v1      big_vision's bit.py (v1, activation after): block1/unit1/conv1/kernel

The released network pads the root's max-pool with zeros, bit_paper with minus infinity: the
files do not say it, their names do.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.model.config import ResNetConfig
from vitrail.weights.archive import Archive, Shape
from vitrail.weights.format import Format, Overrides, Reading, renamed, shape_of
from vitrail.weights.rules import HWIO, KERNEL_1X1, SAME, TRANSPOSED, Change, Rule, rule
from vitrail.weights.sidecar import Sidecar

if TYPE_CHECKING:
    from vitrail.data.transform import Preprocess

__all__ = ["FORMATS", "layers_of", "plain_groupnorm", "v1_rules", "without_prefix"]

GROUPNORM = re.compile(r"(?:gn\d|gn_root|gn_proj|norm-pre-head|group_norm)/(?:scale|bias|gamma|beta)$")
SPREAD = Change(lambda t: t.flatten(), lambda t: t[None, None, None])  # (C,) stored as (1, 1, 1, C)


# ---- what hybrids and ResNets share ----


def without_prefix(archive: Archive, anchor: str) -> str | None:
    """What stands before `anchor` in a file that holds a tree of parameters; the image model's own, if there are several."""
    found = [name[: -len(anchor)] for name in archive.entries if name.endswith(anchor) and name[: -len(anchor)][-1:] in ("", "/")]
    known = ("", "params/", "opt/target/", "target/", "params/img/", "img/")
    rank = lambda prefix: (known.index(prefix) if prefix in known else len(known), len(prefix), prefix)
    return min(found, key=rank, default=None)


def plain_groupnorm(name: str, shape: Shape) -> Shape:
    """Group norm's (1, 1, 1, C), as old flax stored it, is (C,)."""
    return shape[-1:] if len(shape) == 4 and shape[:3] == (1, 1, 1) and GROUPNORM.search(name) else shape


def layers_of(view: Archive, pattern: str) -> tuple[int, ...]:
    """Units of each stage; `pattern` finds (stage, unit), both counted from 1."""
    units: dict[int, set[int]] = {}
    for name in view.entries:
        if match := re.search(pattern, name):
            units.setdefault(int(match[1]), set()).add(int(match[2]))
    layers = tuple(len(units[stage]) for stage in sorted(units))
    if sorted(units) != list(range(1, len(units) + 1)) or any(max(numbers) != len(numbers) for numbers in units.values()):
        raise CheckpointError(f"{view.path}: stages or units are missing between those it has ({units}).", hint="get the file again")
    return layers


def stages(layers: Sequence[int]) -> Iterator[tuple[int, int]]:
    return ((stage, unit) for stage, count in enumerate(layers) for unit in range(count))


def v1_rules(layers: Sequence[int], ours: str = "") -> list[Rule]:
    """Root and units of a v1 ResNet: BiT's own, or a hybrid's stem (`ours` = "stem.")."""
    rules = [rule(f"{ours}root.conv.weight", "conv_root/kernel", HWIO), *_norm(f"{ours}root.norm", "gn_root")]
    for stage, unit in stages(layers):
        here, there = f"{ours}stages.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1}"
        for n in (1, 2, 3):
            rules += [rule(f"{here}.conv{n}.weight", f"{there}/conv{n}/kernel", HWIO), *_norm(f"{here}.norm{n}", f"{there}/gn{n}")]
        rules += [rule(f"{here}.projection.weight", f"{there}/conv_proj/kernel", HWIO)]
        rules += _norm(f"{here}.projection_norm", f"{there}/gn_proj")
    return rules


def _norm(ours: str, theirs: str, names: tuple[str, str] = ("scale", "bias"), change: Change = SAME) -> list[Rule]:
    return [rule(f"{ours}.{kind}", f"{theirs}/{name}", change) for kind, name in zip(("weight", "bias"), names)]


def _head(change: Change = TRANSPOSED) -> list[Rule]:
    return [rule("head.weight", "head/kernel", change), rule("head.bias", "head/bias")]


# ---- the three spellings ----


class Bit(Format):
    """What the three have in common."""

    family = "bit"
    container = "npz"
    filename = "model.npz"
    version: Any = "v2"
    root: str  # the root's kernel
    head: str
    unit: str  # finds (stage, unit)
    unit_width = 2  # digits of a unit's number

    def configuration(self, view: Archive, sidecar: Sidecar, overrides: Overrides) -> Reading:
        rows, columns, channels, width = shape_of(view, self.root, 4)
        classes = view.entries[self.head].shape[-1] if self.head in view.entries and view.entries[self.head].shape else 0
        if (rows, columns) not in ((7, 7), (3, 3)):
            raise CheckpointError(f"{view.path}: a root of {rows}x{columns} is none of BiT's.", hint="7x7, or 3x3 for small images")
        config = ResNetConfig(
            layers=layers_of(view, self.unit),
            width_factor=width / 64,
            version=self.version,
            root="standard" if rows == 7 else "small",
            channels=channels,
            classes=classes,
            image_size=overrides.image_size or (224, 224),
            norm_eps=overrides.eps,  # None: the version's
            **overrides.over(pool_pad=self.pool_pad),
        )
        return Reading(config, size_known=False)

    @property
    def pool_pad(self) -> str:
        return "inf"

    def preprocess(self, config: Any, sidecar: Sidecar) -> Preprocess:
        from vitrail.data.transform import preset

        return preset("bit", config.image_size, **({} if config.channels == 3 else {"channels": 1, "mean": (0.5,), "std": (0.5,)}))

    def cannot_hold(self, config: Any) -> list[str]:
        if not isinstance(config, ResNetConfig):
            return [f"{self.title} holds ResNets"]
        reasons = [f"{self.title} holds version {self.version}, this is {config.version}"] if config.version != self.version else []
        if config.classes and not config.head_bias:
            reasons.append("the head has no bias")
        return reasons


class BitReleased(Bit):
    """gs://bit_models: names of the TensorFlow code."""

    name = "bit"
    title = "BiT's released files"
    marks = (r"^resnet/root_block/standardized_conv2d/kernel$", r"^resnet/block1/unit01/a/", r"^resnet/group_norm/gamma$")
    root = "resnet/root_block/standardized_conv2d/kernel"
    head = "resnet/head/conv2d/kernel"
    unit = r"^resnet/block(\d+)/unit(\d+)/a/standardized_conv2d/kernel$"

    @property
    def pool_pad(self) -> str:
        return "zero"

    def view(self, archive: Archive) -> Archive:
        # some files number the convolutions of a scope: standardized_conv2d_3
        return renamed(archive, lambda name: re.sub(r"(standardized_conv2d|group_norm)_\d+/", r"\1/", name), plain_groupnorm)

    def rules(self, config: Any, style: str = "") -> list[Rule]:
        names = ("gamma", "beta")
        rules = [rule("root.conv.weight", self.root, HWIO), *_norm("norm", "resnet/group_norm", names)]
        for stage, unit in stages(config.layers):
            here, there = f"stages.{stage}.{unit}", f"resnet/block{stage + 1}/unit{unit + 1:02d}"
            for n, letter in enumerate("abc", 1):
                rules += [rule(f"{here}.conv{n}.weight", f"{there}/{letter}/standardized_conv2d/kernel", HWIO)]
                rules += _norm(f"{here}.norm{n}", f"{there}/{letter}/group_norm", names)
            rules += [rule(f"{here}.projection.weight", f"{there}/a/proj/standardized_conv2d/kernel", HWIO)]
        dense = Change(lambda t: TRANSPOSED.read(_squeezed(t)), lambda t: KERNEL_1X1.write(t).permute(2, 3, 1, 0))
        return [*rules, rule("head.weight", self.head, dense), rule("head.bias", "resnet/head/conv2d/bias")]


def _squeezed(kernel: Tensor) -> Tensor:
    """A 1x1 convolution (1, 1, in, out) as the dense kernel (in, out)."""
    return kernel.flatten(0, 2)


class BitPaper(Bit):
    """big_vision/models/bit_paper.py."""

    name = "bit_paper"
    title = "big_vision's bit_paper"
    marks = (r"^root_block/conv_root/kernel$", r"^block1/unit01/conv1/kernel$", r"^norm-pre-head/scale$")
    root = "root_block/conv_root/kernel"
    head = "head/kernel"
    unit = r"^block(\d+)/unit(\d+)/conv1/kernel$"

    def view(self, archive: Archive) -> Archive:
        return _stripped(archive, self.root)

    def rules(self, config: Any, style: str = "") -> list[Rule]:
        rules = [rule("root.conv.weight", self.root, HWIO), *_norm("norm", "norm-pre-head", change=SPREAD)]
        for stage, unit in stages(config.layers):
            here, there = f"stages.{stage}.{unit}", f"block{stage + 1}/unit{unit + 1:02d}"
            for n in (1, 2, 3):
                rules += [rule(f"{here}.conv{n}.weight", f"{there}/conv{n}/kernel", HWIO)]
                rules += _norm(f"{here}.norm{n}", f"{there}/gn{n}", change=SPREAD)
            rules += [rule(f"{here}.projection.weight", f"{there}/conv_proj/kernel", HWIO)]
        return [*rules, *_head()]


class BitV1(Bit):
    """big_vision/models/bit.py."""

    name = "bit_v1"
    title = "big_vision's bit"
    version = "v1"
    marks = (r"^conv_root/kernel$", r"^gn_root/scale$", r"^block1/unit1/conv1/kernel$")
    never = (r"^Transformer/", r"^embedding/")
    root = "conv_root/kernel"
    head = "head/kernel"
    unit = r"^block(\d+)/unit(\d+)/conv1/kernel$"

    def view(self, archive: Archive) -> Archive:
        return _stripped(archive, self.root, plain=True)

    def rules(self, config: Any, style: str = "") -> list[Rule]:
        return [*v1_rules(config.layers), *_head()]


def _stripped(archive: Archive, anchor: str, plain: bool = False) -> Archive:
    prefix = without_prefix(archive, anchor)
    if prefix is None:
        return archive
    spread = lambda name, shape: (1, 1, 1, *shape) if len(shape) == 1 and GROUPNORM.search(name) else shape
    spell = lambda name: name[len(prefix) :] if name.startswith(prefix) else None
    return renamed(archive, spell, plain_groupnorm if plain else spread)


FORMATS = (BitReleased(), BitPaper(), BitV1())
