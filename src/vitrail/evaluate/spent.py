"""What a measurement cost: time, devices, the arithmetic of its forward passes, and energy where the driver counts it."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch

from vitrail.model.cost import exaflops
from vitrail.runtime import distributed
from vitrail.runtime.device import describe_device, peak_flops
from vitrail.runtime.energy import joules
from vitrail.runtime.progress import duration, quantity

__all__ = ["Meter", "Spent"]


@dataclass(frozen=True)
class Spent:
    """`passes` are images that went forward through the model now, each view once; kept answers cost nothing again."""

    passes: int
    seconds: float
    devices: int
    device: str
    flops: float
    peak: float | None = None  # FLOP/s of one device, where it is known
    joules: float | None = None  # of the GPUs, where the driver counts it
    views: int = 1  # passes an image

    def __add__(self, other: Spent) -> Spent:
        energy = None if self.joules is None or other.joules is None else self.joules + other.joules
        passes, seconds, flops = self.passes + other.passes, self.seconds + other.seconds, self.flops + other.flops
        return Spent(passes, seconds, self.devices, self.device, flops, self.peak, energy, self.views)

    @property
    def device_hours(self) -> float:
        return self.seconds * self.devices / 3600

    @property
    def rate(self) -> float | None:
        """Images a second, reading and decoding included."""
        return self.passes / self.views / self.seconds if self.passes and self.seconds else None

    @property
    def mfu(self) -> float | None:
        """Part of the devices' dense bf16 peak over the whole time."""
        return self.flops / (self.seconds * self.devices * self.peak) if self.peak and self.passes else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "passes": self.passes,
            "seconds": round(self.seconds, 3),
            "devices": self.devices,
            "device": self.device,
            "device_hours": self.device_hours,
            "exaflops": self.flops / 1e18,
            "images_per_s": self.rate,
            "mfu": self.mfu,
            "joules": self.joules,
        }

    def __str__(self) -> str:
        where = f"{self.devices} x {self.device}" if self.devices > 1 else self.device
        if not self.passes:
            return f"{duration(self.seconds)}; no image was asked, every answer was kept from before"
        parts = [f"{duration(self.seconds)} on {where}", f"{self.rate:,.0f} images/s", quantity(self.flops, "FLOP")]
        parts += [f"MFU {100 * self.mfu:.0f} %"] if self.mfu is not None else []
        parts += [f"{self.joules / 3600:.3g} Wh"] if self.joules is not None else []
        return ", ".join(parts)


class Meter:
    """Runs from its making; `read(images, views)` says what it cost so far."""

    def __init__(self, config: Any, device: torch.device) -> None:
        self.config, self.device = config, device
        self.begun, self.energy = time.monotonic(), joules(device)

    def read(self, images: int, views: int = 1) -> Spent:
        now, seconds = joules(self.device), time.monotonic() - self.begun
        used = now - self.energy if now is not None and self.energy is not None else None
        passes = images * views
        flops = 1e18 * exaflops(self.config, passes, training=False)
        return Spent(passes, seconds, distributed.world(), describe_device(self.device), flops, peak_flops(self.device), used, views)
