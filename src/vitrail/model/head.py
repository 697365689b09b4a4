"""The classification head: one linear layer, or none."""

from __future__ import annotations

from typing import Any

from torch import nn

__all__ = ["head_for"]


def head_for(config: Any) -> nn.Module:
    """A linear layer from what pooling gives to the classes; the identity where there are none."""
    return nn.Linear(config.head_width, config.classes, bias=config.head_bias) if config.classes else nn.Identity()
