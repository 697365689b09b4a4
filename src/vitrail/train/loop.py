"""`train`: a recipe and a directory in, a trained model out; the same command goes on where it was stopped.

open data -> model -> objective -> optimizer      (run.py)
resume from the newest checkpoint that verifies   (store.py, state.py)
for each step: step; log; measure; save; stop if asked
finish: best and last model with their cards, the curve, the summary
"""

from __future__ import annotations

import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.config import Recipe
from vitrail.errors import NumericsError, Preempted, UsageError
from vitrail.evaluate.intervals import wilson
from vitrail.runtime import distributed
from vitrail.runtime.device import describe_device
from vitrail.runtime.faults import fault
from vitrail.runtime.lock import RunLock
from vitrail.runtime.metrics import read_metrics
from vitrail.runtime.progress import Progress, duration
from vitrail.runtime.signals import StopRequest
from vitrail.runtime.watchdog import Watchdog
from vitrail.train.curve import draw_curve
from vitrail.train.journal import Journal
from vitrail.train.measure import Measure
from vitrail.train.pace import steps_that_fit
from vitrail.train.plan import Plan, plan_run
from vitrail.train.publish import publish
from vitrail.train.reports import Report, Reports
from vitrail.train.run import Run, open_run
from vitrail.train.rundir import RunDirectory, compare_recipes, compare_sources
from vitrail.train.state import load_state
from vitrail.train.store import Checkpoint, CheckpointStore
from vitrail.train.stream import TrainFeed

__all__ = ["TrainResult", "train"]

SAVE, STOP = 1, 2  # what a rank may wish for at the end of a step; the largest wish of all ranks is done


@dataclass(frozen=True)
class TrainResult:
    """What a run gave. `metrics` is the last evaluation, `best` the best one with its step."""

    path: Path
    steps: int
    metrics: dict[str, Any]
    best: dict[str, Any]
    seconds: float
    device_hours: float
    exaflops: float
    images: int
    resumed_from: int | None = None
    joules: float | None = None  # of the GPUs, where NVML counts them

    @property
    def model(self) -> Path:
        """The file to use: the best evaluation's weights, or the last ones where nothing was measured."""
        best = self.path / "best.safetensors"
        return best if best.is_file() else self.path / "last.safetensors"

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path), "model": str(self.model)}

    def __str__(self) -> str:
        energy = "" if self.joules is None else f", {self.joules / 3.6e6:.3g} kWh"
        lines = [f"{self.steps} steps, {self.images:,} images in {duration(self.seconds)} ({self.device_hours:.2f} device hours{energy})"]
        if "top1" in self.best:
            n = int(self.best["images"])
            lines.append(
                f"held-out accuracy {wilson(round(self.best['top1'] * n), n).percent()} on {n:,} images (step {self.best['step']})"
            )
        curve = self.path / "curve.png"  # needs the extra `plots`
        lines.append(f"model   {self.model}\ncurve   {curve if curve.is_file() else self.path / 'metrics.jsonl'}")
        lines.append(f"next    vitrail inspect {self.model}")
        return "\n".join(lines)


def train(
    recipe: Recipe,
    out: str | Path,
    *,
    override: bool = False,
    accept_dataset_change: bool = False,
    resume: bool = True,
    strict: bool = False,
    device: str | None = None,
    progress: bool = True,
) -> TrainResult:
    """Run a recipe in the directory `out`, from its newest checkpoint if it has one.

    override: go on although the recipe differs from the one the run was started with
    accept_dataset_change: go on although the training images differ
    resume: False refuses a directory that already holds a run
    strict: a damaged checkpoint is an error, not a reason to take the one before
    """
    folder = RunDirectory(Path(out))
    with distributed.group(), ExitStack() as stack:
        line = stack.enter_context(Progress(quiet=not (progress and distributed.is_main())))
        stop = stack.enter_context(StopRequest())
        dog = stack.enter_context(Watchdog(recipe.train.stall_timeout_s))
        if distributed.is_main():
            folder.prepare()
            stack.enter_context(RunLock(folder.path))
        fault("run.locked")
        found = find_checkpoint(folder, recipe, resume=resume, strict=strict)
        run = open_run(recipe, folder, device, steps=found.state()["steps"] if found else None)
        if run.device.type == "cuda":
            line.say(f"{describe_device(run.device)}, {run.precision.name}, kernels: {run.kernels}")
        if found is not None:
            go_on(run, found, line, override=override, accept_dataset_change=accept_dataset_change)
        return Session(run, line, stop, dog, found.step if found else None).run_to_end()


