"""Small models of every kind, and the attention they really use, taken from inside the kernel call."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

from vitrail.model import vit
from vitrail.model.config import AxialConfig, ResNetStem, ViTConfig
from vitrail.model.variants import build

SMALL = {"width": 24, "depth": 4, "heads": 3, "mlp_width": 40, "patch_size": (4, 4), "image_size": (12, 20), "classes": 5}
KINDS: dict[str, dict] = {
    "class token": {},
    "gap": {"pool": "gap", "position": "sincos2d"},
    "map": {"pool": "map"},
    "map over all": {"pool": "map", "class_token": True, "pool_prefix": True},
    "token and gap": {"pool": "token+gap", "registers": 4, "layer_scale": 0.7},
    "registers": {"registers": 4, "position_class": False, "pool": "gap", "class_token": True},
    "distilled": {"distilled": True},
    "unpooled": {"pool": "unpooled"},
    "relative": {"position": "relative", "heads": 2},
    "positions at every layer": {"position": "learned2d", "position_at": "every"},
    "positions shared": {"position_at": "shared", "qk_norm": True, "norm_pre": True, "mlp": "swiglu"},
    "hybrid": {"stem": ResNetStem(layers=(1,), width=32), "patch_size": (1, 1)},
    "pre-training head": {"representation": 7},
}


def small(kind: str, **changes: object) -> nn.Module:
    """A float64 model of a kind with its weights stirred, so that no attention is uniform and no gradient zero."""
    settings = {**SMALL, **KINDS[kind], **changes} if kind != "axial" else {**SMALL, "pool": "gap", **changes}
    model = build(AxialConfig(**settings) if kind == "axial" else ViTConfig(**settings), seed=3).double().eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
    return model


def pictures(model: nn.Module, count: int = 3) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.rand(count, model.config.channels, *model.config.image_size, generator=generator, dtype=torch.float64) * 2 - 1


@contextmanager
def recorded() -> Iterator[list[Tensor]]:
    """The fused kernel replaced by its definition; the softmax of every call is kept, in order."""
    kept: list[Tensor] = []

    def plain(q: Tensor, k: Tensor, v: Tensor, attn_mask: Tensor | None = None) -> Tensor:
        logits = q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5
        kept.append((logits if attn_mask is None else logits + attn_mask).softmax(-1))
        return kept[-1] @ v

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vit.F, "scaled_dot_product_attention", plain)
        yield kept
