"""`vtab`: weights in, the VTAB-1k score out, by the paper's protocol.

    result = vitrail.vtab("B16.npz", root="/data/tensorflow_datasets")
    print(result)                      19 tasks, three groups, the mean; what is absent and why

Every task is fine-tuned on its 1,000 training images with one setting (Table 4: SGD, rate 0.01,
2,500 steps of 512, cosine) and measured once on its whole test split. Images are prepared as BiT
does: squashed to 7/6 of the size, cropped at random and flipped; not cropped or not flipped where
the label speaks of place or direction. linear=True fits a linear classifier on frozen features.

    out/vtab.json               every finished run; the same call goes on from it
    out/cifar100/seed-0/        the fine-tuning (its weights are deleted when it is measured)
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from vitrail.config import Recipe, load_recipe, override
from vitrail.data.vtab import TASKS, Task, find_task
from vitrail.errors import Preempted, UsageError
from vitrail.evaluate.classify import evaluate
from vitrail.evaluate.features import Frozen
from vitrail.evaluate.parts import weights_fingerprint
from vitrail.evaluate.vtab import TaskRun, VtabScore, address_of, find_data, linear_task
from vitrail.runtime import distributed
from vitrail.runtime.disk import write_atomic
from vitrail.runtime.lock import RunLock
from vitrail.runtime.signals import StopRequest
from vitrail.train.loop import train
from vitrail.train.rundir import RunDirectory
from vitrail.train.sweep import tidy
from vitrail.weights.load import load_model

__all__ = ["recipe_for", "vtab"]

LINEAR = {"lbfgs": "logistic regression on frozen features", "ridge": "closed-form least squares on frozen features"}


def vtab(
    model: str,
    *,
    root: str | None = None,
    out: str | Path | None = None,
    tasks: Sequence[str] = (),
    elsewhere: Mapping[str, str] | None = None,
    ids: Mapping[str, str] | None = None,
    seeds: Sequence[int] = (0,),
    linear: bool = False,
    dev: bool = False,
    method: str = "ridge",
    image_size: int | None = None,
    overrides: Iterable[str] = (),
    keep: bool = False,
    device: str | None = None,
    progress: bool = True,
    say: Callable[[str], None] | None = None,
    **options: Any,
) -> VtabScore:
    """Measure weights on VTAB-1k.

    root: the folder of TFDS (default: TFDS_DATA_DIR, else ~/tensorflow_datasets).
    tasks: only these; by default all 19, of which those without data are listed.
    elsewhere: task -> address of another copy of its data; ids: task -> JSON file of the official ids in it.
    seeds: one fine-tuning of every task each (the paper: three).
    linear: frozen features and a linear classifier (`method`: "ridge" or "lbfgs"; options: those of
        `extract_features`) instead of fine-tuning.
    dev: train on train800 and measure on val200, to choose a setting (`overrides`) without the test images.
    image_size: pixels; default: 12/7 of the pre-training's (224 -> 384) where that was 160 to 320, else the same.
    overrides: recipe keys over the protocol, "train.steps=500"; the result says so.
    The same call goes on where an interrupted one stopped.
    """
    chosen = [find_task(name) for name in tasks] or list(TASKS)
    addresses = {
        task.name: address_of(task, root, _named(elsewhere).get(task.name), _named(ids).get(task.name)) for task in chosen
    }  # fmt: skip
    here, absent = find_data(chosen, addresses, asked=bool(tasks))
    changes = tuple(overrides)
    if linear and changes:
        raise UsageError("a linear classifier on frozen features has no recipe.", hint="leave out " + " ".join(changes))
    if linear and dev:
        raise UsageError("a linear classifier chooses its regulariser on val200 by itself.", hint="leave out --dev")
    how = LINEAR[method] if linear else "fine-tuned as in Table 4" + (f", but {' '.join(changes)}" if changes else "")
    how += "; trained on train800, measured on val200: no test image" if dev else ""
    where = Path(out) if out is not None else Path("runs") / f"vtab-{short_name(model)}{'-linear' if linear else '-dev' if dev else ''}"
    with distributed.group(), ExitStack() as stack:
        if distributed.is_main():
            RunDirectory(where).prepare()
            stack.enter_context(RunLock(where))
        loaded = load_model(model, image_size=image_size if linear else None)
        about = {"model": model, "weights": weights_fingerprint(loaded), "how": how, "image_size": image_size, "data": addresses}
        book = Book(where, about)
        book.open()
        stop = stack.enter_context(StopRequest())
        bench = Bench(
            model, loaded, addresses, book, image_size, changes, dev, keep, device, progress, say if distributed.is_main() else None, stop
        )
        for task in here:
            for seed in seeds[:1] if linear else seeds:  # nothing is drawn in a linear fit
                bench.linear(task, seed, method, options) if linear else bench.finetuned(task, seed)
    kept = [book.runs[name] for name in book.runs if book.runs[name].task in addresses]
    order = {task.name: k for k, task in enumerate(TASKS)}
    runs = tuple(sorted(kept, key=lambda run: (order[run.task], run.seed)))
    return VtabScore(model, how, runs, absent, str(where))


def short_name(weights: str) -> str:
    """B16.npz -> B16, runs/photos/best.safetensors -> photos."""
    path = Path(weights)
    return path.resolve().parent.name if path.stem in ("best", "last", "model") else path.stem


def _named(table: Mapping[str, str] | None) -> dict[str, str]:
    """Keys as the tasks' own names."""
    return {find_task(name).name: value for name, value in (table or {}).items()}


