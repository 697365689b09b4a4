"""The data of a run: which sources, in which view, as batches on the device.

sources = open_sources(recipe.data)
feed = TrainFeed(sources, recipe, view, device)       # step s gives positions s B … s B + B - 1, on the device
held = HeldFeed(sources, preprocess, recipe, device)  # for `score`, as often as wanted
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from vitrail.config import DataSpec, Recipe
from vitrail.data.batch import Batch
from vitrail.data.classes import require_same_classes
from vitrail.data.crop import TrainView
from vitrail.data.loader import EvalStream, TrainStream
from vitrail.data.resident import ResidentStream
from vitrail.data.source import Source, list_splits, open_source
from vitrail.data.transform import Preprocess
from vitrail.errors import UsageError
from vitrail.runtime import distributed
from vitrail.runtime.faults import fault
from vitrail.train.step import cut

__all__ = ["HeldFeed", "Sources", "TrainFeed", "open_sources"]

HELD_BYTES = 1 << 30  # held-out pictures that are kept on the device after the first evaluation
RESIDENT_SHARE = 0.15  # of a GPU's memory that the training pictures may take without being asked


@dataclass(frozen=True)
class Sources:
    """What is trained on and what is measured on."""

    train: Source
    held: Source | None

    def describe(self) -> dict[str, Any]:
        """For run.json and the checkpoints."""
        held = None if self.held is None else {"name": self.held.name, "split": self.held.split, "examples": len(self.held)}
        return {
            "name": self.train.name,
            "split": self.train.split,
            "examples": len(self.train),
            "fingerprint": self.train.fingerprint,
            "classes": list(self.train.classes),
            "notes": list(self.train.notes),
            "held_out": held,
        }


def open_sources(spec: DataSpec) -> Sources:
    """The training source, and the one to measure on: as the recipe says, else validation, test, or a part held out."""
    if not spec.train:
        what = f" ({spec.about})" if spec.about else ""
        raise UsageError(f"The recipe leaves the data to you{what}.", hint="add data.train=PATH, or try data.train=builtin:fashion")
    train_split, held_split = spec.train_split, spec.eval_split
    where = spec.eval if spec.eval is not None else spec.train
    if held_split is None:
        train_split, held_split = held_out(spec.train, train_split, list_splits(where), spec.eval is not None)
    train = open_source(spec.train, split=train_split)
    held = open_source(where, split=held_split) if held_split != "nothing" else None
    if held is not None:
        require_same_classes(train.classes, held.classes, f"{train.name} ({train_split})", f"{held.name} ({held_split})")
    return Sources(train, held)


def held_out(where: str, train_split: str, splits: tuple[str, ...], elsewhere: bool) -> tuple[str, str | None]:
    """(training split, split to measure on) when the recipe names none to measure on."""
    if elsewhere:
        return train_split, next((name for name in ("val", "validation", "test") if name in splits), splits[0] if splits else None)
    head, mark, bound = train_split.partition("[:")
    if mark and bound.endswith("]") and ":" not in bound and "+" not in train_split:
        return train_split, f"{head}[{bound[:-1]}:]"  # train[:99%] leaves train[99%:]
    for name in ("val", "validation", "test"):
        if name in splits and name not in train_split:
            return train_split, name
    return f"{train_split}[:90%]", f"{train_split}[90%:]"


# ---------------------------------------------------------------- training


Prepare = Callable[[Batch, int], list[list[tuple[torch.Tensor, torch.Tensor]]]]


class TrainFeed:
    """Batches on the device, from a given step on; a context manager."""

    def __init__(
        self,
        sources: Sources,
        recipe: Recipe,
        view: TrainView,
        device: torch.device,
        start_step: int = 0,
        prepare: Prepare | None = None,  # a batch's augmented pieces; with it, on a GPU, they are made ahead
    ) -> None:
        spec = recipe.data
        self.view, self.prepare = view, prepare
        self._ahead: Ahead | None = None
        options: dict[str, Any] = {
            "batch_size": recipe.train.batch_size,
            "seed": recipe.train.seed,
            "rank": distributed.rank(),
            "world": distributed.world(),
            "start_step": start_step,
            "repeats": spec.repeats,
            "balanced": spec.sampling == "balanced",
        }
        self.device = device
        self.resident = is_resident(sources.train, view, spec.resident, device)
        if self.resident:
            self._stream: Any = ResidentStream(sources.train, view, device=device, **options)
        else:
            stall: dict[str, Any] = {"stall_timeout_s": recipe.train.stall_timeout_s} if recipe.train.stall_timeout_s > 0 else {}
            self._stream = TrainStream(sources.train, view, workers=spec.workers, **options, **stall)

    def __iter__(self) -> Iterator[Batch]:
        batches: Iterator[Batch] = iter(self._stream)
        if self.device.type == "cuda" and self.prepare is not None:
            rows, columns = self.view.image_size
            batches = self._ahead = Ahead(self._stream, self.device, self.prepare, rows * columns)
        while True:
            fault("data.wait")
            batch = next(batches)
            fault("data.got")
            yield batch

    def rewind(self, step: int) -> None:
        """The next iterator begins with the batch of `step`."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None
        self._stream.seek(step)

    @property
    def quarantine(self) -> list[dict[str, Any]]:
        return self._stream.quarantine

    def __enter__(self) -> TrainFeed:
        return self

    def __exit__(self, *error: object) -> None:
        if self._ahead is not None:
            self._ahead.close()
        self._stream.close()


