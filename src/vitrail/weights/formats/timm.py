"""timm: its VisionTransformer (plain, distilled, hybrid) and its BiT resnetv2, with their config.json.

timm's numerics: exact GELU, LayerNorm 1e-6; convolutions standardised by sqrt(var + 1e-8)
and group norms of 1e-5; TF-SAME padding in hybrids, fixed padding with a zero-padded pool
in BiT. Where an architecture departs from that, its name tells (`by_name`).

A written folder opens in timm as `timm.create_model("local-dir:FOLDER", pretrained=True)`:
its config.json names an entry point of timm, and what differs from it in `model_args`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.model.config import ResNetConfig, ResNetStem, ViTConfig
from vitrail.weights.archive import Archive
from vitrail.weights.format import Format, Overrides, Reading, blocks_of, heads_for, shape_of, size_for
from vitrail.weights.formats import folds, said
from vitrail.weights.rules import BATCHED, KERNEL_1X1, Rule, per_block, rule
from vitrail.weights.sidecar import Sidecar

if TYPE_CHECKING:
    from vitrail.data.transform import Preprocess
    from vitrail.weights.card import Card

__all__ = ["FORMATS", "Timm", "TimmResNet", "block_rules", "known_heads", "vit_configuration"]

# (width, depth) of published models whose heads are not 64 wide -> heads
_HEADS = {(1152, 27): 16, (1280, 32): 16, (1408, 40): 16, (1664, 48): 16, (1792, 56): 16}
_POOLS = {"token": "token", "avg": "gap", "map": "map", "": "unpooled"}
_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_tanh", "quick_gelu": "quick_gelu", "silu": "silu", "swish": "silu", "relu": "relu"}
_REFUSED = re.compile(
    r"_rpn_|_18x2_|_xp_|pwee|^aimv2|_rope|dinov3|^eva02|^eva_giant|_pe_|^vit_s?relpos|^samvit|^naflex|_mci_|lingbot|_relpos"
)

_HYBRIDS: dict[tuple[int, ...], str] = {
    (): "vit_tiny_r_s16_p8_224",
    (2, 2, 2, 2): "vit_small_r26_s32_224",
    (3, 4, 9): "vit_base_r50_s16_224",
    (3, 4, 6, 3): "vit_large_r50_s32_224",
}
_BIT_LAYERS: dict[tuple[int, ...], str] = {(3, 4, 6, 3): "50", (3, 4, 23, 3): "101", (3, 8, 36, 3): "152"}
_BIT_NAMES = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")


def known_heads(width: int, depth: int) -> int | None:
    """Heads of the published sizes whose heads are not 64 wide (H, g, G, So400m)."""
    return _HEADS.get((width, depth))


def by_name(architecture: str) -> dict[str, Any]:
    """What an architecture's name says that neither its shapes nor its config.json do."""
    said_by: dict[str, Any] = {}
    if "_clip_" in architecture:
        said_by["eps"] = 1e-5
    if "quickgelu" in architecture:
        said_by["activation"] = "quick_gelu"
    if re.search(r"(base_patch32|large_patch16|so400m_patch16|giantopt_patch16)_siglip_", architecture) and not re.search(
        r"large_patch16_siglip_(gap_)?(256|384)", architecture
    ):
        said_by["activation"] = "gelu_tanh"
    if architecture.startswith(("deit3_", "flexivit_")):
        said_by["no_embed_class"] = True
    if architecture.startswith(("vit_base_patch16_gap_", "vit_giantopt_")):
        said_by["heads"] = 16
    if re.match(r"test_vit\d?$", architecture):
        said_by["heads"] = 2 if architecture in ("test_vit", "test_vit2") else 3
        said_by["pool_prefix"] = architecture == "test_vit3"
    return said_by


# ---------------------------------------------------------------- names


