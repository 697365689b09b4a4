"""How long a piece of work takes: warm-up, then many passes, each timed by itself.

A GPU works behind the host's back, so there its own clock is read (CUDA events) and every
pass is waited for; elsewhere the host's clock serves. What is reported is the median with the
tenth and the ninetieth percentile: a mean would follow one hiccup of the machine.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

__all__ = ["Timing", "passes"]

WARM_UP, RUNS, LEAST, BUDGET_S = 2, 20, 3, 2.0


@dataclass(frozen=True)
class Timing:
    """Seconds of `n` passes: the median, and what one pass in ten undercuts or exceeds."""

    n: int
    median: float
    low: float
    high: float

    @classmethod
    def of(cls, seconds: Sequence[float]) -> Timing:
        ordered = sorted(seconds)
        last = len(ordered) - 1
        return cls(len(ordered), median(ordered), ordered[round(0.1 * last)], ordered[round(0.9 * last)])

    @property
    def spread(self) -> float:
        """Half the distance from low to high, as a part of the median: the number after a plus-minus."""
        return (self.high - self.low) / (2 * self.median) if self.median else 0.0


def passes(
    once: Callable[[], object],
    device: torch.device,
    *,
    warm_up: int = WARM_UP,
    runs: int = RUNS,
    budget_s: float = BUDGET_S,
    least: int = LEAST,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Seconds of each pass: after warm-up, `runs` of them or as many as the budget allows, and never fewer than `least`.

    clock: the host's; `time.process_time` counts this process alone, where others share the processor.
    """
    for _ in range(warm_up):
        once()
    timed = _on_the_gpu if device.type == "cuda" else functools.partial(_on_the_host, clock)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    seconds: list[float] = []
    begun = time.perf_counter()
    while len(seconds) < least or (len(seconds) < runs and time.perf_counter() - begun < budget_s):
        seconds.append(timed(once))
    return seconds


def _on_the_host(clock: Callable[[], float], once: Callable[[], object]) -> float:
    start = clock()
    once()
    return clock() - start


def _on_the_gpu(once: Callable[[], object]) -> float:
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    once()
    end.record()
    end.synchronize()
    return start.elapsed_time(end) / 1e3
