"""Hugging Face transformers: ViT, ViT-MSN, MAE's encoder, I-JEPA, DeiT, DINOv2 with and without registers.

Two generations of names exist: those of the hub (`encoder.layer.0.attention.attention.query`,
which `save_pretrained` still writes, and so do we) and the modules' own since 2026
(`layers.0.attention.q_proj`). config.json says heads, epsilon and activation; without it ViT
and DeiT have 1e-12, DINOv2 and MSN 1e-6, all of them the exact GELU.

A model with a head carries its family's prefix (`vit.`), one without does not.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.model.config import ViTConfig
from vitrail.weights.archive import Archive
from vitrail.weights.format import Format, Overrides, Reading, blocks_of, heads_for, renamed, shape_of, size_for
from vitrail.weights.formats import folds, said
from vitrail.weights.formats.timm import known_heads
from vitrail.weights.rules import BATCHED, Rule, joined, per_block, rule
from vitrail.weights.sidecar import Sidecar

if TYPE_CHECKING:
    from vitrail.data.transform import Preprocess
    from vitrail.weights.card import Card

__all__ = ["ACTIVATIONS", "FORMATS", "HuggingFace", "processor_of", "view_of"]

# transformers' hidden_act -> ours; the first of equals is written
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_pytorch_tanh": "gelu_tanh",
    "quick_gelu": "quick_gelu",
    "silu": "silu",
    "relu": "relu",
    "gelu_python": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_fast": "gelu_tanh",
    "gelu_python_tanh": "gelu_tanh",
    "gelu_accurate": "gelu_tanh",
    "swish": "silu",
}
RESAMPLE = {0: "nearest", 1: "lanczos", 2: "bilinear", 3: "bicubic", 4: "area"}  # Pillow's numbers; its box is the mean of an area


@dataclass(frozen=True)
class Family:
    """A model_type of transformers: its classes, its prefix, the spelling of its blocks."""

    model_type: str
    prefix: str
    model: str  # class without a head; with one: + "ForImageClassification"
    eps: float = 1e-12
    resample: str = "bicubic"
    dino: bool = False  # LayerScale, norm1 and norm2, a head that reads class token and mean


VIT = Family("vit", "vit.", "ViT")
MSN = Family("vit_msn", "vit.", "ViTMSN", eps=1e-6)
MAE = Family("vit_mae", "vit.", "ViTMAE")
IJEPA = Family("ijepa", "ijepa.", "IJepa")
DEIT = Family("deit", "deit.", "DeiT")
DINOV2 = Family("dinov2", "dinov2.", "Dinov2", eps=1e-6, dino=True)
REGISTERS = Family(
    "dinov2_with_registers", "dinov2_with_registers.", "Dinov2WithRegisters", eps=1e-6, resample="bicubic_antialias", dino=True
)
FAMILIES = {family.model_type: family for family in (VIT, MSN, MAE, IJEPA, DEIT, DINOV2, REGISTERS)}
PREFIX = re.compile(r"^(vit|deit|ijepa|dinov2|dinov2_with_registers)\.")
BODY = re.compile(r"^(embeddings|encoder|layers|layernorm|pooler)\.")  # without a prefix
HEADS = ("classifier.weight", "cls_classifier.weight")


# ---------------------------------------------------------------- names


def family_of(config: ViTConfig) -> Family:
    """The family that a model belongs to, by what it has."""
    if config.distilled or (config.registers == 1 and config.position_registers and config.layer_scale is None):
        return DEIT
    if config.registers:
        return REGISTERS
    if config.layer_scale is not None or config.mlp == "swiglu" or config.pool == "token+gap":
        return DINOV2
    return VIT if config.class_token else IJEPA


def block_rules(family: Family, style: str, swiglu: bool) -> list[Rule]:
    """One block, {i} for its number."""
    new = style == "new"
    at = "encoder.layer.{i}." if family.dino or not new else "layers.{i}."
    qkv, out = (
        ("q_proj k_proj v_proj", "attention.o_proj") if new else ("attention.query attention.key attention.value", "attention.output.dense")
    )
    norm1, norm2 = ("norm1", "norm2") if family.dino else ("layernorm_before", "layernorm_after")
    fc1, fc2 = ("mlp.fc1", "mlp.fc2") if family.dino or new else ("intermediate.dense", "output.dense")
    rules = []
    for kind in ("weight", "bias"):
        rules += [
            rule(f"blocks.{{i}}.norm1.{kind}", f"{at}{norm1}.{kind}"),
            joined(f"blocks.{{i}}.attention.qkv.{kind}", [f"{at}attention.{name}.{kind}" for name in qkv.split()]),
            rule(f"blocks.{{i}}.attention.out.{kind}", f"{at}{out}.{kind}"),
            rule(f"blocks.{{i}}.norm2.{kind}", f"{at}{norm2}.{kind}"),
        ]
        if swiglu and new:
            gate = [f"{at}mlp.gate_proj.{kind}", f"{at}mlp.up_proj.{kind}"]
            rules += [joined(f"blocks.{{i}}.mlp.fc1.{kind}", gate), rule(f"blocks.{{i}}.mlp.fc2.{kind}", f"{at}mlp.down_proj.{kind}")]
        elif swiglu:
            fc1, fc2 = "mlp.weights_in", "mlp.weights_out"
        if not (swiglu and new):
            rules += [rule(f"blocks.{{i}}.mlp.fc1.{kind}", f"{at}{fc1}.{kind}"), rule(f"blocks.{{i}}.mlp.fc2.{kind}", f"{at}{fc2}.{kind}")]
    rules += [rule(f"blocks.{{i}}.scale{n}", f"{at}layer_scale{n}.lambda1") for n in (1, 2)]
    return rules


def body_rules(config: ViTConfig, family: Family, style: str) -> list[Rule]:
    """Everything but the heads, without prefix."""
    registers = "embeddings.distillation_token" if family is DEIT else "embeddings.register_tokens"
    single = {
        "cls": "embeddings.cls_token",
        "dist": "embeddings.distillation_token",
        "registers": registers,
        "patch.weight": "embeddings.patch_embeddings.projection.weight",
        "patch.bias": "embeddings.patch_embeddings.projection.bias",
        "norm.weight": "layernorm.weight",
        "norm.bias": "layernorm.bias",
        "pre_logits.weight": "pooler.dense.weight",
        "pre_logits.bias": "pooler.dense.bias",
    }
    rules = [rule(ours, theirs) for ours, theirs in single.items()]
    rules.append(rule("position.table", "embeddings.position_embeddings", BATCHED))
    return rules + per_block(config.depth, block_rules(family, style, config.mlp == "swiglu"))


def prefixed(r: Rule, prefix: str) -> Rule:
    return dataclasses.replace(r, theirs=tuple(prefix + name for name in r.theirs))


# ---------------------------------------------------------------- the format


class HuggingFace(Format):
    """transformers' Vision Transformers."""

    name = "hf"
    title = "Hugging Face transformers (ViT, DeiT, DINOv2)"
    marks = (
        r"^(vit\.|deit\.|ijepa\.|dinov2\.|dinov2_with_registers\.)?embeddings\.patch_embeddings\.projection\.weight$",
        r"^(vit\.|deit\.|ijepa\.|dinov2\.|dinov2_with_registers\.)?embeddings\.position_embeddings$",
        r"(^|\.)(encoder\.layer|layers)\.0\.attention\.(attention\.query|q_proj)\.weight$",
        r"(^|\.)(encoder\.layer|layers)\.0\.(norm1|layernorm_before)\.weight$",
    )
    never = (r"relative_position_bias", r"lambda_1$", r"detection_tokens$")
    ignored = (r"embeddings\.mask_token$", r"^decoder\.", r"pooler\.dense\.", r"position_ids$")
    styles = ("hub", "new")

    def view(self, archive: Archive) -> Archive:
        """With a head, the family's prefix stands before all names but the head's; without one before none.

        Files differ: MAE keeps the prefix without a head, and some releases of transformers save MSN with a
        prefix before half of the names.
        """
        if not any(name in archive.entries for name in HEADS):
            return renamed(archive, lambda name: PREFIX.sub("", name))
        prefix = next((match[0] for name in archive.entries if (match := PREFIX.match(name))), "")
        return renamed(archive, lambda name: prefix + name if BODY.match(name) else name)

    def style_of(self, view: Archive) -> str:
        return "new" if any(name.endswith(".attention.q_proj.weight") for name in view.entries) else "hub"

    def recognise(self, archive: Archive, sidecar: Sidecar) -> float | None:
        score = super().recognise(archive, sidecar)
        return None if score is None else score + ("model_type" in sidecar.config)

    def configuration(self, view: Archive, sidecar: Sidecar, overrides: Overrides) -> Reading:
        config, entries = sidecar.config, view.entries
        family = self._family(view, config)
        at = family.prefix if any(name in entries for name in HEADS) else ""
        has = lambda name: at + name in entries
        width, channels, rows, columns = shape_of(view, at + "embeddings.patch_embeddings.projection.weight", 4)
        layer = at + ("layers." if has("layers.0.layernorm_before.weight") else "encoder.layer.")
        depth = blocks_of(view, rf"^{re.escape(layer)}(\d+)\.")
        teacher = "cls_classifier.weight" in entries
        class_token = has("embeddings.cls_token")
        registers = self._registers(view, at, teacher)
        prefix = int(class_token) + int(teacher) + (registers if family is DEIT else 0)
        positions = shape_of(view, at + "embeddings.position_embeddings", 3)[1]
        size, known = size_for(
            view, positions - prefix, (rows, columns), overrides, said.patched(said.size(config, "image_size"), (rows, columns))
        )
        swiglu, mlp_width = self._mlp(view, layer)
        classes, pool = self._head(view, width, teacher, class_token)
        activation = said.word(config, "hidden_act") or "gelu"
        if activation not in ACTIVATIONS:
            raise CheckpointError(
                f"{view.path}: the config.json asks for hidden_act = {activation!r}, which Vitrail does not have.", hint="pass activation="
            )
        pooler = has("pooler.dense.weight") and not classes
        if pooler and (said.word(config, "pooler_act") or "tanh") != "tanh":
            raise CheckpointError(
                f"{view.path}: a pooler with {config['pooler_act']!r}; Vitrail's has tanh.", hint="pass classes=0 to a file without pooler"
            )
        heads = overrides.heads or said.whole(config, "num_attention_heads") or known_heads(width, depth)
        return Reading(
            ViTConfig(
                width=width,
                depth=depth,
                heads=heads_for(view, width, heads),
                mlp_width=mlp_width,
                patch_size=(rows, columns),
                image_size=size,
                channels=channels,
                classes=classes,
                class_token=class_token,
                registers=registers,
                distilled=teacher,
                patch_bias=has("embeddings.patch_embeddings.projection.bias"),
                position_registers=registers > 0 and family is DEIT,
                qkv_bias=any(re.search(r"0\.attention\.(attention\.query|q_proj)\.bias$", name) for name in entries),
                mlp="swiglu" if swiglu else "plain",
                layer_scale=(said.number(config, "layerscale_value") or 1.0) if family.dino else None,
                pool=overrides.pool or pool,  # type: ignore[arg-type]
                representation=shape_of(view, at + "pooler.dense.weight", 2)[0] if pooler else None,
                head_bias=not classes or any(name in entries for name in ("classifier.bias", "cls_classifier.bias")),
                **overrides.over(eps=self._eps(config, family), activation=ACTIVATIONS[activation], position_resample=family.resample),
            ),
            known,
        )

    def _family(self, view: Archive, config: Mapping[str, Any]) -> Family:
        """By config.json, else by the names."""
        said_type = said.word(config, "model_type")
        if said_type is not None and said_type not in FAMILIES:
            raise CheckpointError(
                f"{view.path}: the config.json names the model_type {said_type!r}, which Vitrail does not have.",
                hint=f"it has {', '.join(FAMILIES)}",
            )
        names = " ".join(view.entries)
        if "embeddings.register_tokens" in names:
            found = REGISTERS
        elif "layer_scale1.lambda1" in names:
            found = DINOV2
        elif "embeddings.distillation_token" in names:
            found = DEIT
        else:
            found = VIT if "embeddings.cls_token" in names else IJEPA
        same_names = (VIT, MSN, MAE)
        return FAMILIES[said_type] if said_type and found is VIT and FAMILIES[said_type] in same_names else found

    def _registers(self, view: Archive, at: str, teacher: bool) -> int:
        """DINOv2's registers; the distillation token of a DeiT without a second head is one more token like them."""
        if f"{at}embeddings.register_tokens" in view.entries:
            return shape_of(view, f"{at}embeddings.register_tokens", 3)[1]
        return int(f"{at}embeddings.distillation_token" in view.entries and not teacher)

    def _mlp(self, view: Archive, layer: str) -> tuple[bool, int]:
        """(is it gated, hidden width)."""
        for second, gated in (("mlp.weights_out", True), ("mlp.down_proj", True), ("mlp.fc2", False), ("output.dense", False)):
            if f"{layer}0.{second}.weight" in view.entries:
                return gated, shape_of(view, f"{layer}0.{second}.weight", 2)[1]
        raise CheckpointError(f"{view.path}: block 0 has no MLP.", hint="the file is cut, or no image model of this origin")

    def _head(self, view: Archive, width: int, teacher: bool, class_token: bool) -> tuple[int, str]:
        """(classes, pooling)."""
        plain = "token" if class_token else "gap"
        if teacher:
            return shape_of(view, "cls_classifier.weight", 2)[0], "token"
        if "classifier.weight" not in view.entries:
            return 0, plain
        classes, reads = shape_of(view, "classifier.weight", 2)
        return classes, "token+gap" if reads == 2 * width else plain

    def _eps(self, config: Mapping[str, Any], family: Family) -> float:
        told = said.number(config, "layer_norm_eps")
        return family.eps if told is None else told

    def rules(self, config: Any, style: str = "") -> list[Rule]:
        family = family_of(config)
        prefix = family.prefix if config.classes else ""
        heads = {"head": "cls_classifier" if config.distilled else "classifier", "head_dist": "distillation_classifier"}
        named = [rule(f"{ours}.{kind}", f"{theirs}.{kind}") for ours, theirs in heads.items() for kind in ("weight", "bias")]
        return [*(prefixed(r, prefix) for r in body_rules(config, family, style)), *named]

    def preprocess(self, config: Any, sidecar: Sidecar) -> Preprocess:
        processor = sidecar.processor or said.table(sidecar.files.get("processor_config.json", {}), "image_processor")
        return view_of(config, processor, said.word(sidecar.config, "model_type") or family_of(config).model_type)

    def classes(self, sidecar: Sidecar) -> tuple[str, ...]:
        """id2label, unless it only counts."""
        labels = sidecar.config.get("id2label")
        if not isinstance(labels, Mapping):
            return ()
        names = [labels.get(str(index)) for index in range(len(labels))]
        if not all(isinstance(name, str) for name in names) or all(name == f"LABEL_{index}" for index, name in enumerate(names)):
            return ()
        return tuple(str(name) for name in names)

    # ---- writing ----

    def cannot_hold(self, config: Any) -> list[str]:
        return reasons(config)

    def fold(self, config: Any, state: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor], tuple[str, ...]]:
        steps: list[folds.Fold] = [folds.position_table, folds.zero_positions]
        if family_of(config).dino:
            steps += [folds.register_positions, folds.class_rows, folds.unit_scales]
        else:
            steps += [folds.position_rows]
        return folds.chain(config, state, *steps, folds.patch_bias, folds.dense_biases, folds.head_bias)

    def sidecar(self, config: Any, card: Card | None) -> dict[str, Mapping[str, Any]]:
        classes = card.classes if card is not None else ()
        view = card.transform() if card is not None else self.preprocess(config, Sidecar())
        return {"config.json": describe(config, classes), "preprocessor_config.json": processor_of(view)}