def block_rules(depth: int, *, mlp: str = "mlp.fc1 mlp.fc2", scales: str = "ls1.gamma ls2.gamma") -> list[Rule]:
    """The blocks of every model that descends from timm's (DeiT, DINO, MAE, DINOv2)."""
    fc1, fc2 = mlp.split()
    scale1, scale2 = scales.split()
    pairs = {
        "norm1": "norm1",
        "attention.qkv": "attn.qkv",
        "attention.q_norm": "attn.q_norm",
        "attention.k_norm": "attn.k_norm",
        "attention.out": "attn.proj",
        "norm2": "norm2",
        "mlp.fc1": fc1,
        "mlp.fc2": fc2,
    }
    rules = [
        rule(f"blocks.{{i}}.{ours}.{kind}", f"blocks.{{i}}.{theirs}.{kind}")
        for ours, theirs in pairs.items()
        for kind in ("weight", "bias")
    ]
    rules += [rule("blocks.{i}.scale1", f"blocks.{{i}}.{scale1}"), rule("blocks.{i}.scale2", f"blocks.{{i}}.{scale2}")]
    return per_block(depth, rules)


def named(pairs: Mapping[str, str]) -> list[Rule]:
    """Modules with a weight and a bias."""
    return [rule(f"{ours}.{kind}", f"{theirs}.{kind}") for ours, theirs in pairs.items() for kind in ("weight", "bias")]


def token_rules() -> list[Rule]:
    """Everything of a timm ViT but its blocks and its stem."""
    around = {
        "norm_pre": "norm_pre",
        "norm": "norm",
        "fc_norm": "fc_norm",
        "head": "head",
        "head_dist": "head_dist",
        "map.q": "attn_pool.q",
        "map.kv": "attn_pool.kv",
        "map.out": "attn_pool.proj",
        "map.norm": "attn_pool.norm",
        "map.mlp.fc1": "attn_pool.mlp.fc1",
        "map.mlp.fc2": "attn_pool.mlp.fc2",
    }
    return [
        rule("cls", "cls_token"),
        rule("dist", "dist_token"),
        rule("registers", "reg_token"),
        rule("position.table", "pos_embed", BATCHED),
        rule("patch.weight", "patch_embed.proj.weight"),
        rule("patch.bias", "patch_embed.proj.bias"),
        rule("map.probe", "attn_pool.latent"),
        *named(around),
    ]


def stage_rules(layers: tuple[int, ...], ours: str, theirs: str) -> list[Rule]:
    """The stages of a resnetv2, before a ViT or alone."""
    pairs = [(f"conv{n}.weight", f"conv{n}.weight") for n in (1, 2, 3)]
    pairs += [(f"norm{n}.{kind}", f"norm{n}.{kind}") for n in (1, 2, 3) for kind in ("weight", "bias")]
    pairs += [("projection.weight", "downsample.conv.weight")]
    pairs += [(f"projection_norm.{kind}", f"downsample.norm.{kind}") for kind in ("weight", "bias")]
    return [
        rule(f"{ours}stages.{stage}.{unit}.{mine}", f"{theirs}stages.{stage}.blocks.{unit}.{yours}")
        for stage, units in enumerate(layers)
        for unit in range(units)
        for mine, yours in pairs
    ]


def stem_rules(stem: ResNetStem) -> list[Rule]:
    """The convolutional stem of a hybrid."""
    theirs = "patch_embed.backbone."
    root = f"{theirs}stem." if stem.layers else theirs
    roots = [rule("stem.root.conv.weight", f"{root}conv.weight"), *named({"stem.root.norm": f"{root}norm"})]
    return [*roots, *stage_rules(stem.layers, "stem.", theirs)]


def resnet_rules(config: ResNetConfig) -> list[Rule]:
    """resnetv2."""
    return [
        rule("root.conv.weight", "stem.conv.weight"),
        *stage_rules(config.layers, "", ""),
        *named({"norm": "norm"}),
        rule("head.weight", "head.fc.weight", KERNEL_1X1),
        rule("head.bias", "head.fc.bias"),
    ]


# ---------------------------------------------------------------- reading


