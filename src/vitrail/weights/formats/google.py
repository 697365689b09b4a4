"""Google's .npz files of Vision Transformers and hybrids.

    npz          vit_jax, the paper's code: positions in Transformer/posembed_input, a row for the class token.
                 Two generations of names in a block:  linen     LayerNorm_0  MultiHeadDotProductAttention_0  LayerNorm_1  MlpBlock_0
                                                       prelinen  LayerNorm_0  MultiHeadDotProductAttention_1  LayerNorm_2  MlpBlock_3
    big_vision   its successor: pos_embedding at the top, patches only; sincos, MAP heads, blocks stacked (scan), SigLIP

Dense kernels are (in, out), convolutions (h, w, in, out), attention (in, heads, width of a
head) and back. LayerNorm has epsilon 1e-6 and GELU is the tanh form, in both.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vitrail.model.config import ResNetStem, ViTConfig
from vitrail.weights.archive import Archive
from vitrail.weights.format import Format, Overrides, Reading, blocks_of, renamed, shape_of, size_for
from vitrail.weights.formats import folds
from vitrail.weights.formats.bit import layers_of, plain_groupnorm, v1_rules, without_prefix
from vitrail.weights.rules import BATCHED, HWIO, TRANSPOSED, Change, Rule, joined, per_block, rule, stacked
from vitrail.weights.sidecar import Sidecar

if TYPE_CHECKING:
    from vitrail.data.transform import Preprocess

__all__ = ["FORMATS"]

LATE = "Transformer/posembed_input/pos_embedding"
TOP = "pos_embedding"
LINEN = {"norm1": "LayerNorm_0", "attention": "MultiHeadDotProductAttention_0", "norm2": "LayerNorm_1", "mlp": "MlpBlock_0"}
PRELINEN = {"norm1": "LayerNorm_0", "attention": "MultiHeadDotProductAttention_1", "norm2": "LayerNorm_2", "mlp": "MlpBlock_3"}
INLINED = ("probe", "MlpBlock_0/", "MultiHeadDotProductAttention_0/", "LayerNorm_0/")  # an early MAP head without its scope


class Google(Format):
    """What both systems share: everything but where positions lie and what they cover."""

    family = "vit"
    container = "npz"
    filename = "model.npz"
    positions: str  # the name of the table

    # ---- reading ----

    def view(self, archive: Archive) -> Archive:
        prefix = without_prefix(archive, "Transformer/encoder_norm/scale")
        if prefix is None:
            return archive
        view = renamed(archive, lambda name: _plain(name[len(prefix) :]) if name.startswith(prefix) else None, plain_groupnorm)
        left = sorted({"/".join(name.split("/")[:2]) for name in archive.entries if not name.startswith(prefix)})
        if not left:
            return view
        return dataclasses.replace(view, notes=(*view.notes, f"left out, no part of the image model: {', '.join(left[:8])}"))

    def style_of(self, view: Archive) -> str:
        if any(name.startswith("Transformer/encoderblock/") for name in view.entries):
            return "scan"
        return "prelinen" if any("/MultiHeadDotProductAttention_1/" in name for name in view.entries) else "linen"

    def configuration(self, view: Archive, sidecar: Sidecar, overrides: Overrides) -> Reading:
        rows, columns, inputs, width = shape_of(view, "embedding/kernel", 4)
        depth, heads, mlp_width = self._block(view)
        stem = _stem(view)
        token = "cls" in view.entries
        step = (rows * (stem.stride if stem else 1), columns * (stem.stride if stem else 1))
        table = shape_of(view, self.positions, 3)[1] if self.positions in view.entries else None
        class_row = token and self.has_class_row(table, step, overrides)
        size, known = size_for(view, None if table is None else table - class_row, step, overrides)
        config = ViTConfig(
            width=width,
            depth=depth,
            mlp_width=mlp_width,
            patch_size=(rows, columns),
            image_size=size,
            channels=shape_of(view, "conv_root/kernel", 4)[2] if stem else inputs,
            classes=shape_of(view, "head/kernel", 2)[1] if "head/kernel" in view.entries else 0,
            stem=stem,
            class_token=token,
            position="sincos2d" if table is None else "learned",
            position_class=class_row,
            representation=shape_of(view, "pre_logits/kernel", 2)[1] if "pre_logits/kernel" in view.entries else None,
            head_bias="head/bias" in view.entries or "head/kernel" not in view.entries,
            **overrides.over(
                heads=heads,
                eps=1e-6,
                activation="gelu_tanh",
                pool="token" if token else "map" if "MAPHead_0/probe" in view.entries else "gap",
                position_resample="bilinear",
            ),
        )
        return Reading(config, known)

    def _block(self, view: Archive) -> tuple[int, int, int]:
        """(depth, heads, width of the MLP) from the first block, or from all of them stacked."""
        style = self.style_of(view)
        names, scan = _names(style), style == "scan"
        first = "Transformer/encoderblock/" if scan else "Transformer/encoderblock_0/"
        query = shape_of(view, f"{first}{names['attention']}/query/kernel", 4 if scan else 3)
        hidden = shape_of(view, f"{first}{names['mlp']}/Dense_0/kernel", 3 if scan else 2)
        return query[0] if scan else blocks_of(view, r"^Transformer/encoderblock_(\d+)/"), query[-2], hidden[-1]

    def has_class_row(self, table: int | None, step: tuple[int, int], overrides: Overrides) -> bool:
        """Whether the first position is the class token's, in a file that has one."""
        raise NotImplementedError

    def preprocess(self, config: Any, sidecar: Sidecar) -> Preprocess:
        from vitrail.data.transform import preset

        grey = {} if config.channels == 3 else {"channels": 1, "mean": (0.5,), "std": (0.5,)}
        return preset(self.view_for(config), config.image_size, **grey)

    def view_for(self, config: Any) -> str:
        return "vit_jax"

    # ---- names, both ways ----

    def rules(self, config: Any, style: str = "") -> list[Rule]:
        style = style or self.styles[0]
        names = _names(style)
        attention, mlp = names["attention"], names["mlp"]
        there = "Transformer/encoderblock/" if style == "scan" else "Transformer/encoderblock_{i}/"
        blocks = [
            *_norm("blocks.{i}.norm1", f"{there}{names['norm1']}"),
            *_attention(config, "blocks.{i}.attention.qkv", "blocks.{i}.attention.out", f"{there}{attention}"),
            *_norm("blocks.{i}.norm2", f"{there}{names['norm2']}"),
            *_mlp("blocks.{i}.mlp", f"{there}{mlp}"),
        ]
        return [
            rule("cls", "cls"),
            rule("position.table", self.positions, BATCHED),
            rule("patch.weight", "embedding/kernel", HWIO),
            rule("patch.bias", "embedding/bias"),
            *(v1_rules(config.stem.layers, "stem.") if config.stem else ()),
            *(stacked(config.depth, blocks) if style == "scan" else per_block(config.depth, blocks)),
            *_norm("norm", "Transformer/encoder_norm"),
            *self.map_rules(config),
            *_dense("pre_logits", "pre_logits"),
            *_dense("head", "head"),
        ]

    def map_rules(self, config: Any) -> list[Rule]:
        there = "MAPHead_0"
        return [
            rule("map.probe", f"{there}/probe"),
            *_attention(config, "map.q", "map.out", f"{there}/MultiHeadDotProductAttention_0", ("query",)),
            *_attention(config, "map.kv", None, f"{there}/MultiHeadDotProductAttention_0", ("key", "value")),
            *_norm("map.norm", f"{there}/LayerNorm_0"),
            *_mlp("map.mlp", f"{there}/MlpBlock_0"),
        ]

    # ---- writing ----

    def cannot_hold(self, config: Any) -> list[str]:
        if not isinstance(config, ViTConfig):
            return [f"{self.title} holds Vision Transformers and hybrids"]
        wrong = {
            f"positions of the kind {config.position!r} {config.position_at!r}": (config.position, config.position_at)
            not in (("learned", "stem"), ("learned2d", "stem"), ("sincos2d", "stem"), ("none", "stem")),
            "registers": config.registers > 0,
            "a distillation token": config.distilled,
            "a LayerNorm before the blocks": config.norm_pre,
            "a LayerNorm after pooling": config.fc_norm,
            "no final LayerNorm": not config.final_norm,
            "LayerScale": config.layer_scale is not None,
            "normalised q and k": config.qk_norm,
            "a gated MLP": config.mlp != "plain",
            "class token and mean concatenated": config.pool == "token+gap",
            "a stem with a small root": config.stem is not None and config.stem.root != "standard",
        }
        return [f"{self.title} has no place for {what}" for what, true in wrong.items() if true]

    def fold(self, config: Any, state: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor], tuple[str, ...]]:
        table = [folds.position_table] if config.position == "learned2d" else [folds.zero_positions]
        return folds.chain(config, state, *table, folds.patch_bias, folds.qkv_bias, folds.dense_biases, folds.head_bias)