def is_resident(source: Source, view: TrainView, asked: bool | None, device: torch.device) -> bool:
    """Whether the whole set is held on the device as pixels: as asked, else on a GPU with room for it."""
    if asked is not None:
        return asked
    if device.type != "cuda":
        return False
    room = int(RESIDENT_SHARE * torch.cuda.get_device_properties(device).total_memory)
    return ResidentStream.fits(source, view, room)


class Ahead:
    """The next batches, on the device and augmented, made by a thread and a CUDA stream of their own.

    A resident stream gives several steps at once: the host's work on small pictures is mostly
    the number of calls, not the number of pictures.
    """

    def __init__(self, stream: Any, device: torch.device, prepare: Prepare, pixels: int) -> None:
        self._source, self._device, self._prepare = stream, device, prepare
        share = stream.layout.share if isinstance(stream, ResidentStream) else 0
        self._together = max(1, min(TOGETHER, AHEAD_BYTES // (12 * pixels * share))) if share else 1
        self._queue: queue.Queue[tuple[Batch, torch.cuda.Event] | BaseException] = queue.Queue(max(2, self._together))
        self._stream = torch.cuda.Stream(device)
        self._stream.wait_stream(torch.cuda.current_stream(device))  # what the batches are cut from is there
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, name="vitrail-feed", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """End the thread, which may be waiting for room in the queue."""
        self._closed.set()
        while self._thread.is_alive():
            with contextlib.suppress(queue.Empty):
                self._queue.get_nowait()
            self._thread.join(0.01)

    def _run(self) -> None:
        try:
            with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
                while not self._closed.is_set():
                    batch = self._moved()
                    ready = self._prepare(batch, self._together)
                    event = torch.cuda.Event()
                    event.record()
                    share = len(batch) // self._together
                    for number, pieces in enumerate(ready):
                        self._queue.put((replace(cut(batch, number * share, (number + 1) * share), ready=pieces), event))
        except BaseException as error:  # carried to the thread that asked
            self._queue.put(error)

    def _moved(self) -> Batch:
        if isinstance(self._source, ResidentStream):
            return self._source.several(self._together)
        batch: Batch = next(self._source)
        host = {name: getattr(batch, name).pin_memory() for name in TENSORS}
        return replace(batch, **{name: t.to(self._device, non_blocking=True) for name, t in host.items()})

    def __iter__(self) -> Ahead:
        return self

    def __next__(self) -> Batch:
        item = self._queue.get()
        if isinstance(item, BaseException):
            raise item
        batch, event = item
        now = torch.cuda.current_stream(self._device)
        now.wait_event(event)
        held = [getattr(batch, name) for name in TENSORS] + [tensor for pair in batch.ready or () for tensor in pair]
        for tensor in held:
            tensor.record_stream(now)
        return batch


TOGETHER, AHEAD_BYTES = 4, 1 << 30  # steps made at once, and the memory their pictures may take
TENSORS = ("images", "labels", "index", "position", "valid")


# ---------------------------------------------------------------- measuring


class HeldFeed:
    """The held-out pictures, decoded once and kept when they are few; each rank has its share, none twice."""

    def __init__(self, source: Source, preprocess: Preprocess, recipe: Recipe, device: torch.device, batch_size: int) -> None:
        self.preprocess = preprocess
        self.source = source
        self._options: dict[str, Any] = {
            "batch_size": batch_size,
            "rank": distributed.rank(),
            "world": distributed.world(),
            "workers": recipe.data.workers,
        }
        self._device = device
        rows, columns = preprocess.image_size
        self._keeps = len(source) * rows * columns * preprocess.channels <= HELD_BYTES
        self._kept: list[Batch] | None = None
        self.quarantine: list[dict[str, Any]] = []

    def __iter__(self) -> Iterator[Batch]:
        if self._kept is not None:
            yield from self._kept
            return
        kept = []
        stream = EvalStream(self.source, self.preprocess, **self._options)
        try:
            for batch in stream:
                moved = replace(batch, **{name: getattr(batch, name).to(self._device) for name in TENSORS})
                if self._keeps:  # on a CPU the stream lends its own memory
                    moved = replace(moved, images=moved.images.clone()) if moved.images is batch.images else moved
                    kept.append(moved)
                yield moved
            self.quarantine = list(stream.quarantine)
        finally:
            close = getattr(stream, "close", None)
            if close is not None:
                close()
        if self._keeps:
            self._kept = kept
