"""What the first layer looks for: its filters, their principal components, and what those explain.

The components are of the filters, each one a row of channels x rows x columns numbers, centred
over the filters (Figure 7 left). A sign is arbitrary; the largest entry is made positive.
A hybrid or a BiT network looks at pixels through a 7x7 convolution, whose kernels are
standardised before use: those are its filters.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.model.resnet import ResNet
from vitrail.model.vit import VisionTransformer

__all__ = ["Filters", "filters", "to_unit"]


@dataclass(frozen=True)
class Filters:
    """
    layer        which layer they are of, in words
    raw          (filters, rows, columns, channels), as the layer uses them
    components   (kept, rows, columns, channels), unit vectors, the most important first
    explained    (all components): the part of the filters' variance each one explains; the sum is one
    """

    layer: str
    raw: Tensor
    components: Tensor
    explained: Tensor

    @property
    def needed(self) -> int:
        """How many components explain 95 % of the variance."""
        return min(len(self.explained), int((self.explained.cumsum(0) < 0.95 - 1e-9).sum()) + 1)


def filters(model: nn.Module, *, components: int = 28) -> Filters:
    """The filters of the patch embedding, or of the first convolution where there is one. The paper shows 28 components."""
    layer, weight = first_layer(model)
    raw = weight.detach().double().permute(0, 2, 3, 1).cpu()  # (D, rows, columns, channels)
    flat = raw.flatten(1)
    centred = flat - flat.mean(0)
    _, strength, directions = torch.linalg.svd(centred, full_matrices=False)
    power = strength.square()
    directions = directions[:components]
    largest = directions.gather(1, directions.abs().argmax(1, keepdim=True))
    directions = directions * torch.where(largest < 0, -1.0, 1.0)
    explained = power / power.sum().clamp_min(torch.finfo(power.dtype).tiny)
    return Filters(layer, raw, directions.unflatten(1, raw.shape[1:]), explained)


def first_layer(model: nn.Module) -> tuple[str, Tensor]:
    """What touches the pixels first, in words and as a weight (D, channels, rows, columns)."""
    if isinstance(model, ResNet):
        return "first convolution", model.root.conv.standardised()
    if isinstance(model, VisionTransformer):
        if model.stem is not None:
            return "first convolution of the hybrid's stem", model.stem.root.conv.standardised()
        return "patch embedding", model.patch.weight
    raise UsageError(f"a {type(model).__name__} has no patch embedding and no first convolution that is known here.")


def to_unit(pictures: Tensor) -> Tensor:
    """Each picture (…, rows, columns, channels) stretched by itself to 0 … 1; a flat one becomes 0.5."""
    low, high = pictures.amin((-3, -2, -1), keepdim=True), pictures.amax((-3, -2, -1), keepdim=True)
    span = high - low
    return torch.where(span > 0, (pictures - low) / torch.where(span > 0, span, 1), 0.5)
