"""What a run says of itself: metrics.jsonl, the progress line, trackers, and steps that were not finite."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from vitrail.config import Recipe, to_dict
from vitrail.data.source import Source
from vitrail.errors import NumericsError
from vitrail.model.cost import cost_of, exaflops
from vitrail.runtime import distributed
from vitrail.runtime.device import memory_in_use, peak_flops
from vitrail.runtime.energy import joules
from vitrail.runtime.metrics import MetricsLog
from vitrail.runtime.progress import Progress, duration, quantity
from vitrail.runtime.trackers import Trackers
from vitrail.train.plan import Plan
from vitrail.train.reports import Report
from vitrail.train.rundir import RunDirectory
from vitrail.train.state import TrainState

__all__ = ["Clock", "Journal"]


@dataclass
class Clock:
    """Time spent training since the last lap; what happens inside `paused` (measuring, saving) does not count."""

    begun: float = field(default_factory=time.monotonic)
    _lap: float = field(default_factory=time.monotonic)
    _aside: float = 0.0

    def lap(self) -> float:
        now = time.monotonic()
        passed, self._lap, self._aside = max(1e-9, now - self._lap - self._aside), now, 0.0
        return passed

    @contextmanager
    def paused(self) -> Iterator[None]:
        start = time.monotonic()
        try:
            yield
        finally:
            self._aside += time.monotonic() - start

    def since_start(self) -> float:
        return time.monotonic() - self.begun


class Journal:
    """Rank 0 writes; every rank keeps the same books, so that all come to the same verdict."""

    def __init__(
        self, recipe: Recipe, folder: RunDirectory, plan: Plan, state: TrainState, config: Any, device: torch.device, progress: Progress
    ) -> None:
        self.recipe, self.folder, self.plan, self.state, self.progress = recipe, folder, plan, state, progress
        self.device, self.config = device, config
        self.clock = Clock()
        self.log = MetricsLog(folder.metrics, int(state.counters.get("log_failures", 0)))
        names = recipe.train.trackers if distributed.is_main() else ()
        self.trackers = Trackers(names, folder.path, to_dict(recipe))
        self.flops = 6.0 * cost_of(config).macs  # of a training image: 2 a product, forward and twice backward
        self._norm = math.nan
        self._lap_step = state.step
        self._usual: list[float] = []  # recent losses, to know a spike by
        self._before = dict(state.counters)  # what earlier processes of this run had spent
        self._energy = joules(device)

    # ---- steps

    def note(self, reports: Iterable[Report], source: Source) -> None:
        """Enter finished steps; one that was not finite is written down, and beyond the allowance ends the run."""
        for report in reports:
            if report.bad:
                self._not_finite(report, source)
                continue
            if report.applied:
                self.state.pending.append(report.loss)
            self._norm = report.grad_norm
            self._spike(report, source)

    def _not_finite(self, report: Report, source: Source) -> None:
        skipped = int(self.state.counters.get("skipped", 0)) + 1
        self.state.counters["skipped"] = skipped
        batch = [i for part in distributed.gather_objects(report.index.tolist()) for i in part]
        guilty = [i for part in distributed.gather_objects(report.culprits()) for i in part]
        entry: dict[str, Any] = {
            "step": report.step,
            "loss": str(report.loss),
            "grad_norm": str(report.grad_norm),
            "suspects": [source.id(i) for i in guilty],
            "samples": [source.id(i) for i in batch],
        }
        self._record("nonfinite.json", entry)
        allowed = self.recipe.train.skip_nonfinite
        what = f"step {report.step}: loss {report.loss}, gradient norm {report.grad_norm}; no weight was changed"
        if skipped <= allowed:
            self.progress.say(f"{what}; passed over ({skipped} of {allowed})")
            return
        names = ", ".join(entry["suspects"][:3]) if guilty else "no single image"
        raise NumericsError(
            f"{what} ({names} to blame; the batch is in {self.folder.path / 'nonfinite.json'}).",
            hint="look at these images; a lower optim.lr, optim.clip_norm=1 or train.precision=fp32 often help; "
            f"train.skip_nonfinite={allowed + 1} passes over",
        )

    def _spike(self, report: Report, source: Source) -> None:
        """A loss many times the usual one is written down with its samples; nothing else happens to it."""
        usual = sorted(self._usual)[len(self._usual) // 2] if len(self._usual) >= 10 else math.inf
        self._usual = [*self._usual[-49:], report.loss]
        if report.loss > 10 * abs(usual):
            batch = [i for part in distributed.gather_objects(report.index.tolist()) for i in part]
            self._record(
                "spikes.json", {"step": report.step, "loss": report.loss, "usual": usual, "samples": [source.id(i) for i in batch]}
            )
            self.progress.say(f"step {report.step}: loss {report.loss:.4g} where {usual:.4g} is usual; its images are in spikes.json")

    def _record(self, name: str, entry: dict[str, Any]) -> None:
        if distributed.is_main():
            known = [e for e in self.folder.read_json(name).get("steps", []) if e["step"] != entry["step"]]
            self.folder.write_json(name, {"steps": [*known, entry]})

    # ---- lines

    def line(self) -> None:
        """The line of the steps since the last one: means, rate, speed."""
        done, losses = self.state.step, self.state.pending
        seconds = self.clock.lap()
        speed = (done - self._lap_step) * self.recipe.train.batch_size / seconds
        self._lap_step = done
        loss = math.fsum(losses) / len(losses) if losses else math.nan
        body = {
            "step": done,
            "epoch": round(done / self.plan.steps_per_epoch, 4),
            "loss": loss,
            "lr": self.plan.lr(done - 1),
            "grad_norm": self._norm,
        }
        memory = memory_in_use(self.device)
        rate = self.flops * speed
        clocked = {
            "images_per_s": round(speed, 1),
            "flops_per_s": rate,
            "memory_bytes": memory,
            "seconds": round(self.spent()["seconds"], 3),
        }
        peak = peak_flops(self.device)
        if peak:
            clocked["mfu"] = round(rate / peak / distributed.world(), 4)
        self.state.pending = []
        if distributed.is_main():
            self.log.append({**body, "time": clocked})
            self.trackers.send(done, {**body, "time": clocked})
        self.state.counters["log_failures"] = self.log.failures
        left = (self.plan.steps - done) * self.recipe.train.batch_size / speed
        use = f"MFU {100 * clocked['mfu']:.0f} %" if peak else quantity(rate, "FLOP/s")
        self.progress.show(
            f"step {done}/{self.plan.steps}  loss {loss:.4f}  lr {body['lr']:.2e}  {speed:,.0f} img/s  {use}  "
            f"{quantity(memory, 'B')}  {duration(left)} left"
        )

    def measured(self, figures: dict[str, Any], *, average: bool) -> None:
        """The line of an evaluation."""
        body = {"step": self.state.step, "eval": figures, "ema": average}
        if distributed.is_main():
            self.log.append({**body, "time": {"seconds": round(self.spent()["seconds"], 3)}})
            self.trackers.send(self.state.step, body)
        shown = "  ".join(f"{name} {100 * value:.2f} %" for name, value in figures.items() if name.startswith("top"))
        self.progress.say(f"step {self.state.step}  held out: {shown}  loss {figures['loss']:.4f}".replace(":   ", ": "))

    # ---- cost

    def spent(self) -> dict[str, float]:
        """Seconds, device-hours, exaFLOPs and, where NVML tells, joules of the whole run so far, earlier processes included."""
        here = self.clock.since_start()
        seconds = self._before.get("seconds", 0.0) + here
        device_seconds = self._before.get("device_seconds", 0.0) + here * distributed.world()
        images = self.state.step * self.recipe.train.batch_size
        return {
            "seconds": seconds,
            "device_seconds": device_seconds,
            "device_hours": device_seconds / 3600,
            "exaflops": exaflops(self.config, images, training=True),
            "images": images,
            **self._joules(),
        }

    def _joules(self) -> dict[str, float]:
        now = joules(self.device)
        if self._energy is None or now is None or (self._before.get("seconds") and "joules" not in self._before):
            return {}  # not counted now, or not in an earlier process
        return {"joules": self._before.get("joules", 0.0) + now - self._energy}

    def settle(self) -> None:
        """Put the time spent into the counters that a checkpoint keeps."""
        spent = self.spent()
        self.state.counters |= {name: spent[name] for name in ("seconds", "device_seconds", "joules") if name in spent}
