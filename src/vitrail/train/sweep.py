"""`sweep`: choose hyper-parameters on images held out of training, then train the choice on all of them.

    result = vitrail.sweep(load_recipe("table-4:cifar10", ["data.train=/data/cifar10"]), "runs/cifar10")
    print(result)                      every point, the winner, mean and spread over seeds, what to type next

The paper's protocol (section 4.1, appendix B.1.1): each learning rate of Table 4 is tried with a
part of the training set held out (10 % of Pets and Flowers, 2 % of CIFAR, 1 % of ImageNet); the best
one is trained on the whole training set, three times, and measured on the test set, which took no
part in the choice. Any other keys make a grid in the same way.

    out/sweep.json                  every figure so far; the same command goes on from it
    out/trials/optim.lr=0.01/       one run a point (their weights are deleted when they are measured)
    out/final/optim.lr=0.01/seed-0/ the winner on all training images
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from vitrail.config import Recipe, diff, from_dict, to_dict
from vitrail.data.source import list_splits, open_source
from vitrail.errors import NumericsError, Preempted, UsageError
from vitrail.evaluate.intervals import Interval, over_seeds, wilson
from vitrail.runtime import distributed
from vitrail.runtime.disk import write_atomic
from vitrail.runtime.lock import RunLock
from vitrail.runtime.progress import duration
from vitrail.runtime.signals import StopRequest
from vitrail.train.grid import Point, points
from vitrail.train.loop import train
from vitrail.train.measure import smaller_is_better
from vitrail.train.rundir import RunDirectory
from vitrail.train.start import UNLABELLED

__all__ = ["Splits", "SweepResult", "Trial", "splits_for", "sweep"]

DEV_PERCENT = ((20_000, 10.0), (500_000, 2.0), (None, 1.0))  # images below, part held out to choose by: the paper's three


@dataclass(frozen=True)
class Splits:
    """Which images do what. `dev` is never a part of `test`."""

    search: str  # trained on while choosing
    dev: str  # chosen by
    train: str  # trained on in the end
    test: str | None  # measured on in the end; None: as the recipe says


@dataclass(frozen=True)
class Trial:
    """One finished run: a point on the development images, or a final one on the test images."""

    point: dict[str, Any]
    name: str
    seed: int
    value: float | None  # of the metric, by the last weights; None: the run failed
    images: int
    steps: int
    seconds: float
    path: str
    failed: str = ""

    def interval(self, metric: str) -> Interval | None:
        """Of a share of images; other metrics have none."""
        if self.value is None or not metric.startswith("top"):
            return None
        return wilson(round(self.value * self.images), self.images)

    def shown(self, metric: str) -> str:
        if self.value is None:
            return f"failed: {self.failed}"
        sure = self.interval(metric)
        return sure.percent() if sure is not None else f"{metric} {self.value:.4f}"


@dataclass(frozen=True)
class SweepResult:
    """What was tried, what was chosen, and what it gives."""

    path: Path
    recipe: str
    metric: str
    splits: Splits
    trials: tuple[Trial, ...]
    best: Trial
    finals: tuple[Trial, ...]
    notes: tuple[str, ...] = ()

    @property
    def values(self) -> list[float]:
        return [trial.value for trial in self.finals if trial.value is not None]

    @property
    def mean(self) -> Interval | None:
        """Of the final runs, with Student's interval over the seeds."""
        return over_seeds(self.values) if self.values else None

    @property
    def deviation(self) -> float | None:
        """Standard deviation over the seeds."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def weights(self) -> Path | None:
        """The first final run's model."""
        return Path(self.finals[0].path) / "last.safetensors" if self.finals else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "recipe": self.recipe,
            "metric": self.metric,
            "splits": asdict(self.splits),
            "trials": [asdict(trial) for trial in self.trials],
            "best": asdict(self.best),
            "finals": [asdict(trial) for trial in self.finals],
            "mean": self.mean.to_dict() if self.mean else None,
            "deviation": self.deviation,
            "notes": list(self.notes),
            "weights": str(self.weights) if self.weights else None,
            "out": str(self.path),
        }

    def __str__(self) -> str:
        lines = [f"{len(self.trials)} points, chosen by {self.metric} on {self.splits.dev} ({self.best.images:,} images)"]
        width = max(len(trial.name) for trial in self.trials)
        for trial in self.trials:
            mark = "*" if trial == self.best else " "
            lines.append(f"{mark} {trial.name:{width}s}  {trial.shown(self.metric)}  {trial.steps:,} steps, {duration(trial.seconds)}")
        if self.finals:
            lines.append(f"{self.best.name}, trained on {self.splits.train}")
            lines += [f"  seed {trial.seed:<{max(1, width - 5)}d}  {trial.shown(self.metric)}" for trial in self.finals]
            lines.append(self._summary())
        lines += [f"note: {note}" for note in self.notes]
        lines.append(f"next  vitrail inspect {self.weights}" if self.weights else f"next  {self.path / 'sweep.json'} holds every figure")
        return "\n".join(lines)

    def _summary(self) -> str:
        share = self.metric.startswith("top")
        scale, unit = (100.0, " %") if share else (1.0, "")
        spread = f" ± {scale * self.deviation:.2f}" if self.deviation is not None else ""
        return (
            f"mean  {scale * fmean(self.values):.2f}{spread}{unit} over {len(self.values)} seeds"
            if self.values
            else "every final run failed"
        )