class VitJax(Google):
    """google-research/vision_transformer: the paper's own files, and AugReg's."""

    name = "npz"
    title = "Google's vit_jax"
    marks = (
        r"^embedding/kernel$",
        r"^Transformer/encoderblock(?:_0)?/",
        r"^Transformer/encoder_norm/scale$",
        r"^Transformer/posembed_input/",
    )
    styles = ("linen", "prelinen", "scan")
    positions = LATE

    def has_class_row(self, table: int | None, step: tuple[int, int], overrides: Overrides) -> bool:
        return True

    def cannot_hold(self, config: Any) -> list[str]:
        reasons = super().cannot_hold(config)
        if isinstance(config, ViTConfig):
            if config.position == "sincos2d":
                reasons.append(f"{self.title} has no place for positions of the kind {config.position!r}")
            if config.pool == "map":
                reasons.append(f"{self.title} has no place for a MAP head")
            if config.class_token and not config.position_class and config.position != "none":
                reasons.append(f"{self.title} has no class token without a position")
        return reasons


class BigVision(Google):
    """google-research/big_vision, SigLIP's image towers among them."""

    name = "big_vision"
    title = "big_vision"
    marks = (r"^embedding/kernel$", r"^Transformer/encoderblock(?:_0)?/", r"^Transformer/encoder_norm/scale$")
    never = (r"^Transformer/posembed_input/",)
    styles = ("linen", "scan", "prelinen")
    positions = TOP

    def has_class_row(self, table: int | None, step: tuple[int, int], overrides: Overrides) -> bool:
        """Patches only; but files of before 2022 have a row more, known by the square that is left without it."""
        if table is None:
            return False
        if overrides.image_size is not None and math.prod(s // p for s, p in zip(overrides.image_size, step)) == table:
            return False
        return table > 1 and math.isqrt(table - 1) ** 2 == table - 1

    def view_for(self, config: Any) -> str:
        return "big_vision_squash" if config.pool == "map" else "big_vision"

    def cannot_hold(self, config: Any) -> list[str]:
        reasons = super().cannot_hold(config)
        if isinstance(config, ViTConfig) and config.stem is not None:
            reasons.append(f"{self.title}'s ViT has no convolutional stem")
        return reasons

    def fold(self, config: Any, state: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor], tuple[str, ...]]:
        config, state, said = super().fold(config, state)
        if not (config.class_token and config.position_class and config.position == "learned"):
            return config, state, said
        table = state["position.table"]
        folded = {**state, "cls": state["cls"] + table[0], "position.table": table[1:].contiguous()}
        return config.replace(position_class=False), folded, (*said, "the class token's position is added into the class token")


