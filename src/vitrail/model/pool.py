"""From normalised tokens to what the head reads."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.model.config import ViTConfig
from vitrail.model.mlp import Mlp

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["AttentionPool", "pool_tokens"]


class AttentionPool(nn.Module):
    """MAP: one learned probe attends to all tokens, then a residual MLP (Scaling ViT)."""

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        width = config.width
        self.heads = config.heads
        self.probe = nn.Parameter(torch.empty(1, 1, width))
        self.q = nn.Linear(width, width)
        self.kv = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width, eps=config.eps)
        self.mlp = Mlp(width, config.mlp_width, config.activation)

    def forward(self, y_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B D"]:
        batch = y_BTD.shape[0]
        q = self.q(self.probe).unflatten(2, (self.heads, -1)).transpose(1, 2).expand(batch, -1, -1, -1)
        k, v = self.kv(y_BTD).unflatten(2, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)
        pooled = self.out(F.scaled_dot_product_attention(q.to(k.dtype), k, v).transpose(1, 2).flatten(2))
        return (pooled + self.mlp(self.norm(pooled)))[:, 0]


def pool_tokens(y_BTD: Float[Tensor, "B T D"], config: ViTConfig) -> Float[Tensor, "B *D2"]:
    """ "token", "gap", "token+gap": (B, T, D) -> (B, D or 2D); "unpooled": as it is, (B, T, D)."""
    if config.pool == "unpooled":
        return y_BTD
    patches = y_BTD if config.pool_prefix else y_BTD[:, config.prefix :]
    if config.pool == "gap":
        return patches.mean(dim=1)
    if config.pool == "token+gap":
        return torch.cat([y_BTD[:, 0], patches.mean(dim=1)], dim=1)
    return y_BTD[:, 0]