# ---------------------------------------------------------------- the verb


def sweep(
    recipe: Recipe,
    out: str | Path,
    *,
    grid: Mapping[str, Sequence[Any]] | None = None,
    dev_percent: float | None = None,
    seeds: int | None = None,
    keep: bool = False,
    device: str | None = None,
    progress: bool = True,
    say: Callable[[str], None] | None = None,
) -> SweepResult:
    """Try every point of the grid on held-out training images; train the best on all of them, once a seed.

    grid: recipe key -> values (default: the recipe's own `select.grid`)
    dev_percent: part of the training images to choose by (default: the recipe's, else 10, 2 or 1 by their number)
    seeds: final runs (default: the recipe's; 0 only chooses)
    keep: leave the trials' weights and checkpoints where they are
    The same call goes on where an interrupted one stopped, also with a larger grid or more seeds.
    """
    wanted = dict(grid) if grid else dict(recipe.select.grid)
    if not wanted:
        raise UsageError("There is nothing to choose between.", hint="give a key several values: optim.lr=0.003,0.01,0.03")
    recipe = replace(recipe, select=replace(recipe.select, grid={key: tuple(values) for key, values in wanted.items()}))
    with distributed.group(), ExitStack() as stack:
        book = Book(Path(out), recipe)
        if distributed.is_main():
            RunDirectory(book.path).prepare()
            stack.enter_context(RunLock(book.path))
        book.open(splits_for(recipe, recipe.select.dev_percent if dev_percent is None else dev_percent))
        stop = stack.enter_context(StopRequest())  # between runs; inside one, its own takes its place
        search = Search(book, recipe, device, progress, keep, say if distributed.is_main() else None, stop)
        return search.run(points(recipe, wanted), recipe.select.seeds if seeds is None else seeds)


