"""The score of VTAB-1k: the unweighted mean of top-1 over its 19 tasks, and over each of its three groups.

A mean over all tasks exists only where all were measured; a task whose data are absent is listed
with the reason. `linear_task` measures one task with a linear classifier on frozen features;
fine-tuning, as the paper does it, is `train.vtab`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Any
from urllib.parse import urlencode

from vitrail.data.source import Source, open_source
from vitrail.data.tfrecord import find_prepared
from vitrail.data.vtab import GROUPS, TASKS, Task, Vtab, tfds_root
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.features import Frozen
from vitrail.evaluate.intervals import Interval, over_seeds, wilson
from vitrail.evaluate.probe import Probe, linear_probe
from vitrail.runtime.progress import duration

__all__ = ["TaskRun", "VtabScore", "address_of", "find_data", "linear_task"]


@dataclass(frozen=True)
class TaskRun:
    """One task, trained with one seed and measured on its whole test split."""

    task: str
    seed: int
    right: int
    images: int
    unreadable: int
    official: bool  # the official split of VTAB-1k, in its order
    how: str
    seconds: float
    exaflops: float
    notes: tuple[str, ...] = ()

    @property
    def top1(self) -> Interval:
        return wilson(self.right, self.images)

    def to_dict(self) -> dict[str, Any]:
        return {
            "task": self.task,
            "seed": self.seed,
            "right": self.right,
            "images": self.images,
            "unreadable": self.unreadable,
            "official": self.official,
            "how": self.how,
            "seconds": self.seconds,
            "exaflops": self.exaflops,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, body: Mapping[str, Any]) -> TaskRun:
        return cls(**{**body, "notes": tuple(body["notes"])})


@dataclass(frozen=True)
class VtabScore:
    """All runs, and what was not measured and why."""

    model: str
    how: str
    runs: tuple[TaskRun, ...]
    absent: Mapping[str, str]  # task -> reason
    out: str | None = None

    @property
    def seeds(self) -> list[int]:
        return sorted({run.seed for run in self.runs})

    def of(self, task: str) -> list[TaskRun]:
        return [run for run in self.runs if run.task == task]

    def accuracy(self, task: str) -> Interval | None:
        """Over the test images for one seed, over the seeds for several; None: not measured."""
        found = self.of(task)
        if len(found) < 2:
            return found[0].top1 if found else None
        return over_seeds([run.top1.value for run in found])

    def measured(self, group: str | None = None) -> list[Task]:
        """The tasks (of a group) that every seed measured."""
        complete = {task.name for task in TASKS if self.seeds and [run.seed for run in self.of(task.name)] == self.seeds}
        return [task for task in TASKS if task.name in complete and group in (None, task.group)]

    def mean(self, group: str | None = None) -> Interval | None:
        """The mean over all tasks (of a group); None where one of them was not measured."""
        tasks = [task for task in TASKS if group in (None, task.group)]
        return self._mean(tasks) if tasks == self.measured(group) else None

    def partial(self) -> Interval | None:
        """The mean over the tasks that were measured, however few; not a VTAB score."""
        tasks = self.measured()
        return self._mean(tasks) if tasks else None

    def _mean(self, tasks: Sequence[Task]) -> Interval:
        """Over the seeds; for one seed, over the test images, the tasks taken as independent."""
        value = {(run.task, run.seed): run for run in self.runs}
        means = [fmean(value[task.name, seed].top1.value for task in tasks) for seed in self.seeds]
        if len(means) > 1:
            return over_seeds(means)
        runs = [value[task.name, self.seeds[0]] for task in tasks]
        variance = sum(run.top1.value * (1 - run.top1.value) / run.images for run in runs) / len(runs) ** 2
        half = NormalDist().inv_cdf(0.975) * math.sqrt(variance)
        return Interval(means[0], max(0.0, means[0] - half), min(1.0, means[0] + half), how=f"normal, test images of {len(runs)} tasks")

    @property
    def deviation(self) -> float | None:
        """Standard deviation of the mean over the seeds, as the paper's ±."""
        tasks = self.measured()
        if len(self.seeds) < 2 or not tasks:
            return None
        value = {(run.task, run.seed): run.top1.value for run in self.runs}
        return stdev(fmean(value[task.name, seed] for task in tasks) for seed in self.seeds)

    @property
    def official(self) -> bool:
        return all(run.official for run in self.runs)

    def to_dict(self) -> dict[str, Any]:
        told = lambda interval: interval.to_dict() if interval is not None else None
        return {
            "model": self.model,
            "how": self.how,
            "mean": told(self.mean()),
            "deviation": self.deviation,
            "groups": {group: told(self.mean(group)) for group in GROUPS},
            "partial_mean": told(self.partial()),
            "tasks_measured": len(self.measured()),
            "tasks_in_all": len(TASKS),
            "official": self.official,
            "absent": dict(self.absent),
            "tasks": {task.name: told(self.accuracy(task.name)) for task in TASKS if self.of(task.name)},
            "runs": [run.to_dict() for run in self.runs],
            "cost": {"seconds": sum(run.seconds for run in self.runs), "exaflops": sum(run.exaflops for run in self.runs)},
            "out": self.out,
        }

    def __str__(self) -> str:
        lines = [f"VTAB-1k of {self.model}, {self.how}"]
        for group in GROUPS:
            lines.append(group)
            for task in (task for task in TASKS if task.group == group):
                lines.append(self._line(task))
            mean = self.mean(group)
            shown = mean.percent() if mean is not None else f"needs all {sum(task.group == group for task in TASKS)} tasks"
            lines.append(f"  {'mean':22s}{shown}")
        whole, some = self.mean(), self.partial()
        if whole is not None:
            lines.append(f"{'mean of 19 tasks':24s}{whole.percent()}" + (f", ± {100 * self.deviation:.2f}" if self.deviation else ""))
        elif some is not None:
            lines.append(
                f"{'not a VTAB score':24s}{some.percent()} is the mean over the {len(self.measured())} of 19 tasks that were measured"
            )
        if not self.official:
            lines.append("note  some tasks were not measured on the official split: not comparable with published scores")
        lines += [f"note  {note}" for note in dict.fromkeys(note for run in self.runs for note in run.notes)]
        seconds, exaflops = sum(run.seconds for run in self.runs), sum(run.exaflops for run in self.runs)
        return "\n".join([*lines, f"cost  {duration(seconds)}, {exaflops:.3g} exaFLOPs"])

    def _line(self, task: Task) -> str:
        accuracy = self.accuracy(task.name)
        if accuracy is None:
            return f"  {task.name:22s}absent: {self.absent.get(task.name, 'not asked for')}"
        found = self.of(task.name)
        bad = sum(run.unreadable for run in found)
        seeds = f", {len(found)} seeds" if len(found) > 1 else ""
        unread = f"; {bad:,} more unreadable" if bad else ""
        return f"  {task.name:22s}{accuracy.percent()}  of {found[0].images:,}{seeds}{unread}"