def find_checkpoint(folder: RunDirectory, recipe: Recipe, *, resume: bool, strict: bool) -> Checkpoint | None:
    """The newest checkpoint that verifies (rank 0 looks, all ranks use the same one)."""
    store = CheckpointStore(folder.checkpoints, recipe.train.keep_checkpoints)
    found = None
    if distributed.is_main():
        store.clean()
        found = store.latest(strict=strict)
        if not resume:
            refuse_existing(folder, found)
    return distributed.broadcast_object(found)


def refuse_existing(folder: RunDirectory, found: Checkpoint | None) -> None:
    if found is not None or folder.metrics.exists():
        raise UsageError(f"{folder.path} already holds a run.", hint="choose another --out, or leave out --fresh to go on with it")


def go_on(run: Run, found: Checkpoint, line: Progress, *, override: bool, accept_dataset_change: bool) -> None:
    """Load a checkpoint into the run, after the questions whether it is the same run."""
    saved = found.state()
    changes = compare_recipes(saved["recipe"], run.recipe, override=override)
    for change in changes:
        line.say(f"changed on resume: {change}")
    compare_sources(saved["data"], run.sources.describe(), accept=accept_dataset_change)
    load_state(found, run.state)
    run.step.skipped.fill_(int(run.state.counters.get("skipped", 0)))
    run.saver.saved_step = found.step
    line.say(f"resuming from step {found.step} of {run.plan.steps}")
    fault("resume.loaded")