# ---------------------------------------------------------------- config.json


def reasons(config: Any) -> list[str]:
    """Why no model of transformers has a place for this one."""
    if not isinstance(config, ViTConfig):
        return [f"transformers' ViT is no {type(config).__name__}"]
    family = family_of(config)
    name = family.model
    checks = [
        (config.stem is not None, "transformers' ViTs have no convolutional stem"),
        (config.position == "relative" or config.position_at != "stem", f"{name} adds learned positions at the stem, nothing else"),
        (config.norm_pre or config.qk_norm or config.fc_norm, f"{name} has no norm before the blocks, on q and k, or after pooling"),
        (not config.final_norm, f"{name} has a norm after the blocks"),
        (config.representation is not None and (config.classes > 0 or family.dino), f"{name} has a tanh layer only without a head"),
        (config.pool in ("map", "unpooled"), f"{name} has no pooling of the kind {config.pool!r}"),
        (config.mlp == "plain" and config.activation not in ACTIVATIONS.values(), f"{name} has no activation {config.activation!r}"),
    ]  # fmt: skip
    if family.dino:
        checks += dino_checks(config, name)
    else:
        checks += plain_checks(config, family)
    return [reason for wrong, reason in checks if wrong]


def plain_checks(config: ViTConfig, family: Family) -> list[tuple[bool, str]]:
    wanted = "gap" if family is IJEPA else "token"
    return [
        (config.pool != wanted, f"{family.model} pools by {wanted!r}, not {config.pool!r}"),
        (config.registers > 0 and family is not DEIT, f"{family.model} has no registers"),
        (config.distilled and (not config.classes or config.registers > 0), "a distilled DeiT has two heads and no registers"),
        (config.layer_scale is not None or config.mlp != "plain", f"{family.model} has neither LayerScale nor SwiGLU"),
    ]