# ---- pieces ----


def _plain(name: str) -> str:
    """The few names that moved: positions inside the encoder (before 2022), a MAP head without its scope."""
    if name == "Transformer/pos_embedding":
        return TOP
    return f"MAPHead_0/{name}" if name.startswith(INLINED) else name


def _names(style: str) -> dict[str, str]:
    return PRELINEN if style == "prelinen" else LINEN


def _stem(view: Archive) -> ResNetStem | None:
    if "conv_root/kernel" not in view.entries:
        return None
    return ResNetStem(layers=layers_of(view, r"^block(\d+)/unit(\d+)/conv1/kernel$"), width=shape_of(view, "conv_root/kernel", 4)[3])


def _norm(ours: str, theirs: str) -> list[Rule]:
    return [rule(f"{ours}.weight", f"{theirs}/scale"), rule(f"{ours}.bias", f"{theirs}/bias")]


def _dense(ours: str, theirs: str) -> list[Rule]:
    return [rule(f"{ours}.weight", f"{theirs}/kernel", TRANSPOSED), rule(f"{ours}.bias", f"{theirs}/bias")]


def _mlp(ours: str, theirs: str) -> list[Rule]:
    return [*_dense(f"{ours}.fc1", f"{theirs}/Dense_0"), *_dense(f"{ours}.fc2", f"{theirs}/Dense_1")]


def _attention(
    config: Any, inward: str, outward: str | None, theirs: str, parts: tuple[str, ...] = ("query", "key", "value")
) -> list[Rule]:
    """Projections (width, heads, width of a head), several of which are one of ours; and the way back."""
    heads = (config.heads, config.width // config.heads)
    kernel = Change(lambda t: t.flatten(1).T, lambda t: t.T.unflatten(1, heads))
    bias = Change(lambda t: t.flatten(), lambda t: t.unflatten(0, heads))
    rules = [
        joined(f"{inward}.weight", [f"{theirs}/{part}/kernel" for part in parts], kernel),
        joined(f"{inward}.bias", [f"{theirs}/{part}/bias" for part in parts], bias),
    ]
    if outward is not None:
        back = Change(lambda t: t.flatten(0, 1).T, lambda t: t.T.unflatten(0, heads))
        rules += [rule(f"{outward}.weight", f"{theirs}/out/kernel", back), rule(f"{outward}.bias", f"{theirs}/out/bias")]
    return rules


FORMATS = (VitJax(), BigVision())