def splits_for(recipe: Recipe, percent: float) -> Splits:
    """The images to search, choose, train and test with; percent 0: the data's own val split, else by the paper's rule."""
    if not recipe.data.train:
        raise UsageError(f"The recipe leaves the data to you ({recipe.data.about}).", hint="add data.train=PATH")
    if not 0 <= percent < 100:
        raise UsageError(f"--dev-percent {percent:g} must lie between 0 and 100.")
    whole, test = recipe.data.train_split, None if recipe.data.eval_split == "nothing" else recipe.data.eval_split
    have = list_splits(recipe.data.train)
    if test is None and recipe.data.eval is None:
        test = next((name for name in ("test", "val") if name in have and not whole.startswith(name)), None)
        if test is None:
            whole, test = f"{whole}[:90%]", f"{whole}[90%:]"
    if percent == 0 and "val" in have and test != "val" and not whole.startswith("val"):
        return Splits(whole, "val", whole, test)
    if percent == 0:
        examples = len(open_source(recipe.data.train, split=whole))
        percent = next(part for below, part in DEV_PERCENT if below is None or examples < below)
    rest = f"{100 - percent:g}%"
    return Splits(f"{whole}[:{rest}]", f"{whole}[{rest}:]", whole, test)


# ---------------------------------------------------------------- what is written down