def recipe_for(task: Task, weights: str, config: Any, view: Any, address: str, image_size: int | None, seed: int) -> Recipe:
    """The paper's setting for one task, for weights of this architecture (`config`) and view."""
    rows, columns = (image_size, image_size) if image_size else paper_size(config)
    base = load_recipe("table-4:vtab")
    data = replace(
        base.data,
        about=f"VTAB-1k: {task.name}",
        train=address,
        train_split="train",
        eval_split="nothing",
        crop="resize_crop" if task.crop else "resize",
        crop_resize=round(max(rows, columns) * 448 / 384) if task.crop else None,
        crop_squash=True,
        interpolation=view.interpolation,
        antialias=view.antialias,
        eval_mode="squash",
        eval_interpolation=view.interpolation,
        eval_antialias=view.antialias,
        mean=tuple(view.mean),
        std=tuple(view.std),
    )
    return replace(
        base,
        name=f"vtab-{task.name}",
        model=replace(base.model, name="", image_size=(rows, columns), weights=weights, new_head=True),
        data=data,
        augment=replace(base.augment, flip=0.5 if task.flip else 0.0),
        train=replace(base.train, seed=seed, keep_checkpoints=1),
    )


def paper_size(config: Any) -> tuple[int, int]:
    """224 -> 384, as the paper transfers; a model of small or of already large images keeps its size."""
    rows, columns = config.image_size
    if not 160 <= rows <= 320:
        return rows, columns
    stride = rows // config.grid[0] if hasattr(config, "grid") else 32
    return round(rows * 12 / 7 / stride) * stride, round(columns * 12 / 7 / stride) * stride


