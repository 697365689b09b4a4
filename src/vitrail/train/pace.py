"""`train.max_minutes`: measure the speed first, then settle how many steps fit.

The schedule needs to know the end before it begins, so the number of steps is fixed once,
kept in every checkpoint, and not measured again when the run is resumed.
"""

from __future__ import annotations

import time

import torch

from vitrail.runtime import distributed
from vitrail.train.measure import Measure
from vitrail.train.run import Run
from vitrail.train.stream import TrainFeed

__all__ = ["steps_that_fit"]

WARM, TIMED = 4, 12  # steps before the clock runs, and the fewest while it does
GPU_SECONDS = 3.0  # on a GPU: long enough that batches made ahead no longer flatter the figure
RESERVE = 0.03  # of the time, for saving and for the last evaluation


def steps_that_fit(run: Run, feed: TrainFeed, measure: Measure, minutes: float, begun: float) -> int:
    """How many steps end within `minutes` of `begun` (time.monotonic), at most the plan's. No weight is changed."""
    batches = iter(feed)
    for _ in range(WARM):
        run.step.gradients(next(batches))
    wait(run.device)
    start, timed = time.monotonic(), 0
    while timed < TIMED or (run.device.type == "cuda" and time.monotonic() - start < GPU_SECONDS):
        run.step.gradients(next(batches))
        timed += 1
    wait(run.device)
    step_s = (time.monotonic() - start) / timed
    run.optimizer.zero_grad()
    feed.rewind(run.state.step)
    start = time.monotonic()
    measure(run.state.step)
    measure(run.state.step)  # the second time the pictures are there
    measure_s = (time.monotonic() - start) / 2
    if run.plan.eval_every:
        step_s += measure_s / run.plan.eval_every
    left = minutes * 60 * (1 - RESERVE) - (time.monotonic() - begun) - measure_s
    return int(distributed.broadcast_object(max(1, min(run.plan.steps, int(left / step_s)))))


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
