"""Models by name: "B/16", "ViT-B/16", "L/16@384", "R50+ViT-B/16", "R50x1", "AxialViT-B/16".

    vitrail.create_model("B/16", classes=10, image_size=384)
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import torch
from torch import nn

from vitrail.errors import UsageError, nearest
from vitrail.model.config import ViTConfig, pair
from vitrail.model.vit import VisionTransformer

__all__ = ["build", "config_for", "config_from_dict", "config_to_dict", "create_model", "list_models"]

# letter -> width, depth, heads, MLP width (table 1; Scaling ViT; big_vision)
SIZES: dict[str, tuple[int, int, int, int]] = {
    "mu": (32, 1, 2, 128),
    "Ti": (192, 12, 3, 768),
    "S": (384, 12, 6, 1536),
    "M": (512, 12, 8, 2048),
    "B": (768, 12, 12, 3072),
    "L": (1024, 24, 16, 4096),
    "So400m": (1152, 27, 16, 4304),
    "H": (1280, 32, 16, 5120),
    "g": (1408, 40, 16, 6144),
    "G": (1664, 48, 16, 8192),
}
NAMED = ("mu/16", "Ti/16", "S/32", "S/16", "B/32", "B/16", "B/8", "L/32", "L/16", "L/14", "H/14", "g/14", "G/14")
NAME = re.compile(r"^(?:ViT-)?(?P<size>[A-Za-z0-9]+?)/(?P<patch>\d+(?:x\d+)?)(?:@(?P<image>\d+(?:x\d+)?))?$")


def list_models() -> list[str]:
    """Every name that `create_model` knows; `@384` or another image size can follow each."""
    return list(NAMED)


def config_for(name: str, *, classes: int = 1000, image_size: Any = None, **options: Any) -> Any:
    """The configuration a name stands for, with options over it."""
    match = NAME.match(name.strip())
    if match is None or match["size"] not in SIZES:
        raise UsageError(f"no model is called {name!r}{nearest(name, list_models())}.", hint="vitrail models")
    width, depth, heads, mlp_width = SIZES[match["size"]]
    settings: dict[str, Any] = {"width": width, "depth": depth, "heads": heads, "mlp_width": mlp_width, "patch_size": _size(match["patch"])}
    size = image_size or (_size(match["image"]) if match["image"] else None)
    settings["image_size"] = pair(size, "image_size") if size else (224, 224)
    known = {field.name for field in dataclasses.fields(ViTConfig)}
    check_options(options, known)
    return ViTConfig(**{**settings, "classes": classes, **options})


def check_options(options: dict[str, Any], known: set[str]) -> None:
    """Refuse an option the configuration does not have."""
    for option in options:
        if option not in known:
            raise UsageError(f"a model has no option {option!r}{nearest(option, known)}.", hint="the options are the fields of ViTConfig")


def create_model(
    name: str, *, classes: int = 1000, image_size: Any = None, seed: int = 0, init: bool = True, **options: Any
) -> nn.Module:
    """A model by name, its parameters drawn from `seed` alone. `init=False`: shapes only, on the meta device, for loading."""
    return build(config_for(name, classes=classes, image_size=image_size, **options), seed=seed, init=init)


def build(config: Any, *, seed: int = 0, init: bool = True) -> nn.Module:
    """A model of a configuration; `init=False` leaves its parameters on the meta device."""
    with torch.device("meta"):
        model = VisionTransformer(config)
    return materialise(model).initialise(seed) if init else model


def materialise(model: VisionTransformer) -> VisionTransformer:
    """Give every parameter of a meta model its own (unset) memory on the CPU; buffers are real already."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(torch.empty_like(parameter, device="cpu"))
    return model


def config_to_dict(config: Any) -> dict[str, Any]:
    """A configuration as JSON values, with the family it belongs to."""
    return {"family": "vit", **dataclasses.asdict(config)}


def config_from_dict(values: dict[str, Any]) -> Any:
    """The inverse of `config_to_dict`; unknown families and fields are refused."""
    settings = dict(values)
    family = settings.pop("family", "vit")
    if family != "vit":
        raise UsageError(f"no family of models is called {family!r}{nearest(str(family), ['vit', 'bit', 'axial'])}.")
    check_options(settings, {field.name for field in dataclasses.fields(ViTConfig)})
    return ViTConfig(**settings)


def _size(text: str) -> tuple[int, int]:
    """ "16" -> (16, 16); "16x32" -> (16, 32)."""
    rows, _, columns = text.partition("x")
    return int(rows), int(columns or rows)
