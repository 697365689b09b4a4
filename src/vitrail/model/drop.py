"""Dropout and stochastic depth whose draws follow the sample, not the batch.

With `key` (one pair of 32-bit words a sample, see `kernels.draws`) a mask is a function
of (sample, site, element): the same however the batch is split over ranks, micro-batches
or recomputation. A site is the number of the place in the network. Without a key the
masks come from torch's own generator. A rate of 0, or evaluation, returns the input itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from vitrail.kernels.draws import bits, uniform

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["DropPath", "Dropout"]


def draw(shape: tuple[int, int], site: int, key: Int[Tensor, "B 2"] | None, like: Tensor) -> Float[Tensor, "B numbers"]:
    """(samples, numbers) uniforms in [0, 1) of one site."""
    if key is None:
        return torch.rand(shape, device=like.device)
    own = bits(key, 2, start=2 * site)  # this sample's two words for this site
    return uniform(own, shape[1])


class Dropout(nn.Module):
    """Zero each element with probability `rate`, scale the rest by 1 / (1 - rate)."""

    def __init__(self, rate: float, site: int) -> None:
        super().__init__()
        self.rate, self.site = rate, site

    def forward(self, x_BTD: Float[Tensor, "B T D"], key: Int[Tensor, "B 2"] | None = None) -> Float[Tensor, "B T D"]:
        if self.rate == 0.0 or not self.training:
            return x_BTD
        numbers = draw((x_BTD.shape[0], x_BTD.shape[1] * x_BTD.shape[2]), self.site, key, x_BTD)
        return x_BTD * kept(numbers, self.rate, x_BTD).view(x_BTD.shape)

    def extra_repr(self) -> str:
        return f"rate={self.rate}, site={self.site}"


class DropPath(nn.Module):
    """Zero a sample's whole residual branch with probability `rate`, scale the rest."""

    def __init__(self, rate: float, site: int) -> None:
        super().__init__()
        self.rate, self.site = rate, site

    def forward(self, x_BTD: Float[Tensor, "B T D"], key: Int[Tensor, "B 2"] | None = None) -> Float[Tensor, "B T D"]:
        if self.rate == 0.0 or not self.training:
            return x_BTD
        numbers = draw((x_BTD.shape[0], 1), self.site, key, x_BTD)
        return x_BTD * kept(numbers, self.rate, x_BTD)[:, :, None]

    def extra_repr(self) -> str:
        return f"rate={self.rate}, site={self.site}"


def kept(numbers: Tensor, rate: float, like: Tensor) -> Tensor:
    """Uniforms -> 0 with probability `rate`, else 1 / (1 - rate)."""
    return (numbers >= rate).to(like.dtype) * (1.0 / (1.0 - rate))
