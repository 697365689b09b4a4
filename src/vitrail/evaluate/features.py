"""`extract_features`: what the head reads (y of eq. 4, after pre_logits), for every image of a source, kept on disk.

    train = extract_features(model, open_source("photos/", "train"))       (N, D) float32, a memory map
    train.labels, train.index                                               class and number of each row

The folder is named by a hash of the weights as they are, the data's fingerprint, the view and
the precision, so stale features are never found. An interrupted extraction goes on where it
stopped; under torchrun the ranks share it. Few-shot, k-NN and probe all start here.
"""

from __future__ import annotations

import dataclasses
import io
import os
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.loader import EvalStream, Labels
from vitrail.data.source import Source, list_splits, open_source
from vitrail.data.split import Part
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, UsageError, nearest
from vitrail.evaluate.parts import Parts, weights_fingerprint
from vitrail.evaluate.score import evaluating, precision_for, resolved
from vitrail.evaluate.spent import Meter, Spent
from vitrail.runtime import distributed
from vitrail.runtime.device import pick_device
from vitrail.runtime.disk import fsync_directory, write_atomic
from vitrail.runtime.progress import Progress, duration

__all__ = ["Features", "Frozen", "exact_device", "extract_features", "view_of"]

VIEWS = ("eval", "paper")


@dataclass(frozen=True, eq=False)
class Features:
    """One row an image that could be read."""

    features: np.ndarray  # (N, D) float32
    labels: np.ndarray  # (N,) int64, -1: none; or (N, K) float32 multi-hot
    index: np.ndarray  # (N,) the image's number in the source
    classes: tuple[str, ...] = ()
    source: str = ""
    split: str | None = None
    notes: tuple[str, ...] = ()
    unreadable: tuple[str, ...] = ()
    asked: int = 0  # images that went through the model now, over all ranks; the others were kept

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, chosen: np.ndarray) -> Features:
        return dataclasses.replace(self, features=self.features[chosen], labels=self.labels[chosen], index=self.index[chosen])

    def labelled(self) -> Features:
        """Without the images that have no label; several labels an image are refused."""
        if self.labels.ndim != 1:
            raise DataError(f"{self.source}: images have several labels; this protocol needs one.")
        known = self.labels >= 0
        return self if known.all() else self.rows(known)


def view_of(view: str | Preprocess, preprocess: Preprocess) -> Preprocess:
    """ "eval": as the weights want it; "paper": squash to 8/7 of the size and crop the centre (big_vision's few-shot view)."""
    if isinstance(view, Preprocess):
        return view
    if view not in VIEWS:
        raise UsageError(f"no view is called {view!r}{nearest(view, VIEWS)}.")
    if view == "eval":
        return preprocess
    resize = round(max(preprocess.image_size) * 256 / 224)
    return dataclasses.replace(
        preprocess, mode="bit", resize=resize, interpolation="bilinear", antialias=False, rounding="truncate"
    )  # fmt: skip


def extract_features(
    model: nn.Module,
    source: Source,
    *,
    view: str | Preprocess = "eval",
    batch_size: int | None = None,
    precision: str = "auto",
    device: str | None = None,
    workers: int | None = None,
    cache: str | Path | bool = True,
    fingerprint: str | None = None,
    progress: bool = False,
) -> Features:
    """The features of every readable image. cache: True: Vitrail's cache folder; a path; False: memory only.

    fingerprint: of the weights, where the caller computed it already (`parts.weights_fingerprint`).
    """
    preprocess = view_of(view, model.card.transform())  # type: ignore[union-attr, operator]
    place = pick_device(device)
    with distributed.group():
        parts, done = _plan(model, source, preprocess, precision, place, cache, fingerprint)
        asked = 0
        if done is None:
            batch = batch_size or (256 if place.type == "cuda" else 32)
            with Progress(quiet=not progress or not distributed.is_main()) as line:
                asked = _compute(parts, model.to(place), preprocess, place, precision, batch, workers, line)
            asked = sum(distributed.gather_objects(asked))
            done = _finish(parts)
    index, features = done
    lost = np.setdiff1d(np.arange(len(source)), index)
    return Features(
        features, Labels(source)(index).numpy(), index, tuple(source.classes), source.name, source.split,
        tuple(source.notes), tuple(source.id(int(i)) for i in lost), asked,
    )  # fmt: skip


