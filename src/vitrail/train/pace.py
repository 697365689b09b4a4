"""`train.max_minutes`: measure the speed first, then settle how many steps fit.

The schedule needs to know the end before it begins, so the number of steps is fixed once,
kept in every checkpoint, and not measured again when the run is resumed.
"""

from __future__ import annotations

import time
from collections.abc import Iterator

import torch

from vitrail.data.batch import Batch
from vitrail.runtime import distributed
from vitrail.train.measure import Measure
from vitrail.train.run import Run
from vitrail.train.stream import TrainFeed

__all__ = ["steps_that_fit"]

WARM, TIMED, FEWEST = 4, 12, 2  # steps before the clock runs, while it does, and the fewest of both on a slow machine
SHARE = 0.05  # of the time, at most, for each of the three measurements
GPU_SECONDS = 3.0  # on a GPU: long enough that batches made ahead no longer flatter the figure
RESERVE = 0.03  # of the time, for saving and for the last evaluation


def steps_that_fit(run: Run, feed: TrainFeed, measure: Measure, minutes: float, begun: float) -> int:
    """How many steps end within `minutes` of `begun` (time.monotonic), at most the plan's. No weight is changed."""
    batches, most_s = iter(feed), SHARE * minutes * 60
    timed_steps(run, batches, WARM, most_s)
    step_s = timed_steps(run, batches, TIMED, most_s, least_s=GPU_SECONDS if run.device.type == "cuda" else 0.0)
    run.optimizer.zero_grad()
    feed.rewind(run.state.step)
    measure_s = timed_measure(run, measure)
    if measure_s < most_s:
        measure_s = timed_measure(run, measure)  # the second time the pictures are there
    if run.plan.eval_every:
        step_s += measure_s / run.plan.eval_every
    left = minutes * 60 * (1 - RESERVE) - (time.monotonic() - begun) - measure_s
    return int(distributed.broadcast_object(max(1, min(run.plan.steps, int(left / step_s)))))


def timed_steps(run: Run, batches: Iterator[Batch], count: int, most_s: float, least_s: float = 0.0) -> float:
    """Seconds a step, over `count` steps or as many as `most_s` holds; they end together on all ranks."""
    wait(run.device)
    start, done, going = time.monotonic(), 0, True
    while going:
        run.step.gradients(next(batches))
        done += 1
        elapsed = time.monotonic() - start
        wanted = done < FEWEST or elapsed < least_s or (done < count and elapsed < most_s)
        going = bool(distributed.agree(int(wanted)))
    wait(run.device)
    return (time.monotonic() - start) / done


def timed_measure(run: Run, measure: Measure) -> float:
    start = time.monotonic()
    measure(run.state.step)
    return distributed.broadcast_object(time.monotonic() - start)


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
