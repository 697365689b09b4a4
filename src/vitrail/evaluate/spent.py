"""What a measurement cost: time, devices, and the arithmetic of its forward passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from vitrail.model.cost import exaflops
from vitrail.runtime import distributed
from vitrail.runtime.device import describe_device
from vitrail.runtime.progress import duration, quantity

__all__ = ["Spent"]


@dataclass(frozen=True)
class Spent:
    """`passes` are images that went forward through the model now, each view once; kept answers cost nothing again."""

    passes: int
    seconds: float
    devices: int
    device: str
    flops: float

    @classmethod
    def of(cls, config: Any, passes: int, seconds: float, device: torch.device) -> Spent:
        return cls(passes, seconds, distributed.world(), describe_device(device), 1e18 * exaflops(config, passes, training=False))

    def __add__(self, other: Spent) -> Spent:
        return Spent(self.passes + other.passes, self.seconds + other.seconds, self.devices, self.device, self.flops + other.flops)

    @property
    def device_hours(self) -> float:
        return self.seconds * self.devices / 3600

    @property
    def rate(self) -> float | None:
        """Images a second, reading and decoding included."""
        return self.passes / self.seconds if self.passes and self.seconds else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "passes": self.passes,
            "seconds": round(self.seconds, 3),
            "devices": self.devices,
            "device": self.device,
            "device_hours": self.device_hours,
            "exaflops": self.flops / 1e18,
            "images_per_s": self.rate,
        }

    def __str__(self) -> str:
        where = f"{self.devices} x {self.device}" if self.devices > 1 else self.device
        if not self.passes:
            return f"nothing: every answer was kept from before ({duration(self.seconds)})"
        return f"{duration(self.seconds)} on {where}, {self.rate:,.0f} images/s, {quantity(self.flops, 'FLOP')}"
