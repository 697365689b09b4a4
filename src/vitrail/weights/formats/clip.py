"""Image towers of CLIP, OpenCLIP and SigLIP, in the three spellings they come in.

    OpenAI, OpenCLIP     `visual.conv1`, `visual.transformer.resblocks.0.attn.in_proj_weight`, `visual.proj`
    OpenCLIP over timm   `visual.trunk.…` under timm's names, `visual.head.proj`
    transformers         `vision_model.embeddings.…`, `visual_projection`

The projection into the space shared with text becomes the head, so that a model's
"logits" are its image embedding. Text towers are left out. Read, never written.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from vitrail.errors import CheckpointError
from vitrail.model.config import ViTConfig
from vitrail.weights.archive import Archive
from vitrail.weights.format import Format, Overrides, Reading, blocks_of, heads_for, renamed, shape_of, size_for
from vitrail.weights.formats import said
from vitrail.weights.formats.huggingface import ACTIVATIONS, view_of
from vitrail.weights.formats.timm import Timm, known_heads, vit_configuration
from vitrail.weights.rules import TRANSPOSED, Change, Rule, joined, per_block, rule, split
from vitrail.weights.sidecar import Sidecar

if TYPE_CHECKING:
    from vitrail.data.transform import Preprocess

__all__ = ["FORMATS", "OpenClip", "TimmTower", "TransformersTower"]

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
TEXT = (
    r"^(text|text_model|token_embedding|positional_embedding|transformer|ln_final|text_projection|text_decoder)($|\.)",
    r"^(logit_scale|logit_bias|input_resolution|context_length|vocab_size)$",
    r"position_ids$",
)
READ_ONLY = "Vitrail reads image towers of CLIP and SigLIP and does not write them"
VECTOR = Change(lambda t: t[None, None], lambda t: t[0, 0])  # a class token without axes for batch and sequence


def open_clip_view(config: Any, sidecar: Sidecar) -> Preprocess:
    """open_clip's: shorter side to the image size, centre crop, OpenAI's colours unless the file says others."""
    from vitrail.data.transform import Preprocess

    said_so = said.table(sidecar.files.get("open_clip_config.json", {}), "preprocess_cfg")
    colours = config.channels == 3
    return Preprocess(
        config.image_size,
        "squash" if said.word(said_so, "resize_mode") == "squash" else "shorter_crop",
        None if said.word(said_so, "resize_mode") == "squash" else max(config.image_size),
        "bilinear" if said.word(said_so, "interpolation") == "bilinear" else "bicubic",
        True,
        said.numbers(said_so, "mean") or (MEAN if colours else (0.5,)),
        said.numbers(said_so, "std") or (STD if colours else (0.5,)),
        "round",
        config.channels,
    )


def open_clip_model(sidecar: Sidecar) -> Mapping[str, Any]:
    """What open_clip_config.json says of the model."""
    return said.table(sidecar.files.get("open_clip_config.json", {}), "model_cfg")


class OpenClip(Format):
    """OpenAI's and OpenCLIP's own VisionTransformer."""

    name = "clip"
    written = False
    title = "CLIP's image tower (OpenAI, OpenCLIP)"
    marks = (
        r"^visual\.class_embedding$",
        r"^visual\.conv1\.weight$",
        r"^visual\.transformer\.resblocks\.0\.attn\.in_proj_weight$",
        r"^visual\.ln_post\.weight$",
    )
    never = (r"^visual\.attn_pool\.",)
    ignored = TEXT

    def view(self, archive: Archive) -> Archive:
        """A tower alone has no `visual.` before its names."""
        if "visual.class_embedding" in archive.entries or "class_embedding" not in archive.entries:
            return archive
        return renamed(archive, lambda name: f"visual.{name}")

    def configuration(self, view: Archive, sidecar: Sidecar, overrides: Overrides) -> Reading:
        model = open_clip_model(sidecar)
        vision = said.table(model, "vision_cfg")
        if (said.word(vision, "pool_type") or "tok") != "tok" or said.flag(vision, "final_ln_after_pool"):
            raise CheckpointError(f"{view.path}: pools by {vision.get('pool_type')!r}, which is not read here.", hint="OpenCLIP's 'tok' is")
        width, channels, rows, columns = shape_of(view, "visual.conv1.weight", 4)
        depth = blocks_of(view, r"^visual\.transformer\.resblocks\.(\d+)\.")
        positions = shape_of(view, "visual.positional_embedding", 2)[0]
        size, known = size_for(
            view, positions - 1, (rows, columns), overrides, said.patched(said.size(vision, "image_size"), (rows, columns))
        )
        head_width = said.whole(vision, "head_width")
        heads = overrides.heads or (width // head_width if head_width else known_heads(width, depth))
        quick = said.flag(model, "quick_gelu")
        if quick is None:  # only OpenAI's own files hold these
            quick = "input_resolution" in view.entries
        projected = "visual.proj" in view.entries
        config = ViTConfig(
            width=width,
            depth=depth,
            heads=heads_for(view, width, heads),
            mlp_width=shape_of(view, "visual.transformer.resblocks.0.mlp.c_fc.weight", 2)[0],
            patch_size=(rows, columns),
            image_size=size,
            channels=channels,
            classes=shape_of(view, "visual.proj", 2)[1] if projected else 0,
            class_token=True,
            norm_pre="visual.ln_pre.weight" in view.entries,
            patch_bias="visual.conv1.bias" in view.entries,
            layer_scale=1.0 if "visual.transformer.resblocks.0.ls_1.gamma" in view.entries else None,
            pool=overrides.pool or "token",  # type: ignore[arg-type]
            head_bias=not projected,
            **overrides.over(eps=1e-5, activation="quick_gelu" if quick else "gelu", position_resample="bicubic_antialias"),
        )
        return Reading(config, known, ("the head is the projection into the space shared with text",) if projected else ())

    def rules(self, config: Any, style: str = "") -> list[Rule]:
        at = "visual.transformer.resblocks.{i}."
        inside = {"norm1": "ln_1", "attention.out": "attn.out_proj", "norm2": "ln_2", "mlp.fc1": "mlp.c_fc", "mlp.fc2": "mlp.c_proj"}
        block = [
            rule(f"blocks.{{i}}.{ours}.{kind}", f"{at}{theirs}.{kind}") for ours, theirs in inside.items() for kind in ("weight", "bias")
        ]
        block += [rule(f"blocks.{{i}}.attention.qkv.{kind}", f"{at}attn.in_proj_{kind}") for kind in ("weight", "bias")]
        block += [rule(f"blocks.{{i}}.scale{n}", f"{at}ls_{n}.gamma") for n in (1, 2)]
        around = {"patch": "conv1", "norm_pre": "ln_pre", "norm": "ln_post"}
        return [
            rule("cls", "visual.class_embedding", VECTOR),
            rule("position.table", "visual.positional_embedding"),
            rule("head.weight", "visual.proj", TRANSPOSED),
            *(rule(f"{ours}.{kind}", f"visual.{theirs}.{kind}") for ours, theirs in around.items() for kind in ("weight", "bias")),
            *per_block(config.depth, block),
        ]

    def preprocess(self, config: Any, sidecar: Sidecar) -> Preprocess:
        return open_clip_view(config, sidecar)

    def cannot_hold(self, config: Any) -> list[str]:
        return [READ_ONLY]


class TimmTower(Timm):
    """OpenCLIP with a tower of timm (SigLIP and others)."""

    name = "clip"
    written = False
    title = "OpenCLIP's image tower (timm's)"
    ignored = TEXT

    def view(self, archive: Archive) -> Archive:
        if not any(name.startswith("visual.trunk.") for name in archive.entries):
            return archive
        names = {"visual.head.proj.weight": "head.weight", "visual.head.proj.bias": "head.bias"}
        return renamed(archive, lambda name: names.get(name, name.removeprefix("visual.trunk.")))

    def recognise(self, archive: Archive, sidecar: Sidecar) -> float | None:
        return super().recognise(archive, sidecar) if any(name.startswith("visual.trunk.") for name in archive.entries) else None

    def configuration(self, view: Archive, sidecar: Sidecar, overrides: Overrides) -> Reading:
        vision = said.table(open_clip_model(sidecar), "vision_cfg")
        name = (said.word(vision, "timm_model_name") or "").split(".")[0]
        pool = {"avg": "gap", "map": "map", "token": "token"}.get(said.word(vision, "timm_pool") or "")
        return vit_configuration(view, overrides, {}, name=name, size=said.size(vision, "image_size"), pool=pool)

    def preprocess(self, config: Any, sidecar: Sidecar) -> Preprocess:
        return open_clip_view(config, sidecar)

    def cannot_hold(self, config: Any) -> list[str]:
        return [READ_ONLY]


class TransformersTower(Format):
    """CLIPVisionModel, SiglipVisionModel and their whole models."""

    name = "clip"
    written = False
    title = "transformers' CLIP or SigLIP image tower"
    marks = (
        r"^embeddings\.patch_embedding\.weight$",
        r"^embeddings\.position_embedding\.weight$",
        r"^encoder\.layers\.0\.self_attn\.q_proj\.weight$",
        r"^post_layernorm\.weight$",
    )
    never = (r"^encoder\.layers\.0\.self_attn\.(q_norm|k_norm)\.",)
    ignored = (*TEXT, r"^head\.(probe|attention|layernorm|mlp)")

    def view(self, archive: Archive) -> Archive:
        names = {"visual_projection.weight": "projection.weight"}
        return renamed(archive, lambda name: names.get(name, name.removeprefix("vision_model.")))

    def configuration(self, view: Archive, sidecar: Sidecar, overrides: Overrides) -> Reading:
        described = said.table(sidecar.config, "vision_config") or sidecar.config
        has = view.entries.__contains__
        width, channels, rows, columns = shape_of(view, "embeddings.patch_embedding.weight", 4)
        depth = blocks_of(view, r"^encoder\.layers\.(\d+)\.")
        clip = has("embeddings.class_embedding")
        positions = shape_of(view, "embeddings.position_embedding.weight", 2)[0]
        size, known = size_for(
            view, positions - clip, (rows, columns), overrides, said.patched(said.size(described, "image_size"), (rows, columns))
        )
        activation = said.word(described, "hidden_act") or ("quick_gelu" if clip else "gelu_pytorch_tanh")
        if activation not in ACTIVATIONS:
            raise CheckpointError(f"{view.path}: hidden_act = {activation!r} is not known.", hint="pass activation=")
        told = said.number(described, "layer_norm_eps")
        projected, classified = has("projection.weight"), has("classifier.weight")
        head = "projection.weight" if projected else "classifier.weight"
        pool = "token" if clip else ("gap" if classified or not has("head.probe") else "map")
        config = ViTConfig(
            width=width,
            depth=depth,
            heads=heads_for(view, width, overrides.heads or said.whole(described, "num_attention_heads") or known_heads(width, depth)),
            mlp_width=shape_of(view, "encoder.layers.0.mlp.fc1.weight", 2)[0],
            patch_size=(rows, columns),
            image_size=size,
            channels=channels,
            classes=shape_of(view, head, 2)[0] if projected or classified else 0,
            class_token=clip,
            norm_pre=has("pre_layrnorm.weight"),
            patch_bias=has("embeddings.patch_embedding.bias"),
            pool=overrides.pool or pool,  # type: ignore[arg-type]
            head_bias=not projected,
            **overrides.over(
                eps=(1e-5 if clip else 1e-6) if told is None else told, activation=ACTIVATIONS[activation], position_resample="bicubic"
            ),
        )
        return Reading(config, known, ("the head is the projection into the space shared with text",) if projected else ())

    def rules(self, config: Any, style: str = "") -> list[Rule]:
        at = "encoder.layers.{i}."
        inside = {
            "norm1": "layer_norm1",
            "attention.out": "self_attn.out_proj",
            "norm2": "layer_norm2",
            "mlp.fc1": "mlp.fc1",
            "mlp.fc2": "mlp.fc2",
        }
        block = [
            rule(f"blocks.{{i}}.{ours}.{kind}", f"{at}{theirs}.{kind}") for ours, theirs in inside.items() for kind in ("weight", "bias")
        ]
        block += [
            joined(f"blocks.{{i}}.attention.qkv.{kind}", [f"{at}self_attn.{n}_proj.{kind}" for n in "qkv"]) for kind in ("weight", "bias")
        ]
        around = {"patch": "embeddings.patch_embedding", "norm_pre": "pre_layrnorm", "norm": "post_layernorm"}
        around |= {
            "map.out": "head.attention.out_proj",
            "map.norm": "head.layernorm",
            "map.mlp.fc1": "head.mlp.fc1",
            "map.mlp.fc2": "head.mlp.fc2",
        }
        around["head"] = "projection" if not config.head_bias else "classifier"
        return [
            rule("cls", "embeddings.class_embedding", VECTOR),
            rule("position.table", "embeddings.position_embedding.weight"),
            rule("map.probe", "head.probe"),
            split(("map.q.weight", "map.kv.weight"), "head.attention.in_proj_weight", (1, 2)),
            split(("map.q.bias", "map.kv.bias"), "head.attention.in_proj_bias", (1, 2)),
            *(rule(f"{ours}.{kind}", f"{theirs}.{kind}") for ours, theirs in around.items() for kind in ("weight", "bias")),
            *per_block(config.depth, block),
        ]

    def preprocess(self, config: Any, sidecar: Sidecar) -> Preprocess:
        from vitrail.data.transform import Preprocess

        if sidecar.processor:
            return view_of(config, sidecar.processor)
        if config.class_token:
            return open_clip_view(config, sidecar)
        return Preprocess(config.image_size, "squash", None, "bicubic", True, (0.5,), (0.5,), "round", config.channels)

    def cannot_hold(self, config: Any) -> list[str]:
        return [READ_ONLY]


FORMATS = (OpenClip(), TimmTower(), TransformersTower())