def dino_checks(config: ViTConfig, name: str) -> list[tuple[bool, str]]:
    return [
        (not config.class_token, f"{name} has a class token"),
        (config.classes > 0 and config.pool != "token+gap", f"{name}'s head reads the class token and the mean"),
        (config.classes == 0 and config.pool != "token", f"{name} without a head gives the class token"),
        (config.grid[0] != config.grid[1], f"{name} takes its positions for a square grid, not {config.grid[0]} x {config.grid[1]}"),
        (mlp_ratio(config) is None, f"{name} has an MLP of a whole multiple of the width (gated: 2/3 of one), not {config.mlp_width}"),
    ]  # fmt: skip


def mlp_ratio(config: ViTConfig) -> int | None:
    """DINOv2's mlp_ratio, a whole number, where there is one that gives this MLP."""
    for ratio in range(1, 129):
        hidden = config.width * ratio
        if (config.mlp == "swiglu" and (int(hidden * 2 / 3) + 7) // 8 * 8 == config.mlp_width) or (
            config.mlp == "plain" and hidden == config.mlp_width
        ):
            return ratio
    return None


def describe(config: ViTConfig, classes: tuple[str, ...]) -> dict[str, Any]:
    """config.json: what the class of transformers is built from."""
    family = family_of(config)
    one = lambda pair: pair[0] if pair[0] == pair[1] else list(pair)
    kind = "Model" if not config.classes else "ForImageClassification" + ("WithTeacher" if config.distilled else "")
    described: dict[str, Any] = {
        "architectures": [family.model + kind],
        "attention_probs_dropout_prob": 0.0,
        "dtype": "float32",
        "hidden_act": next(theirs for theirs, ours in ACTIVATIONS.items() if ours == config.activation),
        "hidden_dropout_prob": 0.0,
        "hidden_size": config.width,
        "image_size": one(config.image_size),
        "initializer_range": 0.02,
        "layer_norm_eps": config.eps,
        "model_type": family.model_type,
        "num_attention_heads": config.heads,
        "num_channels": config.channels,
        "num_hidden_layers": config.depth,
        "patch_size": one(config.patch_size),
        "qkv_bias": config.qkv_bias,
    }
    if family.dino:
        described |= {
            "mlp_ratio": mlp_ratio(config),
            "use_swiglu_ffn": config.mlp == "swiglu",
            "layerscale_value": config.layer_scale or 1.0,
        }
        described |= {"num_register_tokens": config.registers} if config.registers else {"use_mask_token": False}
    else:
        described |= {"intermediate_size": config.mlp_width, "encoder_stride": config.patch_size[0]}
        described |= {"pooler_act": "tanh", "pooler_output_size": config.representation or config.width}
    if config.classes:
        names = list(classes) if len(classes) == config.classes else [f"LABEL_{index}" for index in range(config.classes)]
        described["id2label"] = {str(index): name for index, name in enumerate(names)}
        described["label2id"] = {name: index for index, name in enumerate(names)}
    return dict(sorted(described.items()))


