"""torchvision's VisionTransformer, with both spellings of its MLP (`mlp.0`, before 2022 `mlp.linear_1`).

It takes square RGB images of one size, and has the exact GELU and LayerNorms of 1e-6. A written
folder holds the weights and the arguments of the class:

    arguments = json.load(open("config.json"))["arguments"]
    model = torchvision.models.VisionTransformer(**arguments)
    model.load_state_dict(safetensors.torch.load_file("model.safetensors"))
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vitrail.model.config import ViTConfig
from vitrail.weights.archive import Archive
from vitrail.weights.format import Format, Overrides, Reading, blocks_of, heads_for, renamed, shape_of, size_for
from vitrail.weights.formats import folds, said
from vitrail.weights.formats.timm import known_heads
from vitrail.weights.rules import BATCHED, Rule, per_block, rule
from vitrail.weights.sidecar import Sidecar

if TYPE_CHECKING:
    from vitrail.data.transform import Preprocess
    from vitrail.weights.card import Card

__all__ = ["FORMATS", "TorchVision"]

LAYER = "encoder.layers.encoder_layer_{i}."


class TorchVision(Format):
    """torchvision.models.VisionTransformer."""

    name = "torchvision"
    title = "torchvision's VisionTransformer"
    marks = (
        r"^conv_proj\.weight$",
        r"^class_token$",
        r"^encoder\.pos_embedding$",
        r"^encoder\.layers\.encoder_layer_0\.self_attention\.in_proj_weight$",
        r"^encoder\.ln\.weight$",
    )
    styles = ("mlp", "linear")

    def view(self, archive: Archive) -> Archive:
        """A head that somebody put in place of the whole `heads` is one linear layer too."""
        if "heads.head.weight" in archive.entries:
            return archive
        return renamed(archive, lambda name: re.sub(r"^heads\.(0\.)?(weight|bias)$", r"heads.head.\2", name))

    def style_of(self, view: Archive) -> str:
        return "linear" if "encoder.layers.encoder_layer_0.mlp.linear_1.weight" in view.entries else "mlp"

    def configuration(self, view: Archive, sidecar: Sidecar, overrides: Overrides) -> Reading:
        arguments = said.table(sidecar.config, "arguments")
        width, channels, rows, columns = shape_of(view, "conv_proj.weight", 4)
        depth = blocks_of(view, r"^encoder\.layers\.encoder_layer_(\d+)\.")
        fc1 = "linear_1" if self.style_of(view) == "linear" else "0"
        positions = shape_of(view, "encoder.pos_embedding", 3)[1]
        size, known = size_for(view, positions - 1, (rows, columns), overrides, said.size(arguments, "image_size"))
        pre_logits = "heads.pre_logits.weight" in view.entries
        heads = overrides.heads or said.whole(arguments, "num_heads") or known_heads(width, depth)
        return Reading(
            ViTConfig(
                width=width,
                depth=depth,
                heads=heads_for(view, width, heads),
                mlp_width=shape_of(view, f"encoder.layers.encoder_layer_0.mlp.{fc1}.weight", 2)[0],
                patch_size=(rows, columns),
                image_size=size,
                channels=channels,
                classes=shape_of(view, "heads.head.weight", 2)[0] if "heads.head.weight" in view.entries else 0,
                class_token=True,
                representation=shape_of(view, "heads.pre_logits.weight", 2)[0] if pre_logits else None,
                pool=overrides.pool or "token",  # type: ignore[arg-type]
                **overrides.over(eps=1e-6, activation="gelu", position_resample="bicubic_aligned"),
            ),
            known,
        )

    def rules(self, config: Any, style: str = "") -> list[Rule]:
        fc1, fc2 = ("linear_1", "linear_2") if style == "linear" else ("0", "3")
        around = {"patch": "conv_proj", "norm": "encoder.ln", "pre_logits": "heads.pre_logits", "head": "heads.head"}
        inside = {
            "norm1": "ln_1",
            "attention.out": "self_attention.out_proj",
            "norm2": "ln_2",
            "mlp.fc1": f"mlp.{fc1}",
            "mlp.fc2": f"mlp.{fc2}",
        }
        block = [
            rule(f"blocks.{{i}}.{ours}.{kind}", f"{LAYER}{theirs}.{kind}") for ours, theirs in inside.items() for kind in ("weight", "bias")
        ]
        block += [rule(f"blocks.{{i}}.attention.qkv.{kind}", f"{LAYER}self_attention.in_proj_{kind}") for kind in ("weight", "bias")]
        return [
            rule("cls", "class_token"),
            rule("position.table", "encoder.pos_embedding", BATCHED),
            *(rule(f"{ours}.{kind}", f"{theirs}.{kind}") for ours, theirs in around.items() for kind in ("weight", "bias")),
            *per_block(config.depth, block),
        ]

    def preprocess(self, config: Any, sidecar: Sidecar) -> Preprocess:
        """Of the weights trained at 224: 256 -> 224. Those fine-tuned at other sizes (SWAG) see the whole image, bicubic."""
        from vitrail.data.transform import preset

        if max(config.image_size) > 224:
            return preset("torchvision", config.image_size, interpolation="bicubic", crop=1.0)
        return preset("torchvision", config.image_size)

    # ---- writing ----

    def cannot_hold(self, config: Any) -> list[str]:
        if not isinstance(config, ViTConfig):
            return [f"torchvision's VisionTransformer is no {type(config).__name__}"]
        square = config.image_size[0] == config.image_size[1] and config.patch_size[0] == config.patch_size[1]
        checks = [
            (config.stem is not None, "torchvision's ViT has no ResNet stem"),
            (not square, "torchvision's ViT takes square images and patches only"),
            (config.channels != 3, f"torchvision's ViT takes 3 channels, not {config.channels}"),
            (not config.classes, "torchvision's ViT has a head"),
            (config.pool != "token", f"torchvision's ViT reads the class token, not {config.pool!r}"),
            (config.registers > 0 or config.distilled, "torchvision's ViT has one token before the patches, the class token"),
            (config.position == "relative" or config.position_at != "stem", "torchvision's ViT has learned positions at the stem"),
            (config.norm_pre or config.qk_norm or config.fc_norm or not config.final_norm, "torchvision has one norm after the blocks"),
            (config.layer_scale is not None or config.mlp != "plain", "torchvision's ViT has neither LayerScale nor SwiGLU"),
        ]  # fmt: skip
        return [reason for wrong, reason in checks if wrong]

    def fold(self, config: Any, state: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor], tuple[str, ...]]:
        return folds.chain(
            config, state, folds.position_table, folds.zero_positions, folds.position_rows,
            folds.patch_bias, folds.qkv_bias, folds.dense_biases, folds.head_bias,
        )  # fmt: skip

    def sidecar(self, config: Any, card: Card | None) -> dict[str, Mapping[str, Any]]:
        described: dict[str, Any] = {
            "library": "torchvision",
            "class": "VisionTransformer",
            "arguments": {
                "image_size": config.image_size[0],
                "patch_size": config.patch_size[0],
                "num_layers": config.depth,
                "num_heads": config.heads,
                "hidden_dim": config.width,
                "mlp_dim": config.mlp_width,
                "num_classes": config.classes,
                "representation_size": config.representation,
            },
        }
        if card is not None:
            described["preprocess"] = card.transform().to_dict()
            described["categories"] = list(card.classes)
        return {"config.json": described}

    def classes(self, sidecar: Sidecar) -> tuple[str, ...]:
        names = sidecar.config.get("categories")
        return tuple(names) if isinstance(names, list) and all(isinstance(name, str) for name in names) else ()


FORMATS = (TorchVision(),)