def vit_configuration(
    view: Archive,
    overrides: Overrides,
    args: Mapping[str, Any],
    *,
    name: str = "",
    size: tuple[int, int] | None = None,
    pool: str | None = None,
    resample: str = "bicubic_antialias",
    rows_before: tuple[int, ...] | None = None,
) -> Reading:
    """A ViT under timm's names: shapes first, then `args` (timm's own argument names), then the architecture's name."""
    entries = view.entries
    has = entries.__contains__
    width, channels, rows, columns = shape_of(view, "patch_embed.proj.weight", 4)
    depth = blocks_of(view, r"^blocks\.(\d+)\.")
    fc1, fc2 = shape_of(view, "blocks.0.mlp.fc1.weight", 2), shape_of(view, "blocks.0.mlp.fc2.weight", 2)
    stem = stem_of(view, args)
    told = by_name(name)
    class_token, distilled = has("cls_token"), has("dist_token")
    registers = shape_of(view, "reg_token", 3)[1] if has("reg_token") else 0
    prefix = int(class_token) + int(distilled) + registers
    step = (rows * (stem.stride if stem else 1), columns * (stem.stride if stem else 1))
    size = said.patched(size, step)
    positions = shape_of(view, "pos_embed", 3)[1] if has("pos_embed") else None
    no_embed = said.flag(args, "no_embed_class")
    no_embed = told.get("no_embed_class") if no_embed is None else no_embed
    if rows_before is None:
        usual = registers > 0 or (has("blocks.0.ls1.gamma") and stem is None)
        rows_before = (0, prefix) if usual else (prefix,)
    if no_embed is not None:
        rows_before = (0,) if no_embed else (prefix,)
    patches = (
        None
        if positions is None
        else patch_positions(positions, rows_before, {0, prefix - registers, prefix}, step, (size, overrides.image_size))
    )
    image_size, known = size_for(view, patches, step, overrides, size)
    extra = 0 if positions is None or patches is None else positions - patches
    if extra not in (0, prefix - registers, prefix):
        raise CheckpointError(
            f"{view.path}: {positions} positions are neither the {patches} patches of {image_size[0]} x {image_size[1]} pixels "
            f"nor those with the {prefix} token(s) before them.",
            hint="pass the image_size= the weights were trained at",
        )
    return Reading(
        ViTConfig(
            width=width,
            depth=depth,
            heads=heads_of(view, width, depth, overrides.heads or said.whole(args, "num_heads") or told.get("heads")),
            mlp_width=fc2[1],
            patch_size=(rows, columns),
            image_size=image_size,
            channels=shape_of(view, root_name(view), 4)[1] if stem else channels,
            classes=shape_of(view, "head.weight", 2)[0] if has("head.weight") else 0,
            stem=stem,
            class_token=class_token,
            registers=registers,
            distilled=distilled,
            norm_pre=has("norm_pre.weight"),
            patch_bias=has("patch_embed.proj.bias"),
            position="learned" if positions is not None else "none",
            position_class=prefix > registers and extra > 0,
            position_registers=registers > 0 and extra == prefix,
            qkv_bias=has("blocks.0.attn.qkv.bias"),
            dense_bias=has("blocks.0.attn.proj.bias"),
            mlp="swiglu" if fc1[0] == 2 * fc2[1] else "plain",
            qk_norm=has("blocks.0.attn.q_norm.weight"),
            layer_scale=(said.number(args, "init_values") or 1e-5) if has("blocks.0.ls1.gamma") else None,
            pool=pool_of(view, overrides.pool or pool),  # type: ignore[arg-type]
            pool_prefix=bool(said.flag(args, "pool_include_prefix") or told.get("pool_prefix")),
            final_norm=has("norm.weight"),
            fc_norm=has("fc_norm.weight"),
            head_bias=has("head.bias") or not has("head.weight"),
            **overrides.over(eps=told.get("eps", 1e-6), activation=activation_of(args, told), position_resample=resample),
        ),
        known,
    )


def activation_of(args: Mapping[str, Any], told: Mapping[str, Any]) -> str:
    """timm's act_layer, by name."""
    said_so = said.word(args, "act_layer")
    if said_so is None:
        return str(told.get("activation", "gelu"))
    if said_so not in _ACTIVATIONS:
        raise CheckpointError(
            f"the config.json asks for act_layer = {said_so!r}, which Vitrail does not have.", hint=f"it has {', '.join(_ACTIVATIONS)}"
        )
    return _ACTIVATIONS[said_so]


def heads_of(view: Archive, width: int, depth: int, said_so: int | None) -> int:
    """From the norms of q and k where there are any, else as told, else by the published sizes, else 64 wide."""
    norm = view.entries.get("blocks.0.attn.q_norm.weight")
    if norm is not None and len(norm.shape) == 1 and norm.shape[0] and width % norm.shape[0] == 0:
        return width // norm.shape[0]
    return heads_for(view, width, said_so or known_heads(width, depth))