Found = tuple[np.ndarray, np.ndarray]


def _plan(
    model: Any, source: Source, view: Preprocess, precision: str, place: torch.device, cache: str | Path | bool, fingerprint: str | None
) -> tuple[Parts, Found | None]:
    if cache is False:
        return Parts(source), None
    identity = {
        "what": "features",
        "weights": fingerprint or weights_fingerprint(model),
        "model": repr(model.config),
        "data": source.fingerprint,
        "view": view.to_dict(),
        "precision": resolved(precision, place),
    }
    folder = cache_folder() if cache is True else Path(cache)
    parts = Parts(source, folder / "features", identity)
    assert parts.folder is not None
    return parts, _stored(parts.folder)


def cache_folder() -> Path:
    """$VITRAIL_CACHE, or the user's cache folder."""
    told = os.environ.get("VITRAIL_CACHE")
    return Path(told or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache") / "vitrail").expanduser()


def _stored(folder: Path) -> Found | None:
    """`index.npy` is written last: where it is, all is there."""
    if not (folder / "index.npy").is_file():
        return None
    return np.load(folder / "index.npy"), np.load(folder / "features.npy", mmap_mode="r")


def _compute(
    parts: Parts, model: Any, view: Preprocess, place: torch.device, precision: str, batch_size: int, workers: int | None, line: Progress
) -> int:
    """Ask about what is missing; how many images that were."""
    remaining = parts.remaining()
    if remaining is None:
        return 0
    with EvalStream(remaining, view, batch_size=batch_size, workers=workers) as stream:
        parts.take(_told(_rows(model, stream, place, precision, parts.size), remaining, line))
    return len(remaining)


def _told(rows: Iterator[dict[str, np.ndarray]], source: Source, line: Progress) -> Iterator[dict[str, np.ndarray]]:
    """The same rows, with a line about how far it is."""
    begin, done = time.monotonic(), 0
    for part in rows:
        done += len(part["index"])
        left = duration((time.monotonic() - begin) / max(1, done) * (len(source) - done))
        line.show(f"features of {source.name} {source.split or ''}: {done:,} of {len(source):,}, {left} left")
        yield part


def _rows(model: Any, stream: EvalStream, place: torch.device, precision: str, size: int) -> Iterator[dict[str, np.ndarray]]:
    """Features of a part's worth of images at a time, brought to the host in one piece."""
    mode = precision_for(precision, place)
    waiting: list[tuple[Tensor, Tensor]] = []
    with evaluating(model):
        for batch in stream:
            images = stream.preprocess.normalise(batch.images.to(place, non_blocking=True)).to(mode.weights)
            with mode.autocast(place):
                features = model.features(images).flatten(1)
            waiting.append((batch.index[batch.valid], features.float()[batch.valid.to(place)]))
            if sum(len(index) for index, _ in waiting) >= size:
                yield _host(waiting)
                waiting = []
    if waiting:
        yield _host(waiting)


def _host(waiting: list[tuple[Tensor, Tensor]]) -> dict[str, np.ndarray]:
    index, features = (torch.cat(column) for column in zip(*waiting))
    return {"index": index.numpy(), "features": features.cpu().numpy()}


def _finish(parts: Parts) -> Found:
    """All parts as one array: one file that is mapped, or in memory.

    Parts that lack an image which could not be read are not kept: its storage may answer tomorrow.
    """
    distributed.barrier()
    lost = None
    if parts.folder is not None:
        lost = np.setdiff1d(np.arange(len(parts.source)), np.concatenate([parts.read(k)["index"] for k in range(parts.count)]))
    if lost is None or len(lost):
        rows = parts.everything()
        distributed.barrier()
        if lost is not None and distributed.is_main():
            parts.forget(lost)
        return rows["index"], rows.get("features", np.zeros((0, 0), np.float32))
    assert parts.folder is not None
    if distributed.is_main():
        _consolidate(parts)
    distributed.barrier()
    found = _stored(parts.folder)
    assert found is not None
    return found


def _consolidate(parts: Parts) -> None:
    assert parts.folder is not None
    index = [parts.read(k)["index"] for k in range(parts.count)]
    first = next((k for k in range(parts.count) if len(index[k])), None)
    width = parts.read(first)["features"].shape[1] if first is not None else 0
    draft = parts.folder / f"features.{os.getpid()}.tmp"
    whole = np.lib.format.open_memmap(draft, mode="w+", dtype=np.float32, shape=(sum(map(len, index)), width)) if width else None
    at = 0
    for k in range(parts.count):
        if whole is not None and len(index[k]):
            whole[at : at + len(index[k])] = parts.read(k)["features"]
            at += len(index[k])
    if whole is None:
        with open(draft, "wb") as file:
            np.save(file, np.zeros((0, 0), np.float32))
    else:
        whole.flush()
    os.replace(draft, parts.folder / "features.npy")
    fsync_directory(parts.folder)
    body = io.BytesIO()
    np.save(body, np.concatenate(index))
    write_atomic(parts.folder / "index.npy", body.getvalue())
    parts.discard()


# ---------------------------------------------------------------- a model and its two splits


@dataclass
class Frozen:
    """A frozen model over the splits of one data set: what few-shot, k-NN and probe have in common."""

    model: Any
    name: str
    data: Any
    options: dict[str, Any]  # of extract_features
    allow: Collection[str] = ()
    asked: int = 0  # images that went through the model
    meter: Meter = field(init=False)

    def __post_init__(self) -> None:
        self.meter = Meter(self.model.config, pick_device(self.options.get("device")))

    @classmethod
    def of(cls, model: str | nn.Module, data: Any, *, image_size: Any = None, allow: Collection[str] = (), **options: Any) -> Frozen:
        if isinstance(model, nn.Module):
            return cls(model, name_of(model), data, options, allow)
        from vitrail.weights.load import load_model

        return cls(load_model(str(model), image_size=image_size), str(model), data, options, allow)

    def source(self, split: str | None, role: str) -> Source:
        """The split asked for; by default 'train', and 'test' or else 'val'."""
        if split is None and isinstance(self.data, str | os.PathLike):
            have = list_splits(self.data)
            wanted = ("train",) if role == "train" else ("test", "val")
            split = next((name for name in wanted if name in have), None)
            if split is None:
                hint = "--train-split 'train[:90%]' --test-split 'train[90%:]'"
                raise UsageError(f"{self.data} has no {role} split ({', '.join(have) or 'no splits at all'}).", hint=hint)
        return open_source(self.data, split=split, allow=self.allow)

    def features(self, source: Source, chosen: np.ndarray | None = None) -> Features:
        """Of a source, or of some of its images; `index` numbers the images of the whole source."""
        if chosen is None:
            return self._extract(source)
        part = Part((source,), chosen, source.split, bool(getattr(source, "official", False)))
        found = self._extract(part)
        return dataclasses.replace(found, index=chosen[found.index])

    def _extract(self, source: Source) -> Features:
        if "fingerprint" not in self.options and self.options.get("cache", True) is not False:
            self.options["fingerprint"] = weights_fingerprint(self.model)
        found = extract_features(self.model, source, **self.options)
        self.asked += found.asked
        return found

    def spent(self) -> Spent:
        """Since this was made: reading, the model, and what was done with the features."""
        return self.meter.read(self.asked)


def exact_device(name: str | None) -> torch.device:
    """Where features are solved on: float64 is needed, which Apple's GPUs do not have."""
    place = pick_device(name)
    return torch.device("cpu") if place.type == "mps" else place


def name_of(model: Any) -> str:
    """Of a model in memory: its card's, else its class's."""
    return str(getattr(getattr(model, "card", None), "name", "") or type(model).__name__)


Predict = Callable[[Tensor], Tensor]


def hits_of(predict: Predict, test: Features, device: torch.device, block: int = 8192) -> Iterable[tuple[Tensor, Tensor]]:
    """(predictions, labels) of a test set, a block of rows at a time."""
    for at in range(0, len(test), block):
        rows = torch.from_numpy(np.array(test.features[at : at + block])).to(device)
        yield predict(rows), torch.from_numpy(test.labels[at : at + block]).to(device)
