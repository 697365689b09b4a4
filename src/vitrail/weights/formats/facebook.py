"""The original .pth files of DeiT, DeiT-III, DINO, MAE and DINOv2, all of which descend from timm's ViT.

    DeiT       with or without a distillation token; DeiT-III scales its blocks (`gamma_1`) and has no class position
    DINO       a backbone without a head; the projection head of training files is left out
    MAE        encoder (the decoder is left out), or fine-tuned: mean of the patches, then a norm
    DINOv2     LayerScale, a mask token (left out), registers without positions, SwiGLU (`mlp.w12`, `mlp.w3`),
               blocks numbered by chunk in training files

They are read, never written: timm's files have the same names.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from vitrail.weights.archive import Archive
from vitrail.weights.format import Overrides, Reading, renamed
from vitrail.weights.formats.timm import Timm, vit_configuration
from vitrail.weights.sidecar import Sidecar

if TYPE_CHECKING:
    from vitrail.data.transform import Preprocess

__all__ = ["FORMATS", "Facebook"]

RENAMES = (
    (re.compile(r"^(module\.)?backbone\."), ""),
    (re.compile(r"^encoder\.(?=blocks\.|patch_embed\.|cls_token|pos_embed|norm\.)"), ""),
    (re.compile(r"^blocks\.\d+\.(\d+)\."), r"blocks.\1."),
    (re.compile(r"\.gamma_([12])$"), r".ls\1.gamma"),
    (re.compile(r"^register_tokens$"), "reg_token"),
    (re.compile(r"\.mlp\.w12\."), ".mlp.fc1."),
    (re.compile(r"\.mlp\.w3\."), ".mlp.fc2."),
)
# names that timm's own files never have
OWN = re.compile(r"^(mask_token|register_tokens|decoder_|head\.mlp\.|head\.last_layer\.)|^blocks\.\d+\.\d+\.|\.gamma_1$|\.mlp\.w12\.")


def spelled(name: str) -> str:
    for pattern, plain in RENAMES:
        name = pattern.sub(plain, name)
    return name


def kind_of(view: Archive) -> str:
    """Which of the families, by what a file has beside the blocks."""
    names = view.entries.keys()
    if any(name.startswith("decoder_") for name in names):
        return "mae"
    if "mask_token" in names or "reg_token" in names:
        return "dinov2"
    if "fc_norm.weight" in names:
        return "mae"
    if "blocks.0.ls1.gamma" in names:
        return "deit3"
    return "deit" if "head.weight" in names else "dino"


class Facebook(Timm):
    """DeiT, DINO, MAE and DINOv2 as their authors released them."""

    name = "facebook"
    title = "the original files of DeiT, DINO, MAE and DINOv2"
    container = "pickle"
    written = False
    filename = "model.pth"
    never = (r"rel_pos", r"relative_position", r"rope", r"^freqs", r"^blocks\.0\.attn\.q_bias$", r"^patch_embed\.backbone\.")
    ignored = (r"^mask_token$", r"^decoder_", r"^head\.(mlp|last_layer)\.", r"^dino_head\.", r"^ibot_head\.")

    def view(self, archive: Archive) -> Archive:
        return renamed(archive, spelled)

    def recognise(self, archive: Archive, sidecar: Sidecar) -> float | None:
        """Surer than timm of a pickle that nothing describes, and of names that timm does not have."""
        own = any(OWN.search(name) for name in archive.entries)
        if "architecture" in sidecar.config or not (own or archive.container == "pickle"):
            return None
        score = super(Timm, self).recognise(archive, sidecar)
        return None if score is None else score + 0.5 + own

    def configuration(self, view: Archive, sidecar: Sidecar, overrides: Overrides) -> Reading:
        kind = kind_of(view)
        class_rows = sum(name in view.entries for name in ("cls_token", "dist_token"))
        resample = {"dino": "bicubic_offset", "dinov2": "bicubic_offset"}.get(kind, "bicubic")
        if "reg_token" in view.entries:
            resample = "bicubic_antialias"
        # LayerScale of its own does not make a table without class row usual, except in DeiT-III
        rows_before = (0, class_rows) if kind == "deit3" else (class_rows,)
        reading = vit_configuration(view, overrides, {}, resample=resample, rows_before=rows_before)
        return Reading(reading.config, reading.size_known, (*reading.notes, f"read as a {kind} file"))

    def preprocess(self, config: Any, sidecar: Sidecar) -> Preprocess:
        from vitrail.data.transform import Preprocess, preset

        if config.channels != 3:
            return Preprocess(config.image_size, channels=config.channels, mean=(0.5,), std=(0.5,))
        return preset("deit3" if config.layer_scale is not None and not config.position_class else "deit", config.image_size)

    def cannot_hold(self, config: Any) -> list[str]:
        return ["Vitrail reads these files and does not write them; timm's have the same names (to timm)"]


FORMATS = (Facebook(),)