def pool_of(view: Archive, said_so: str | None) -> str:
    """As told, else by what the file has."""
    if said_so is not None:
        return said_so
    if "attn_pool.latent" in view.entries:
        return "map"
    return "token" if "cls_token" in view.entries and "fc_norm.weight" not in view.entries else "gap"


def patch_positions(positions: int, usual: tuple[int, ...], possible: set[int], step: tuple[int, int], sizes: tuple[Any, ...]) -> int:
    """How many of the positions are patches; the others belong to tokens before them.

    Where only one number of such rows is usual, that is it, unless a known image size fits
    another. Else the one that leaves a square. A class token more or less is never guessed
    from a number that happens to be a square.
    """
    for size in sizes:
        if size is not None and positions - (size[0] // step[0]) * (size[1] // step[1]) in possible:
            return int((size[0] // step[0]) * (size[1] // step[1]))
    counts = [positions - rows for rows in usual]
    return next((count for count in counts if count > 0 and math.isqrt(count) ** 2 == count), counts[0])


def root_name(view: Archive) -> str:
    """The first convolution of a hybrid's stem."""
    whole, alone = "patch_embed.backbone.stem.conv.weight", "patch_embed.backbone.conv.weight"
    return alone if alone in view.entries else whole


def stages_of(view: Archive, prefix: str) -> tuple[int, ...]:
    """Units of each stage."""
    stages = blocks_of(view, rf"^{re.escape(prefix)}stages\.(\d+)\.")
    return tuple(blocks_of(view, rf"^{re.escape(prefix)}stages\.{stage}\.blocks\.(\d+)\.") for stage in range(stages))


def stem_of(view: Archive, args: Mapping[str, Any]) -> ResNetStem | None:
    """The stem of a hybrid, None for a plain ViT."""
    if not any(name.startswith("patch_embed.backbone.") for name in view.entries):
        return None
    width = shape_of(view, root_name(view), 4)[0]
    same = said.flag(args, "padding_same")
    return ResNetStem(
        layers=stages_of(view, "patch_embed.backbone."),
        width=width,
        padding="fixed" if same is False else "same",
        norm_eps=1e-5,
        conv_eps=1e-8,
        conv_eps_in=True,
    )


class Timm(Format):
    """timm's VisionTransformer; what it shares with resnetv2 is here too."""

    name = "timm"
    title = "timm's vision_transformer"
    marks: tuple[str, ...] = (
        r"^patch_embed\.proj\.weight$",
        r"^blocks\.0\.norm1\.weight$",
        r"^blocks\.0\.attn\.qkv\.weight$",
        r"^blocks\.0\.mlp\.fc1\.weight$",
        r"^blocks\.0\.mlp\.fc2\.weight$",
    )
    never: tuple[str, ...] = (
        r"^blocks\.0\.gamma_1$",
        r"rel_pos",
        r"relative_position",
        r"^rope\.",
        r"^blocks\.0\.attn\.q_bias$",
        r"^mask_token$",
    )

    def recognise(self, archive: Archive, sidecar: Sidecar) -> float | None:
        score = super().recognise(archive, sidecar)
        return None if score is None else score + ("architecture" in sidecar.config)

    def configuration(self, view: Archive, sidecar: Sidecar, overrides: Overrides) -> Reading:
        config = sidecar.config
        architecture = architecture_of(view, config)
        args = said.table(config, "model_args")
        pool = said.word(args, "global_pool") if "global_pool" in args else said.word(config, "global_pool")
        if pool is not None and pool not in _POOLS:
            raise CheckpointError(
                f"{view.path}: the config.json asks for global_pool = {pool!r}, which Vitrail does not have.",
                hint=f"it has {', '.join(repr(known) for known in _POOLS)}; or pass pool=",
            )
        return vit_configuration(
            view, overrides, args, name=architecture, size=size_said(config, args), pool=None if pool is None else _POOLS[pool]
        )

    def rules(self, config: Any, style: str = "") -> list[Rule]:
        if isinstance(config, ResNetConfig):
            return resnet_rules(config)
        return [*token_rules(), *(stem_rules(config.stem) if config.stem else []), *block_rules(config.depth)]

    def preprocess(self, config: Any, sidecar: Sidecar) -> Preprocess:
        return preprocess_of(config, pretrained(sidecar.config))

    def classes(self, sidecar: Sidecar) -> tuple[str, ...]:
        return class_names(sidecar.config)

    # ---- writing ----

    def cannot_hold(self, config: Any) -> list[str]:
        return resnet_reasons(config) if isinstance(config, ResNetConfig) else vit_reasons(config)

    def fold(self, config: Any, state: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor], tuple[str, ...]]:
        if not isinstance(config, ViTConfig):
            return config, state, ()
        steps: list[folds.Fold] = [folds.position_table]
        if config.distilled:
            steps += [folds.zero_positions]
        if config.position_prefix or config.distilled:
            steps += [folds.position_rows]
        if not config.norm_pre:
            steps += [folds.patch_bias]
        return folds.chain(config, state, *steps, folds.head_bias)

    def sidecar(self, config: Any, card: Card | None) -> dict[str, Mapping[str, Any]]:
        described = describe_resnet(config) if isinstance(config, ResNetConfig) else describe_vit(config)
        view = card.transform() if card is not None else self.preprocess(config, Sidecar())
        described["pretrained_cfg"] = pretrained_cfg(config, view, card.classes if card is not None else ())
        return {"config.json": described}


class TimmResNet(Timm):
    """timm's resnetv2 with BiT's group norms. Written by `Timm`, which knows both."""

    title = "timm's resnetv2 (BiT)"
    marks = (
        r"^stem\.conv\.weight$",
        r"^stages\.0\.blocks\.0\.conv3\.weight$",
        r"^stages\.0\.blocks\.0\.downsample\.conv\.weight$",
        r"^stages\.0\.blocks\.0\.norm3\.weight$",
        r"^norm\.weight$",
    )
    never = (r"running_mean$",)

    def configuration(self, view: Archive, sidecar: Sidecar, overrides: Overrides) -> Reading:
        width, channels, kernel, _ = shape_of(view, "stem.conv.weight", 4)
        layers = stages_of(view, "")
        for stage in range(len(layers)):
            outputs = shape_of(view, f"stages.{stage}.blocks.0.conv3.weight", 4)[0]
            if kernel != 7 or outputs != 4 * width * 2**stage:
                raise CheckpointError(
                    f"{view.path}: stage {stage} has {outputs} channels after a {kernel} x {kernel} root of {width}; no BiT ResNet.",
                    hint="BiT roots are 7 x 7, and stage s puts out 4 * width * 2**s channels",
                )
        name = architecture_of(view, sidecar.config)
        pad = overrides.pool_pad or ("zero" if "_bit" in name or not name else "inf")
        size = overrides.image_size or size_said(sidecar.config, said.table(sidecar.config, "model_args"))
        config = ResNetConfig(
            layers=layers,
            width_factor=width / 64 if width % 64 else width // 64,
            image_size=size or (224, 224),
            channels=channels,
            classes=shape_of(view, "head.fc.weight", 4)[0] if "head.fc.weight" in view.entries else 0,
            pool_pad=pad,  # type: ignore[arg-type]
            norm_eps=1e-5 if overrides.eps is None else overrides.eps,
            conv_eps=1e-8,
            conv_eps_in=True,
            head_bias="head.fc.bias" in view.entries or "head.fc.weight" not in view.entries,
        )
        return Reading(config, size is not None)


# ---------------------------------------------------------------- config.json


def architecture_of(view: Archive, config: Mapping[str, Any]) -> str:
    """timm's name of the architecture, without its tag; one whose function is another in spite of its names is refused."""
    name = (said.word(config, "architecture") or "").split(".")[0]
    if _REFUSED.search(name):
        raise CheckpointError(
            f"{view.path}: the config.json names timm's {name!r}, whose blocks are not those of a Vision Transformer of the paper.",
            hint="its arrays have familiar names, but another function; Vitrail does not have it",
        )
    return name


def pretrained(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """timm's pretrained_cfg: a part of its own, in old files the file itself."""
    return said.table(config, "pretrained_cfg") or config


def size_said(config: Mapping[str, Any], args: Mapping[str, Any]) -> tuple[int, int] | None:
    """The image size a config.json gives."""
    return said.size(args, "img_size") or said.size(pretrained(config), "input_size")


def class_names(config: Mapping[str, Any]) -> tuple[str, ...]:
    """label_names, with descriptions where the names are WordNet ids."""
    names = config.get("label_names") or pretrained(config).get("label_names")
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return ()
    described = config.get("label_descriptions") or pretrained(config).get("label_descriptions") or {}
    if not isinstance(described, Mapping):
        described = {}
    return tuple(str(described.get(name, name)) for name in names)


def preprocess_of(config: Any, cfg: Mapping[str, Any]) -> Preprocess:
    """timm's evaluation view: shorter side to size / crop_pct, centre crop (or squashed, with crop_mode)."""
    from vitrail.data.transform import Preprocess

    hybrid_or_plain = isinstance(config, ViTConfig)
    crop = said.number(cfg, "crop_pct") or (0.9 if hybrid_or_plain else 0.875)
    interpolation = said.word(cfg, "interpolation") or ("bicubic" if hybrid_or_plain else "bilinear")
    squash = said.word(cfg, "crop_mode") == "squash"
    fit = lambda values: values if len(values) in (1, config.channels) else (sum(values) / len(values),)
    resize = math.floor(min(config.image_size) / crop) if 0 < crop <= 1 else None
    return Preprocess(
        config.image_size,
        mode="squash" if squash and crop == 1 else "shorter_crop",
        resize=None if squash and crop == 1 else resize,
        interpolation=interpolation if interpolation in ("bilinear", "bicubic", "nearest", "lanczos") else "bicubic",
        antialias=True,
        mean=fit(said.numbers(cfg, "mean") or (0.5,)),
        std=fit(said.numbers(cfg, "std") or (0.5,)),
        channels=config.channels,
        rounding="round",
    )


def pretrained_cfg(config: Any, view: Preprocess, classes: tuple[str, ...]) -> dict[str, Any]:
    """Preprocessing and input size, as timm's loaders read them."""
    resnet = isinstance(config, ResNetConfig)
    stem = None if resnet else config.stem
    short = min(config.image_size)
    crop = short / view.shorter_side if view.mode in ("shorter_crop", "resize_small_crop") else 1.0
    first = "stem.conv" if resnet else "patch_embed.proj"
    if stem is not None:
        first = "patch_embed.backbone.stem.conv" if stem.layers else "patch_embed.backbone.conv"
    repeat = lambda values: list(values) if len(values) == config.channels else [values[0]] * config.channels
    said_here: dict[str, Any] = {
        "custom_load": False,
        "input_size": [config.channels, *config.image_size],
        "fixed_input_size": not resnet,
        "interpolation": view.interpolation if view.interpolation in ("bilinear", "bicubic", "nearest", "lanczos") else "bilinear",
        "crop_pct": crop,
        "crop_mode": "squash" if view.mode in ("squash", "bit") else "center",
        "mean": repeat(view.mean),
        "std": repeat(view.std),
        "num_classes": config.classes,
        "pool_size": None,
        "first_conv": first,
        "classifier": ["head", "head_dist"] if not resnet and config.distilled else ("head.fc" if resnet else "head"),
    }
    if classes:
        said_here["label_names"] = list(classes)
    return said_here


def vit_reasons(config: Any) -> list[str]:
    """Why timm's VisionTransformer has no place for a model."""
    if not isinstance(config, ViTConfig):
        return [f"timm has no {type(config).__name__}"]
    odd_stem = config.stem is not None and (config.stem.root != "standard" or config.stem.groups != 32)
    checks = [
        (config.position == "relative", "timm's ViT has no relative positions of this kind"),
        (config.position_at != "stem", f"positions at {config.position_at!r}: timm adds them at the stem only"),
        (config.representation is not None, "timm's ViT has no tanh layer before the head (representation)"),
        (config.pool == "token+gap", "timm's ViT has no pooling of class token and mean together"),
        (config.final_norm and config.fc_norm, "timm's ViT has one norm after the blocks, before or after pooling, not both"),
        (config.norm_pre and config.patch_bias, "timm's ViT has no patch bias where there is a norm before the blocks"),
        (config.mlp == "swiglu" and config.pool == "map", "timm's attention pooling has an MLP twice as wide where the blocks' are gated"),
        (config.distilled and config.registers > 0, "timm's distilled ViT has no registers"),
        (odd_stem, "timm's hybrids have a 7 x 7 root and group norms of 32 groups"),
    ]
    return [reason for wrong, reason in checks if wrong]


def resnet_reasons(config: ResNetConfig) -> list[str]:
    """Why timm's resnetv2 has no place for a model."""
    checks = [
        (config.version != "v2", "timm's resnetv2 is activated before its convolutions (v2), this model after (v1)"),
        (config.root != "standard" or config.groups != 32, "timm's BiT has a 7 x 7 root and group norms of 32 groups"),
    ]
    return [reason for wrong, reason in checks if wrong]


def describe_vit(config: ViTConfig) -> dict[str, Any]:
    """architecture and model_args: an entry point of timm, and every argument that matters."""
    one = lambda pair: pair[0] if pair[0] == pair[1] else list(pair)
    pool = {"token": "token", "gap": "avg", "map": "map", "unpooled": ""}[config.pool]
    args: dict[str, Any] = {
        "img_size": one(config.image_size),
        "patch_size": one(config.patch_size),
        "in_chans": config.channels,
        "embed_dim": config.width,
        "depth": config.depth,
        "num_heads": config.heads,
        "mlp_ratio": mlp_ratio(config),
        "qkv_bias": config.qkv_bias,
        "qk_norm": config.qk_norm,
        "proj_bias": config.dense_bias,
        "init_values": config.layer_scale or 0,  # 0: none; a null would be dropped and leave the entry point's own
        "class_token": config.class_token,
        "pos_embed": "learn" if config.position == "learned" else "none",
        "no_embed_class": config.position == "learned" and config.prefix > 0 and config.position_prefix == 0,
        "reg_tokens": config.registers,
        "pre_norm": config.norm_pre,
        "final_norm": config.final_norm or config.fc_norm,
        "fc_norm": config.fc_norm,
        "pool_include_prefix": config.pool_prefix,
        "global_pool": pool,
        "act_layer": config.activation,
    }
    if config.mlp == "swiglu":
        del args["act_layer"]  # the entry point's SiLU gate
    described = {"num_classes": config.classes, "num_features": config.width, "global_pool": pool, "model_args": args}
    name = vit_entry_point(config)
    return {"architecture": name, **described} if name else unnamed(described, "VisionTransformer")


def vit_entry_point(config: ViTConfig) -> str | None:
    """The entry point whose fixed parts (stem, norms, MLP kind) are this model's; its sizes come from model_args."""
    if sum((config.stem is not None, config.distilled, config.mlp == "swiglu")) > 1:
        return None
    if config.stem is not None:
        return _HYBRIDS.get(config.stem.layers) if config.stem.width == 64 else None
    if config.distilled:
        return "deit_base_distilled_patch16_224" if not config.norm_pre else None
    if config.mlp == "swiglu":
        return "vit_giant_patch14_dinov2"
    sizes = {192: "tiny", 384: "small", 1024: "large"}
    middle = "_clip" if config.eps == 1e-5 else ""
    patch = config.patch_size[0] if not middle and config.width == 768 and config.patch_size[0] in (8, 32) else 16
    return f"vit_{'base' if middle else sizes.get(config.width, 'base')}_patch{patch}{middle}_224"


def mlp_ratio(config: ViTConfig) -> float | int:
    """timm takes int(width * ratio) hidden units, twice as many for a gated MLP."""
    hidden = config.mlp_width * (2 if config.mlp == "swiglu" else 1)
    ratio = hidden / config.width
    while int(config.width * ratio) < hidden:
        ratio = math.nextafter(ratio, math.inf)
    return ratio


def describe_resnet(config: ResNetConfig) -> dict[str, Any]:
    """architecture and model_args of a BiT ResNet."""
    name = f"{_BIT_LAYERS.get(config.layers, '?')}x{config.width_factor:g}"
    described = {
        "num_classes": config.classes,
        "num_features": config.out_channels,
        "global_pool": "avg",
        "model_args": {"in_chans": config.channels},
    }
    return {"architecture": f"resnetv2_{name}_bit", **described} if name in _BIT_NAMES else unnamed(described, "ResNetV2")


def unnamed(described: dict[str, Any], kind: str) -> dict[str, Any]:
    """A config.json without an architecture: timm says that it is missing instead of building another model."""
    return {"note": f"timm has no entry point for this {kind}; build it by hand and load the weights into it", **described}


FORMATS = (Timm(), TimmResNet())