@dataclass
class Book:
    """vtab.json: rank 0 writes it after every run, every rank knows what it says."""

    path: Path
    about: dict[str, Any]
    runs: dict[str, TaskRun] = field(default_factory=dict)

    def open(self) -> None:
        saved = distributed.broadcast_object(self._read() if distributed.is_main() else None)
        if saved is None:
            return
        before = saved["about"]
        told = [
            f"{key}: {before.get(key)} -> {self.about[key]}"
            for key in ("weights", "how", "image_size")
            if before.get(key) != self.about[key]
        ]
        known, now = before["data"], self.about["data"]
        told += [f"{task}: {known[task]} -> {now[task]}" for task in now if task in known and known[task] != now[task]]
        if told:
            raise UsageError(f"{self.path} holds other runs:\n  " + "\n  ".join(told), hint="choose another --out")
        self.about["data"] = {**known, **now}
        self.runs = {name: TaskRun.from_dict(body) for name, body in saved["runs"].items()}

    def _read(self) -> dict[str, Any] | None:
        try:
            body: dict[str, Any] = json.loads((self.path / "vtab.json").read_text("utf-8"))
        except FileNotFoundError:
            return None
        except ValueError as error:
            raise UsageError(f"{self.path / 'vtab.json'} cannot be read ({error}).", hint="choose another --out") from None
        return body

    def enter(self, run: TaskRun) -> None:
        self.runs[f"{run.task} seed {run.seed}"] = run
        if distributed.is_main():
            body = {"about": self.about, "runs": {name: one.to_dict() for name, one in self.runs.items()}}
            write_atomic(self.path / "vtab.json", (json.dumps(body, indent=1) + "\n").encode())


@dataclass
class Bench:
    """One model on one task after the other."""

    name: str  # of the weights
    model: Any
    addresses: Mapping[str, str]
    book: Book
    image_size: int | None
    changes: tuple[str, ...]
    dev: bool
    keep: bool
    device: str | None
    progress: bool
    say: Callable[[str], None] | None
    stop: StopRequest

    def finetuned(self, task: Task, seed: int) -> None:
        folder = self.book.path / task.name / f"seed-{seed}"
        if f"{task.name} seed {seed}" not in self.book.runs:
            self.between(task)
            view = self.model.card.transform()
            recipe = recipe_for(task, self.name, self.model.config, view, self.addresses[task.name], self.image_size, seed)
            train_split, test_split = ("train800", "val200") if self.dev else ("train", "test")
            recipe = override(replace(recipe, data=replace(recipe.data, train_split=train_split)), self.changes)
            self.tell(f"{task.name}, seed {seed}: {recipe.total_steps()} steps at {recipe.model.image_size} pixels")
            trained = train(recipe, folder, device=self.device, progress=self.progress)
            found = evaluate(
                str(folder / "last.safetensors"), self.addresses[task.name], split=test_split, device=self.device, bootstrap=0,
                cache=folder / "kept", progress=self.progress,
            )  # fmt: skip
            cost = trained.exaflops + found.spent.flops / 1e18
            right = found.counts.top1
            how = f"{recipe.total_steps()} steps of {recipe.train.batch_size}, {recipe.model.image_size}"
            self.enter(task, seed, right, found.images, found.unreadable, found.notes, how, trained.seconds + found.seconds, cost)
        if not self.keep and distributed.is_main():
            tidy(folder)

    def linear(self, task: Task, seed: int, method: str, options: dict[str, Any]) -> None:
        if f"{task.name} seed {seed}" in self.book.runs:
            return
        self.between(task)
        frozen = Frozen(self.model, self.name, self.addresses[task.name], {**options, "device": self.device, "progress": self.progress})
        found, test = linear_task(frozen, task, method=method, seed=seed, device=self.device)
        right, spent = round(found.top1.value * found.test_images), frozen.spent()
        how, unread = f"{method}, l2 {found.l2:g}", len(test) - found.test_images
        self.enter(task, seed, right, found.test_images, unread, found.notes, how, spent.seconds, spent.flops / 1e18)

    def enter(
        self, task: Task, seed: int, right: int, images: int, unreadable: int, notes: Sequence[str], how: str, seconds: float, cost: float
    ) -> None:
        official = not any("not the official split" in note for note in notes)
        run = TaskRun(task.name, seed, right, images, unreadable, official, how, round(seconds, 3), cost, tuple(notes))
        self.book.enter(run)
        self.tell(f"  {task.name}: {run.top1.percent()} of {images:,} images")

    def between(self, task: Task) -> None:
        if distributed.agree(int(self.stop.reason is not None)):
            raise Preempted(
                f"stopped before {task.name}; what is finished is in {self.book.path}.", hint="the same command goes on from here"
            )

    def tell(self, text: str) -> None:
        if self.say is not None:
            self.say(text)
