"""The MLP of a block: dense, GELU, dense; or its gated form."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.drop import Dropout

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["ACTIVATIONS", "Mlp"]


def gelu_tanh(x: Tensor) -> Tensor:
    return F.gelu(x, approximate="tanh")


def quick_gelu(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.702 * x)


ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu_tanh": gelu_tanh,  # JAX's default, so the paper's
    "gelu": F.gelu,  # exact: timm, transformers, torchvision
    "quick_gelu": quick_gelu,  # CLIP
    "silu": F.silu,
    "relu": F.relu,
}


class Mlp(nn.Module):
    """Dense(D -> M), GELU, dropout, Dense(M -> D), dropout; gated: silu(first half of fc1) * second half."""

    def __init__(
        self, width: int, hidden: int, activation: str, *, gated: bool = False, bias: bool = True, dropout: float = 0.0, site: int = 0
    ) -> None:
        super().__init__()
        self.activation, self.gated = activation, gated
        self.fc1 = nn.Linear(width, 2 * hidden if gated else hidden, bias=bias)
        self.fc2 = nn.Linear(hidden, width, bias=bias)
        self.drop1 = Dropout(dropout, site)
        self.drop2 = Dropout(dropout, site + 1)

    def forward(self, x_BTD: Float[Tensor, "B T D"], key: Int[Tensor, "B 2"] | None = None) -> Float[Tensor, "B T D"]:
        if self.gated:
            gate, value = self.fc1(x_BTD).chunk(2, dim=-1)
            hidden = F.silu(gate) * value
        else:
            hidden = ACTIVATIONS[self.activation](self.fc1(x_BTD))
        return self.drop2(self.fc2(self.drop1(hidden, key)), key)
