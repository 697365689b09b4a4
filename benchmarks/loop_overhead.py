"""What the training loop costs beyond its steps: the same step in the loop, and by itself on one batch.

    python benchmarks/loop_overhead.py                                                    a small model on any machine
    python benchmarks/loop_overhead.py --recipe tiny-imagenet:ti8 --steps 400 data.train=/data/tiny-imagenet-200

In the loop: batches cut, augmented and moved, losses read back, lines written, signals and clocks looked
at. By itself: `step(batch, lr)` again and again on one batch that is ready. Rounds of both alternate. On a GPU the
time is wall time between two waits for the device. On a CPU nothing happens beside anything else, so that making
batches is a cost of its own (`feed_ms`): there the loop is fed one batch too, and the time is the process's CPU time,
which neighbours disturb less. `loop_alone_us` is what the loop costs a host around a step and a feed that do nothing.
Goal: under 3 %.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from vitrail.config import load_recipe
from vitrail.runtime.device import describe_device
from vitrail.runtime.progress import Progress
from vitrail.runtime.signals import StopRequest
from vitrail.runtime.watchdog import Watchdog
from vitrail.train.loop import Session
from vitrail.train.plan import plan_run
from vitrail.train.run import Run, open_run
from vitrail.train.rundir import RunDirectory

GOAL = 0.03
WARM = 20  # steps of a round before its clock starts
SMALL = [  # nothing but the model takes time: on a CPU, drawing other operations for every batch would be measured too
    "model.name=mu/8", "model.image_size=32", "data.train=builtin:shapes?n=2048&size=32&classes=10&test=16", "train.batch_size=256",
    "data.workers=0", "augment.randaugment=none", "augment.erasing=0", "augment.mixup=0", "augment.cutmix=0",
]  # fmt: skip


class Stamped:
    """A step that notes the time when the warm-up of a round is over and when its last step begins."""

    def __init__(self, run: Run, clock: Callable[[], float], first: int, last: int) -> None:
        self.step, self.run, self.clock = run.step, run, clock
        self.at = {run.state.step + first: 0.0, run.state.step + last: 0.0}

    def __call__(self, batch: Any, lr: float) -> Any:
        if self.run.state.step in self.at:
            self.at[self.run.state.step] = self.clock()
        return self.step(batch, lr)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)


def clock_of(device: torch.device) -> Callable[[], float]:
    """Seconds, once the device has done all it was asked."""

    def wall() -> float:
        torch.cuda.synchronize(device)
        return time.perf_counter()

    return wall if device.type == "cuda" else time.process_time


def in_the_loop(run: Run, steps: int, clock: Callable[[], float]) -> float:
    """Seconds a step, in a session of its own that goes on where the one before ended."""
    run.plan = plan_run(run.recipe, len(run.sources.train), run.state.step + WARM + steps + 1)
    plain, stamped = run.step, Stamped(run, clock, WARM, WARM + steps)
    run.step = stamped  # type: ignore[assignment]
    try:
        with Progress(quiet=True) as line, StopRequest() as stop, Watchdog(0) as dog:
            Session(run, line, stop, dog, None).run_to_end()
    finally:
        run.step = plain
    begin, end = stamped.at.values()
    return (end - begin) / steps


class OneBatch:
    """A feed that gives one batch again and again."""

    def __init__(self, run: Run) -> None:
        with run.feed() as feed:
            batch = next(iter(feed))
            self.batch = replace(batch, images=batch.images.clone())  # the feed lends its memory
        self.quarantine: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[Any]:
        return itertools.repeat(self.batch)


class Still:
    """A step that gives one outcome again and again: what is left is the loop's own work."""

    def __init__(self, step: Any, batch: Any) -> None:
        self.step, self.outcome = step, step(batch, 0.0)

    def __call__(self, batch: Any, lr: float) -> Any:
        return self.outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self.step, name)


@contextmanager
def fed_by(run: Run, feed: OneBatch) -> Iterator[None]:
    plain, run.feed = run.feed, lambda: nullcontext(feed)  # type: ignore[assignment, method-assign, return-value]
    try:
        yield
    finally:
        run.feed = plain  # type: ignore[method-assign]


def of_its_own(run: Run, feed: OneBatch, steps: int) -> float:
    """CPU seconds a step that the loop itself takes."""
    plain, run.step = run.step, Still(run.step, feed.batch)  # type: ignore[assignment]
    try:
        with fed_by(run, feed):
            return in_the_loop(run, steps, time.thread_time)
    finally:
        run.step = plain


def by_itself(run: Run, steps: int, clock: Callable[[], float]) -> tuple[float, float]:
    """Seconds a step on one batch; and seconds a batch of the feed with nothing else going on."""
    with run.feed() as feed:
        batches = iter(feed)
        for _ in range(WARM):
            next(batches)
        begin = clock()
        for _ in range(steps):
            batch = next(batches)
        feed_s = (clock() - begin) / steps
    for _ in range(WARM):
        run.step(batch, 1e-6)
    begin = clock()
    for _ in range(steps):
        run.step(batch, 1e-6)
    return (clock() - begin) / steps, feed_s


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="tiny-imagenet:ti8")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path, default=None, help="write the figures as JSON")
    parser.add_argument("keys", nargs="*", help="KEY=VALUE of the recipe")
    given = parser.parse_args()
    small = [] if any(key.startswith("data.train=") for key in given.keys) else SMALL
    quiet = ["data.eval_split=nothing", "train.save_every_steps=1000000", "train.log_every_steps=50"]
    recipe = load_recipe(given.recipe, [*small, *quiet, "train.sure=true", "train.steps=1000000", *given.keys])
    with tempfile.TemporaryDirectory() as folder:
        place = RunDirectory(Path(folder))
        run = open_run(recipe, place, given.device)
        clock = clock_of(run.device)
        loops, bares, feeds = [], [], []
        one = OneBatch(run)
        for _ in range(given.rounds):
            with fed_by(run, one) if run.device.type == "cpu" else nullcontext():
                loops.append(in_the_loop(run, given.steps, clock))
            bare, feed = by_itself(run, given.steps, clock)
            bares.append(bare)
            feeds.append(feed)
        own = min(of_its_own(run, one, 200) for _ in range(3))
        begin = time.perf_counter()
        run.saver.save(run.state)
        saving = time.perf_counter() - begin
    overheads = [loop / bare - 1 for loop, bare in zip(loops, bares)]
    in_ms = lambda seconds: [round(1e3 * s, 3) for s in seconds]
    figures = {
        "device": describe_device(run.device),
        "cores": os.cpu_count(),
        "torch": torch.__version__,
        "model": recipe.model.name,
        "batch_size": recipe.train.batch_size,
        "precision": run.precision.name,
        "clock": "wall" if run.device.type == "cuda" else "CPU time",
        "steps": given.steps,
        "loop_ms": in_ms(loops),
        "bare_ms": in_ms(bares),
        "feed_ms": in_ms(feeds),
        "overhead": round(statistics.median(overheads), 4),
        "spread": round(max(overheads) - min(overheads), 4),
        "loop_alone_us": round(1e6 * own, 1),
        "save_s": round(saving, 3),
    }
    print(json.dumps(figures, indent=1))
    print(f"overhead {100 * figures['overhead']:.1f} % of the bare step (goal: under {100 * GOAL:.0f} %)")
    if given.out:
        given.out.write_text(json.dumps(figures, indent=1) + "\n")


if __name__ == "__main__":
    main()
