"""How fast a model answers, without reading images: throughput at a batch size, latency of one image."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.evaluate.score import evaluating, precision_for
from vitrail.runtime.stopwatch import passes

__all__ = ["Speed", "measure_speed"]


@dataclass(frozen=True)
class Speed:
    """Medians over `runs` forward passes after warm-up, on the machine named."""

    batch_size: int
    images_per_s: float
    latency_ms: float
    latency_p95_ms: float
    runs: int
    device: str
    precision: str

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        return (
            f"{self.images_per_s:,.0f} images/s in batches of {self.batch_size}; one image {self.latency_ms:.1f} ms "
            f"(95 %: {self.latency_p95_ms:.1f} ms); {self.precision} on {self.device}, medians"
        )


def measure_speed(model: nn.Module, *, device: torch.device, precision: str, batch_size: int, where: str = "") -> Speed:
    """Forward passes of the model on noise of its input size."""
    mode = precision_for(precision, device)
    rows, columns = model.config.image_size  # type: ignore[union-attr, misc]
    channels = getattr(model.config, "channels", 3)
    shape = (channels, rows, columns)
    generator = torch.Generator().manual_seed(0)

    def ready(count: int) -> Tensor:
        return torch.randn(count, *shape, generator=generator).to(device, mode.weights)

    def timed(images: Tensor) -> list[float]:
        def once() -> None:
            with mode.autocast(device):
                model(images)

        return passes(once, device)

    with evaluating(model):
        many, one = timed(ready(batch_size)), timed(ready(1))
    one.sort()
    p95 = one[min(len(one) - 1, round(0.95 * (len(one) - 1)))]
    return Speed(batch_size, batch_size / median(many), 1e3 * median(one), 1e3 * p95, len(one), where or str(device), mode.name)