# ---------------------------------------------------------------- data


def address_of(task: Task, root: str | None = None, elsewhere: str | None = None, ids: str | None = None) -> str:
    """The address of a task's data."""
    named = {"root": root, "from": elsewhere, "ids": ids} if elsewhere else {"root": root}
    query = urlencode({key: value for key, value in named.items() if value}, safe="/:~")
    return f"vtab:{task.name}" + (f"?{query}" if query else "")


def find_data(tasks: Sequence[Task], addresses: Mapping[str, str], asked: bool) -> tuple[list[Task], dict[str, str]]:
    """(tasks whose data are here, task -> why not). A task that was asked for by name has to be here."""
    here, absent = [], {}
    for task in tasks:
        try:
            open_source(addresses[task.name], split="train")
            _look_for_test(addresses[task.name])
            here.append(task)
        except DataError as error:
            if asked:
                raise
            absent[task.name] = error.message
    if not here:
        telling = next((reason for reason in absent.values() if "holds no" not in reason), next(iter(absent.values())))
        raise DataError(
            f"none of the {len(tasks)} tasks has its data here: {telling}",
            hint="--root names the folder of TFDS (default: TFDS_DATA_DIR, else ~/tensorflow_datasets); --from TASK=ADDRESS another copy",
        )
    return here, absent


def _look_for_test(address: str) -> None:
    """All files of the test split have to be there before hours are spent; they are read when they are needed."""
    reader = Vtab(address)
    if "from" in reader.query:
        open_source(address, split="test")
    else:
        find_prepared(tfds_root(reader.query.get("root")), reader.task.dataset, reader.task.major).shards(reader.task.test[0])


# ---------------------------------------------------------------- frozen features


def linear_task(frozen: Frozen, task: Task, *, method: str, seed: int, device: str | None) -> tuple[Probe, Source]:
    """A linear classifier chosen on val200, fitted on the 1,000 training images, measured on the test split."""
    if frozen.data is None:
        raise UsageError("a task needs its address.")
    train, dev, test = (open_source(frozen.data, split=split) for split in ("train800", "val200", "test"))
    features = [frozen.features(source) for source in (train, dev, test)]
    return linear_probe(features[0], features[2], dev=features[1], method=method, seed=seed, device=device, name=frozen.name), test
