"""What a run costs, in one vocabulary: images, exaFLOPs, device-hours, MFU, TPUv3-core-days, energy.

    cost_of_run("runs/b16")                   from its run.json
    core_days(4262)                           about what the authors needed for so many exaFLOPs

exaFLOPs are the analytic count (model/cost.py). A TPUv3-core-day is the paper's unit: its own
rows did 1.70 exaFLOPs (H/14: 4262 in 2.5k days) to 2.30 (L/16: 1567 in 0.68k) in one, so an
equivalent is a range. MFU is given where the device's peak is known, energy where NVML counts it.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import UsageError
from vitrail.runtime.device import peak_flops, pick_device
from vitrail.runtime.progress import duration

__all__ = ["EXAFLOPS_A_CORE_DAY", "RunCost", "core_days", "cost_of_run"]

EXAFLOPS_A_CORE_DAY = (4262 / 2500, 1567 / 680)  # tables 2 and 6: H/14, L/16


def core_days(exaflops: float) -> tuple[float, float]:
    """From … to TPUv3-core-days, at the pace of the authors' fastest and slowest row."""
    slow, fast = EXAFLOPS_A_CORE_DAY
    return exaflops / fast, exaflops / slow


@dataclass(frozen=True)
class RunCost:
    images: int
    exaflops: float
    seconds: float
    device_hours: float
    mfu: float | None = None  # part of the devices' dense bf16 peak, over the whole time, measuring and saving included
    joules: float | None = None  # of the GPUs

    @property
    def core_days(self) -> tuple[float, float]:
        return core_days(self.exaflops)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "tpuv3_core_days": list(self.core_days)}

    def __str__(self) -> str:
        low, high = self.core_days
        parts = [
            f"{self.images:,} images",
            f"{self.exaflops:.3g} exaFLOPs",
            f"{duration(self.seconds)}",
            f"{self.device_hours:.2f} device-hours",
        ]
        parts += [f"MFU {100 * self.mfu:.0f} %"] if self.mfu is not None else []
        parts += [f"{self.joules / 3.6e6:.3g} kWh"] if self.joules is not None else []
        return ", ".join([*parts, f"as much as {low:.2g} to {high:.2g} TPUv3-core-days of the paper"])

    @classmethod
    def of(
        cls, images: int, exaflops: float, seconds: float, device_seconds: float, device: str | None, joules: float | None = None
    ) -> RunCost:
        """device: where it ran, for its peak; None: not this machine's, so no MFU."""
        peak = peak_flops(pick_device(device)) if device else None
        mfu = exaflops * 1e18 / (device_seconds * peak) if peak and device_seconds else None
        return cls(images, exaflops, seconds, device_seconds / 3600, mfu, joules)

    @classmethod
    def sum(cls, costs: Sequence[RunCost]) -> RunCost:
        """Of several runs together; energy only where all of them counted it."""
        joules = [cost.joules for cost in costs if cost.joules is not None]
        return cls(
            sum(cost.images for cost in costs),
            sum(cost.exaflops for cost in costs),
            sum(cost.seconds for cost in costs),
            sum(cost.device_hours for cost in costs),
            None,
            sum(joules) if len(joules) == len(costs) else None,
        )


def cost_of_run(folder: str | Path) -> RunCost:
    """Of a training run so far."""
    path = Path(folder) / "run.json"
    if not path.is_file():
        raise UsageError(f"{folder} holds no run (there is no run.json).", hint="the directory given to `vitrail train --out`")
    told = json.loads(path.read_text(encoding="utf-8"))
    return RunCost.of(int(told["images"]), told["exaflops"], told["seconds"], told["device_seconds"], None, told.get("joules"))