# ---------------------------------------------------------------- preprocessor_config.json


def view_of(config: Any, processor: Mapping[str, Any], model_type: str = "vit") -> Preprocess:
    """transformers' image processors as a Preprocess; without a file, the default of the family."""
    from vitrail.data.transform import IMAGENET_MEAN, IMAGENET_STD, Preprocess, preset

    size = config.image_size
    if not processor:
        usual = config.channels == 3 and model_type in ("deit", "vit_mae", "vit_msn")
        mean, std = (IMAGENET_MEAN, IMAGENET_STD) if usual else ((0.5,), (0.5,))
        if model_type == "deit":
            return Preprocess(size, "bit", _scaled(256, 224, size), "bicubic", True, mean, std, "round", config.channels)
        if model_type.startswith("dinov2") and config.channels == 3:
            return preset("dinov2", size)
        return Preprocess(size, "squash", None, "bilinear", True, mean, std, "round", config.channels)
    fit = lambda values: values if len(values) in (1, config.channels) else (sum(values) / len(values),)
    scale = 255 * (said.number(processor, "rescale_factor") or 1 / 255) if said.flag(processor, "do_rescale") is not False else 255.0
    normal = said.flag(processor, "do_normalize") is not False
    means = fit(said.numbers(processor, "image_mean") or (0.5,)) if normal else (0.0,)
    stds = fit(said.numbers(processor, "image_std") or (0.5,)) if normal else (1.0,)
    filters = RESAMPLE.get(said.whole(processor, "resample", least=0) or 0 if "resample" in processor else 2, "bilinear")
    crops = said.flag(processor, "do_center_crop") or (said.flag(processor, "do_center_crop") is None and "crop_size" in processor)
    crop = said.size(processor, "crop_size") if crops else None
    mode, resize = "squash", None
    if crop is not None:
        whole = said.size(processor, "size") or crop
        mode = "shorter_crop" if _by_shorter_side(processor) else "bit"
        resize = _scaled(whole[0], min(crop), size)
    scaled = lambda values: tuple(value / scale for value in values)
    return Preprocess(size, mode, resize, filters, True, scaled(means), scaled(stds), "round", config.channels)


