"""The loss scale of fp16: gradients are multiplied up so that they do not vanish, and divided back.

Halved when a gradient overflows (that step is passed over), doubled after a thousand or two
good steps. All of it stays on the device: no step waits to learn whether it overflowed.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

__all__ = ["LossScale"]


class LossScale:
    """A power of two that finds its own size; `off` is 1 for ever."""

    def __init__(self, device: torch.device, *, on: bool, start: float = 2.0**16, every: int = 2000) -> None:
        self.on, self.every = on, every
        self.value = torch.full((), start if on else 1.0, dtype=torch.float32, device=device)
        self._good = torch.zeros((), dtype=torch.int32, device=device)  # steps without overflow since the last change

    @torch.no_grad()
    def absorbs(self, overflow: Tensor) -> Tensor:
        """Whether halving can still cure an overflow; at a scale of 1 the gradient itself is at fault."""
        return overflow & (self.value > 1.0)

    @torch.no_grad()
    def update(self, overflow: Tensor) -> None:
        if not self.on:
            return
        grown = self._good + 1 >= self.every
        factor = torch.where(overflow, 0.5, torch.where(grown, 2.0, 1.0))
        self.value.mul_(factor).clamp_(1.0, 2.0**24)
        self._good.copy_(torch.where(overflow | grown, 0, self._good + 1))

    def state_dict(self) -> dict[str, Tensor]:
        return {"value": self.value, "good": self._good}

    def load_state_dict(self, table: Mapping[str, Tensor]) -> None:
        self.value.copy_(table["value"])
        self._good.copy_(table["good"])
