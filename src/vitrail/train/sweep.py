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

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from vitrail.config import Recipe
from vitrail.data.source import list_splits, open_source
from vitrail.errors import NumericsError, Preempted, UsageError
from vitrail.runtime import distributed
from vitrail.runtime.lock import RunLock
from vitrail.runtime.signals import StopRequest
from vitrail.train.grid import Point, points
from vitrail.train.loop import train
from vitrail.train.measure import smaller_is_better
from vitrail.train.rundir import RunDirectory
from vitrail.train.start import UNLABELLED
from vitrail.train.trials import Book, Splits, SweepResult, Trial

__all__ = ["splits_for", "sweep"]

DEV_PERCENT = ((20_000, 10.0), (500_000, 2.0), (None, 1.0))  # images below, part held out to choose by: the paper's three


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
