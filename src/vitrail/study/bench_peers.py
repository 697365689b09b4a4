"""The other systems, built to the shape of one of our models and given its weights.

timm, transformers, torchvision and vit-pytorch are measured where they are installed. The first
three take our weights by the name tables of `weights/formats`, so that a benchmark can show that
all of them compute the same loss; vit-pytorch's ViT is another function (norms around the patch
projection, no bias on q, k, v), and keeps its own weights.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.errors import ResourceError, UsageError, VitrailError
from vitrail.model.config import ViTConfig
from vitrail.weights.format import format_named
from vitrail.weights.rules import their_tensors

__all__ = ["PEERS", "SAME_FUNCTION", "build_peer", "comparable", "installed"]

PACKAGES = {"timm": "timm", "hf": "transformers", "torchvision": "torchvision", "vit-pytorch": "vit_pytorch"}
PEERS = tuple(PACKAGES)
SAME_FUNCTION = ("timm", "hf", "torchvision")  # these compute what our model computes, from the same weights
SHAPE = ("width", "depth", "heads", "mlp_width", "patch_size", "image_size", "classes")
_KEPT: list[Any] = []  # a library's declarations live as long as it does


def installed() -> tuple[str, ...]:
    """The peers that can be imported here."""
    return tuple(name for name, package in PACKAGES.items() if importlib.util.find_spec(package) is not None)


def comparable(config: Any) -> str:
    """Why the peers have no such model; empty: they have."""
    if type(config) is not ViTConfig:
        return "it is no plain ViT"
    shape = {name: getattr(config, name) for name in SHAPE}
    if ViTConfig(**shape, activation=config.activation) != config:
        return "it is no plain ViT with a class token"
    square = len(set(config.image_size)) == 1 and len(set(config.patch_size)) == 1
    return "" if square and config.classes else "the peers take square images and have a head"


def version_of(name: str) -> str:
    from importlib.metadata import version

    return version({"vit_pytorch": "vit-pytorch"}.get(PACKAGES[name], PACKAGES[name]))


def build_peer(name: str, config: ViTConfig, weights: dict[str, Tensor]) -> nn.Module:
    """A peer's model of this shape: images (B, 3, H, W) in, logits out. `weights`: ours, by our names."""
    if name not in MAKERS:
        raise UsageError(f"There is no peer {name!r}.", hint=f"one of {', '.join(PEERS)}")
    if why_not := comparable(config):
        raise UsageError(f"{name} cannot be set beside this model: {why_not}.")
    with_torchvision()
    try:
        return MAKERS[name](config, weights)
    except ImportError as error:
        raise ResourceError(f"{name} does not import here: {error}.", hint=f"pip install {PACKAGES[name]}") from error


def with_torchvision() -> None:
    """A torchvision from PyPI beside a CPU build of torch fails on import, because its compiled operators need CUDA
    libraries. timm wants the module, not those operators, so two of them are declared here."""
    if importlib.util.find_spec("torchvision") is None or "torchvision" in sys.modules:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _KEPT.append(library)
        importlib.import_module("torchvision")


# ---------------------------------------------------------------- one maker a peer


def timm_model(config: ViTConfig, weights: dict[str, Tensor]) -> nn.Module:
    from timm.models.vision_transformer import VisionTransformer

    model = VisionTransformer(
        img_size=config.image_size[0], patch_size=config.patch_size[0], embed_dim=config.width, depth=config.depth,
        num_heads=config.heads, mlp_ratio=config.mlp_width / config.width, num_classes=config.classes,
    )  # fmt: skip
    return filled(model, "timm", config, weights)


def hf_model(config: ViTConfig, weights: dict[str, Tensor]) -> nn.Module:
    from transformers import ViTConfig as Shape
    from transformers import ViTForImageClassification

    shape = Shape(
        hidden_size=config.width, num_hidden_layers=config.depth, num_attention_heads=config.heads, intermediate_size=config.mlp_width,
        image_size=config.image_size[0], patch_size=config.patch_size[0], num_labels=config.classes, layer_norm_eps=config.eps,
        attn_implementation="sdpa",
    )  # fmt: skip
    return Logits(filled(ViTForImageClassification(shape), "hf", config, weights))


class Logits(nn.Module):
    """transformers' answer is an object; a benchmark wants the tensor in it."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(pixel_values=images).logits


def torchvision_model(config: ViTConfig, weights: dict[str, Tensor]) -> nn.Module:
    from torchvision.models import VisionTransformer

    model = VisionTransformer(
        image_size=config.image_size[0], patch_size=config.patch_size[0], num_layers=config.depth, num_heads=config.heads,
        hidden_dim=config.width, mlp_dim=config.mlp_width, num_classes=config.classes,
    )  # fmt: skip
    return filled(model, "torchvision", config, weights)


def vit_pytorch_model(config: ViTConfig, _weights: dict[str, Tensor]) -> nn.Module:
    from vit_pytorch import ViT

    return ViT(
        image_size=config.image_size[0], patch_size=config.patch_size[0], num_classes=config.classes, dim=config.width, depth=config.depth,
        heads=config.heads, mlp_dim=config.mlp_width, dim_head=config.width // config.heads,
    )  # fmt: skip


def filled(model: nn.Module, origin: str, config: ViTConfig, weights: dict[str, Tensor]) -> nn.Module:
    """A peer's model with our weights under its names, in whichever spelling this version of it uses."""
    form = format_named(origin)
    wanted = model.state_dict().keys()
    for style in form.styles:
        theirs = their_tensors(form.rules(config, style), weights)
        if theirs.keys() == wanted:
            model.load_state_dict(theirs)
            return model
    raise VitrailError(f"{origin}: this version names its parameters otherwise than Vitrail knows, for example {min(wanted)!r}.")


MAKERS: dict[str, Callable[[ViTConfig, dict[str, Tensor]], nn.Module]] = {
    "timm": timm_model,
    "hf": hf_model,
    "torchvision": torchvision_model,
    "vit-pytorch": vit_pytorch_model,
}