class Session:
    """One process's part of a run: the loop, and what happens between steps."""

    def __init__(self, run: Run, line: Progress, stop: StopRequest, dog: Watchdog, resumed_from: int | None) -> None:
        self.run, self.line, self.stop, self.dog, self.resumed_from = run, line, stop, dog, resumed_from
        self.journal = Journal(run.recipe, run.folder, run.plan, run.state, run.model.config, run.device, line)
        self.measure = Measure(run, dog)
        self.reports = Reports(run.device)
        self.last_save = time.monotonic()
        self.finished = run.state.step >= run.plan.steps or self.should_stop_early()
        if distributed.is_main():
            self.journal.log.cut_after(run.state.step)
            self.write_summary("running")

    # ---- the loop

    def run_to_end(self) -> TrainResult:
        run, state = self.run, self.run.state
        if not self.finished:
            with run.feed() as feed:
                plan = self.settle_pace(feed)
                for batch in feed:  # endless: step s holds positions s B … s B + B - 1
                    outcome = run.step(batch, plan.lr(state.step))
                    state.step += 1
                    fault("step.done")
                    self.note(self.reports.push(state.step - 1, outcome, batch.index))
                    if plan.logs(state.step):
                        self.note(self.reports.drain())
                        self.journal.line()
                    if plan.evaluates(state.step):
                        self.evaluate()
                    self.dog.beat(f"step {state.step}")
                    self.between_steps(feed.quarantine)
                    if self.finished:
                        break
        return self.finish()

    def settle_pace(self, feed: TrainFeed) -> Plan:
        """Shorten the run to `train.max_minutes`, once; the length is part of every checkpoint."""
        run, minutes = self.run, self.run.recipe.train.max_minutes
        if minutes is not None and run.state.step == 0:
            steps = steps_that_fit(run, feed, self.measure, minutes, self.journal.clock.begun)
            run.plan = self.journal.plan = plan_run(run.recipe, len(run.sources.train), steps)
            run.saver.about = run.about()
            self.line.say(f"{run.plan.steps} steps fit into {minutes:g} minutes")
            self.journal.clock.lap()
        return run.plan

    def between_steps(self, quarantine: list[dict[str, Any]]) -> None:
        """Save when it is time or somebody asks; stop when asked."""
        state, plan = self.run.state, self.run.plan
        wish = distributed.agree(self.wish())
        self.finished = state.step >= plan.steps or self.should_stop_early()
        if plan.saves(state.step) or wish or self.finished:
            self.save(quarantine)
        if wish == STOP and not self.finished:
            if self.run.saver.saved_step != state.step:
                self.line.say("the disk refused the last checkpoint; the run will resume from the one before")
            self.write_summary("preempted")
            raise Preempted(
                f"stopped at step {state.step} of {plan.steps} ({self.stop.reason or 'train.stop_after_minutes'}); everything is saved.",
                hint="the same command goes on from here",
            )

    def wish(self) -> int:
        spec = self.run.recipe.train
        minutes = self.journal.clock.since_start() / 60
        if self.stop.reason or (spec.stop_after_minutes is not None and minutes >= spec.stop_after_minutes):
            return STOP
        return SAVE if spec.save_every_s is not None and time.monotonic() - self.last_save >= spec.save_every_s else 0

    def should_stop_early(self) -> bool:
        patience = self.run.recipe.train.stop_after_evals
        return patience is not None and self.run.state.counters.get("evals_since_best", 0) >= patience

    def note(self, reports: list[Report]) -> None:
        """Enter finished steps. When one ends the run, what is saved is the state before it."""
        try:
            self.journal.note(reports, self.run.sources.train)
        except NumericsError:
            state = self.run.state
            state.step = next(report.step for report in reports if report.bad)
            state.counters["skipped"] = self.run.recipe.train.skip_nonfinite
            self.save([])
            self.write_summary("not finite")
            raise

    # ---- between steps

    def evaluate(self) -> None:
        """Measure on the held-out part, with the average where there is one; keep the best model."""
        self.note(self.reports.drain())
        with self.journal.clock.paused():
            figures = self.measure(self.run.state.step)
            if figures is None:
                return
            self.journal.measured(figures, average=self.run.ema is not None)
            if self.measure.is_better(figures, self.run.state.best):
                self.run.state.best = {"step": self.run.state.step, **figures}
                self.run.state.counters["evals_since_best"] = 0
                publish(self.run, self.run.folder.best, figures)
                fault("best.saved")
            else:
                self.run.state.counters["evals_since_best"] = self.run.state.counters.get("evals_since_best", 0) + 1

    def save(self, quarantine: list[dict[str, Any]]) -> None:
        self.note(self.reports.drain())
        with self.journal.clock.paused():
            self.journal.settle()
            self.run.saver.save(self.run.state)
            self.last_save = time.monotonic()
            if distributed.is_main():
                self.write_summary("running")
                if quarantine:
                    self.run.folder.write_json("quarantine.json", {"samples": quarantine})
        self.dog.beat(f"checkpoint of step {self.run.state.step}")

    def write_summary(self, status: str) -> None:
        if distributed.is_main():
            state = self.run.state
            body = {"status": status, "step": state.step, "best": state.best, **self.journal.spent()}
            self.run.folder.write_json("run.json", {**body, **self.run.about()})

    def finish(self) -> TrainResult:
        run, state = self.run, self.run.state
        fault("finish.before")
        figures = self.measure.last or last_figures(run.folder)
        publish(run, run.folder.last, figures)
        spent = self.journal.spent()
        if distributed.is_main():
            draw_curve(run.folder.metrics, run.folder.path / "curve.png", run.recipe.name)
            self.write_summary("finished")
        return TrainResult(
            path=run.folder.path,
            steps=state.step,
            metrics=figures,
            best=state.best,
            seconds=spent["seconds"],
            device_hours=spent["device_hours"],
            exaflops=spent["exaflops"],
            images=int(spent["images"]),
            resumed_from=self.resumed_from,
            joules=spent.get("joules"),
        )


def last_figures(folder: RunDirectory) -> dict[str, Any]:
    """The last evaluation written down, for a run that was finished already."""
    if not folder.metrics.exists():
        return {}
    return next((line["eval"] for line in reversed(list(read_metrics(folder.metrics))) if "eval" in line), {})