@dataclass
class Book:
    """sweep.json: rank 0 writes it after every run, every rank knows what it says."""

    path: Path
    recipe: Recipe
    trials: dict[str, Trial] = field(default_factory=dict)
    finals: dict[str, Trial] = field(default_factory=dict)
    splits: Splits | None = None

    def open(self, splits: Splits) -> None:
        """Take up what an earlier call found out; refuse another recipe's."""
        saved = distributed.broadcast_object(self._read() if distributed.is_main() else None)
        self.splits = splits
        if saved is None:
            return
        changes = [change for change in diff(from_dict(saved["recipe"]), self.recipe) if change.kind != "free"]
        told = [str(change) for change in changes]
        if saved["splits"] != asdict(splits):
            told.append(f"splits: {saved['splits']} -> {asdict(splits)}")
        if told:
            raise UsageError(
                f"{self.path} holds a sweep of another recipe:\n  " + "\n  ".join(told),
                hint="choose another --out, or the recipe it began with",
            )
        self.trials = {name: Trial(**body) for name, body in saved["trials"].items()}
        self.finals = {name: Trial(**body) for name, body in saved["finals"].items()}

    def _read(self) -> dict[str, Any] | None:
        try:
            return json.loads((self.path / "sweep.json").read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UsageError(f"{self.path / 'sweep.json'} cannot be read ({error}).", hint="choose another --out") from None

    def write(self) -> None:
        if not distributed.is_main():
            return
        assert self.splits is not None
        body = {
            "recipe": to_dict(self.recipe),
            "splits": asdict(self.splits),
            "trials": {name: asdict(trial) for name, trial in self.trials.items()},
            "finals": {name: asdict(trial) for name, trial in self.finals.items()},
        }
        write_atomic(self.path / "sweep.json", (json.dumps(body, indent=1) + "\n").encode())


# ---------------------------------------------------------------- the work


@dataclass
class Search:
    book: Book
    recipe: Recipe
    device: str | None
    progress: bool
    keep: bool
    say: Callable[[str], None] | None
    stop: StopRequest

    def run(self, tried: Sequence[Point], seeds: int) -> SweepResult:
        trials = [self.trial(point, number, len(tried)) for number, point in enumerate(tried)]
        best = choose(trials, self.metric)
        winner = next(point for point in tried if point.name == best.name)
        finals = [self.final(winner, best, seed) for seed in range(seeds)]
        return SweepResult(
            self.book.path, self.recipe.name, self.metric, self.splits, tuple(trials), best, tuple(finals), notes_on(tried, best)
        )

    @property
    def splits(self) -> Splits:
        assert self.book.splits is not None
        return self.book.splits

    @property
    def metric(self) -> str:
        """What chooses: as the recipe says; objectives without labels know their loss alone."""
        return "loss" if self.recipe.objective.loss in UNLABELLED else self.recipe.eval.metric

    def trial(self, point: Point, number: int, count: int) -> Trial:
        """A point on the development images; the weights are not needed afterwards."""
        folder = self.book.path / "trials" / point.folder
        if point.name not in self.book.trials:
            self.tell(f"point {number + 1} of {count}: {point.name}")
            recipe = point.of(self.recipe)
            data = replace(recipe.data, train_split=self.splits.search, eval=None, eval_split=self.splits.dev)
            often = recipe.eval if recipe.train.stop_after_evals is not None else replace(recipe.eval, every_steps=0, every_epochs=None)
            self.book.trials[point.name] = self.measured(replace(recipe, data=data, eval=often), folder, point, recipe.train.seed)
            self.book.write()
            self.tell(f"  {self.book.trials[point.name].shown(self.metric)}")
        if not self.keep and distributed.is_main():
            tidy(folder)
        return self.book.trials[point.name]

    def final(self, point: Point, best: Trial, seed: int) -> Trial:
        """The winner on all training images. Where early stopping chose a length, that is the length: the test has no say."""
        recipe = point.of(self.recipe)
        seed += recipe.train.seed
        key, folder = f"{point.name} seed {seed}", self.book.path / "final" / point.folder / f"seed-{seed}"
        if key not in self.book.finals:
            self.tell(f"{point.name} on all of {self.splits.train}, seed {seed}")
            spec = replace(recipe.train, seed=seed)
            if spec.stop_after_evals is not None:
                spec = replace(spec, steps=best.steps, epochs=None, stop_after_evals=None)
            data = replace(recipe.data, train_split=self.splits.train, eval_split=self.splits.test)
            self.book.finals[key] = self.measured(replace(recipe, data=data, train=spec), folder, point, seed)
            self.book.write()
        return self.book.finals[key]

    def measured(self, recipe: Recipe, folder: Path, point: Point, seed: int) -> Trial:
        """Train, and keep the figure of the last weights; a run that was not finite is a result too."""
        told: dict[str, Any] = {"point": point.values, "name": point.name, "seed": seed, "path": str(folder)}
        if distributed.agree(int(self.stop.reason is not None)):
            raise Preempted(
                f"stopped before {point.name}; what is finished is in {self.book.path}.", hint="the same command goes on from here"
            )
        try:
            result = train(recipe, folder, device=self.device, progress=self.progress)
        except NumericsError as error:
            return Trial(**told, value=None, images=0, steps=0, seconds=0.0, failed=error.message.partition(";")[0])
        figures = result.metrics
        if self.metric not in figures:
            raise UsageError(f"eval.metric={self.metric!r} was not measured.", hint=f"one of {', '.join(figures) or 'no figure'}")
        return Trial(**told, value=float(figures[self.metric]), images=int(figures["images"]), steps=result.steps, seconds=result.seconds)

    def tell(self, text: str) -> None:
        if self.say is not None:
            self.say(text)


def choose(trials: Sequence[Trial], metric: str) -> Trial:
    """The best figure; of equal ones the first."""
    finished = [trial for trial in trials if trial.value is not None]
    if not finished:
        raise NumericsError(
            f"None of {len(trials)} points gave a finite loss ({trials[0].failed}).", hint="lower rates, or optim.clip_norm=1"
        )
    sign = -1.0 if smaller_is_better(metric) else 1.0
    return max(finished, key=lambda trial: sign * (trial.value or 0.0))


def notes_on(tried: Sequence[Point], best: Trial) -> tuple[str, ...]:
    """A winner at the end of its axis says that the axis was too short."""
    notes = []
    for key, value in best.point.items():
        axis = sorted({point.values[key] for point in tried if isinstance(point.values[key], int | float)})
        if len(axis) > 2 and value in (axis[0], axis[-1]):
            notes.append(f"the best {key} is the {'smallest' if value == axis[0] else 'largest'} of the grid: try further")
    return tuple(notes)


def tidy(folder: Path) -> None:
    """Leave a trial's curve, lines and run.json."""
    shutil.rmtree(folder / "checkpoints", ignore_errors=True)
    for name in ("best.safetensors", "last.safetensors"):
        (folder / name).unlink(missing_ok=True)
