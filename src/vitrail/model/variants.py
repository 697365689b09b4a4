"""Models by name: "B/16", "ViT-B/16", "L/16@384", "R50+ViT-B/16", "R50x1", "AxialViT-B/16".

vitrail.create_model("B/16", classes=10, image_size=384)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from vitrail.model.axial import AxialVisionTransformer
from vitrail.model.names import Config, config_for, config_from_dict, config_to_dict, list_models
from vitrail.model.resnet import ResNet
from vitrail.model.vit import VisionTransformer

__all__ = ["build", "config_for", "config_from_dict", "config_to_dict", "create_model", "list_models"]

Model = VisionTransformer | AxialVisionTransformer | ResNet
MODELS: dict[str, type[Model]] = {"vit": VisionTransformer, "axial": AxialVisionTransformer, "bit": ResNet}


def create_model(name: str, *, classes: int = 1000, image_size: Any = None, seed: int = 0, init: bool = True, **options: Any) -> Model:
    """A model by name, its parameters drawn from `seed` alone. `init=False`: shapes only, on the meta device, for loading."""
    return build(config_for(name, classes=classes, image_size=image_size, **options), seed=seed, init=init)


def build(config: Config, *, seed: int = 0, init: bool = True) -> Model:
    """A model of a configuration; `init=False` leaves its parameters on the meta device."""
    with torch.device("meta"):
        model = MODELS[config.family](config)  # type: ignore[arg-type]
    return materialise(model).initialise(seed) if init else model


def materialise(model: Model) -> Model:
    """Give every parameter of a meta model its own (unset) memory on the CPU; buffers are real already."""
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None:
                module._parameters[name] = nn.Parameter(torch.empty(parameter.shape, dtype=parameter.dtype, device="cpu"))
    return model