def _by_shorter_side(processor: Mapping[str, Any]) -> bool:
    """{"shortest_edge": 256} keeps the aspect; a plain number does so in the processors of BiT and CLIP only."""
    size = processor.get("size")
    if isinstance(size, Mapping):
        return "shortest_edge" in size
    kind = str(processor.get("image_processor_type") or processor.get("feature_extractor_type") or "")
    return kind.startswith(("Bit", "CLIP"))


def _scaled(resize: int, crop: int, size: tuple[int, int]) -> int:
    """The side before the crop, at another size than the processor's."""
    return max(round(resize * min(size) / crop), *size)


def processor_of(view: Preprocess) -> dict[str, Any]:
    """A Preprocess as the preprocessor_config.json that comes nearest."""
    rows, columns = view.image_size
    numbers = {name: number for number, name in RESAMPLE.items()}
    kind, size = "ViTImageProcessor", {"height": rows, "width": columns}
    if view.mode == "bit" and view.resize is not None:
        kind, size = "DeiTImageProcessor", {"height": view.resize, "width": view.resize}
    elif view.mode in ("shorter_crop", "resize_small_crop"):
        kind, size = "BitImageProcessor", {"shortest_edge": view.shorter_side}
    described: dict[str, Any] = {
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": list(view.mean) * (view.channels if len(view.mean) == 1 else 1),
        "image_processor_type": kind,
        "image_std": list(view.std) * (view.channels if len(view.std) == 1 else 1),
        "resample": numbers.get(view.interpolation, 2),
        "rescale_factor": 1 / 255,
        "size": size,
    }
    if kind != "ViTImageProcessor":
        described |= {"do_center_crop": True, "crop_size": {"height": rows, "width": columns}}
    return dict(sorted(described.items()))


FORMATS = (HuggingFace(),)
