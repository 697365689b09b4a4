"""`predict`: what is in any number of images, with memory that does not grow.

    items --read, decode, view (threads, a bounded window ahead)--> batches --forward--> rows --> pieces of a file

Batches are cut at fixed places of the item stream, so that a run that was stopped and went
on writes the same bytes as one that was not. Under torchrun each rank answers its own run
of items into its own file; no rank talks to another.
"""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.errors import DataError, UsageError
from vitrail.runtime import distributed
from vitrail.ship.inputs import Inputs, Item, failure, open_inputs
from vitrail.ship.predictor import Predictor
from vitrail.ship.tables import Layout, Pieces, Row, format_for

__all__ = ["Predictions", "Predictor", "answers", "columns", "load_predictors", "predict"]

PIECE_ROWS = 8192
PIECE_S = 30.0  # a piece is closed after so long, however few its rows
SHOWN = 20  # skipped files that a result names; all of them are in OUT.skipped.jsonl


@dataclass
class Predictions:
    """What `predict` did. `rows` is filled where no file was asked for."""

    images: int
    skipped: int
    seconds: float
    path: Path | None = None
    resumed_at: int = 0
    bad: list[dict[str, Any]] = field(default_factory=list)  # the first of the skipped files, each with its reason
    rows: list[Row] = field(default_factory=list)
    labelled: bool = False

    def to_dict(self) -> dict[str, Any]:
        body: dict[str, Any] = {"images": self.images, "skipped": self.skipped, "seconds": round(self.seconds, 3)}
        if self.bad:
            body["skipped_files"] = self.bad
        if self.path is not None:
            return {**body, "path": str(self.path), "resumed_at": self.resumed_at}
        return {**body, "predictions": [row.to_dict(self.labelled) for row in self.rows]}

    def __str__(self) -> str:
        where = f" -> {self.path}" if self.path else ""
        return f"{self.images:,} images, {self.skipped:,} skipped, {self.seconds:.1f} s{where}"


@dataclass(frozen=True)
class Answered:
    """One batch of items: the rows of those that could be read, and the others."""

    start: int
    stop: int
    rows: list[Row]
    skipped: list[dict[str, Any]]


def predict(
    model: str | os.PathLike[str] | nn.Module | Predictor,
    images: Any,
    *,
    split: str | None = None,
    top: int = 5,
    embed: bool = False,
    out: str | os.PathLike[str] | None = None,
    format: str | None = None,
    overwrite: bool = False,
    batch_size: int = 32,
    threads: int | None = None,
    device: str | None = None,
    fast: bool = False,
    each: Callable[[Row], None] | None = None,
    stdin: Iterable[str] | None = None,
) -> Predictions:
    """Answer every image of `images` (see `ship.inputs`): top-k classes with probabilities, or features (`embed`).

    out: a file in JSON lines, CSV or parquet; a run that was stopped goes on where it was.
    each: called with every row, in order, instead of keeping them.
    A file that is no image is skipped, named and counted; where none can be read, DataError.
    """
    if batch_size < 1 or top < 1:
        raise UsageError(f"batch_size={batch_size} and top={top} must be at least 1.")
    start_time = time.perf_counter()
    predictor = as_predictor(model, device=device, fast=fast)
    inputs = open_inputs(images, split, stdin=stdin)
    first, stop = share(inputs)
    result = Predictions(0, 0, 0.0, labelled=inputs.labelled)
    if out is None:
        for batch in answers(predictor, inputs, first, stop, batch_size=batch_size, top=top, embed=embed, threads=threads):
            for row in batch.rows:
                each(row) if each else result.rows.append(row)
            _count(result, batch)
    else:
        path = rank_path(Path(out))
        layout = Layout(format_for(path, format), columns(predictor, top, embed), embed, inputs.labelled)
        job = {"model": predictor.identity, "images": inputs.fingerprint(), "items": [first, stop], "batch_size": batch_size}
        pieces = Pieces(path, layout, {**job, "format": layout.format, "top": top, "embed": embed}, overwrite=overwrite)
        result.path, result.resumed_at = path, pieces.position(first)
        stream = answers(predictor, inputs, result.resumed_at, stop, batch_size=batch_size, top=top, embed=embed, threads=threads)
        _write(pieces, stream, result, each)
    result.seconds = time.perf_counter() - start_time
    if not result.images and result.skipped and not result.resumed_at:
        first_bad = "; ".join(f"{bad['image']}: {bad['reason']}" for bad in result.bad[:3])
        raise DataError(f"none of {result.skipped} files could be read ({first_bad}).", hint="vitrail data check shows why")
    return result


def _write(pieces: Pieces, stream: Iterator[Answered], result: Predictions, each: Callable[[Row], None] | None) -> None:
    waiting: list[Answered] = []
    held, since = 0, time.monotonic()

    def close() -> None:
        rows = [row for batch in waiting for row in batch.rows]
        skipped = [bad for batch in waiting for bad in batch.skipped]
        pieces.write(waiting[0].start, waiting[-1].stop, rows, skipped)
        waiting.clear()

    for batch in stream:
        waiting.append(batch)
        held += len(batch.rows)
        _count(result, batch)
        for row in batch.rows if each else ():
            each(row)  # type: ignore[misc]
        if held >= PIECE_ROWS or time.monotonic() - since > PIECE_S:
            close()
            held, since = 0, time.monotonic()
    if waiting:
        close()
    result.skipped = pieces.finish()


def _count(result: Predictions, batch: Answered) -> None:
    result.images += len(batch.rows)
    result.skipped += len(batch.skipped)
    result.bad += batch.skipped[: SHOWN - len(result.bad)] if len(result.bad) < SHOWN else []


def columns(predictor: Predictor, top: int, embed: bool) -> int:
    """Answers, or features, that a row has."""
    return int(predictor.model.config.head_width) if embed else min(top, len(predictor.classes))  # type: ignore[union-attr, arg-type]


# ---------------------------------------------------------------- the stream


def answers(
    predictor: Predictor,
    inputs: Inputs,
    start: int = 0,
    stop: int | None = None,
    *,
    batch_size: int = 32,
    top: int = 5,
    embed: bool = False,
    threads: int | None = None,
) -> Iterator[Answered]:
    """Batches of answers in the order of the items; at most a few batches of images are in memory."""
    waiting: list[tuple[Item, np.ndarray | tuple[str, str]]] = []
    begin = start
    for item, got in loaded(predictor, inputs.items(start, stop), threads or default_threads(), 2 * batch_size):
        waiting.append((item, got))
        if len(waiting) == batch_size:
            yield _answer(predictor, begin, waiting, top, embed)
            begin, waiting = begin + batch_size, []
    if waiting:
        yield _answer(predictor, begin, waiting, top, embed)


def _answer(
    predictor: Predictor, start: int, batch: Sequence[tuple[Item, np.ndarray | tuple[str, str]]], top: int, embed: bool
) -> Answered:
    good = [(item, got) for item, got in batch if isinstance(got, np.ndarray)]
    bad = [{"image": item.id, "reason": got[0], "message": got[1]} for item, got in batch if not isinstance(got, np.ndarray)]
    rows: list[Row] = []
    if good:
        pixels = np.stack([got for _, got in good])
        outputs = predictor.features(pixels) if embed else predictor.forward(pixels)
        for (item, _), output in zip(good, outputs):
            answer = Row(item.id, item.label, features=output) if embed else Row(item.id, item.label, predictor.answer(output, top))
            rows.append(answer)
    return Answered(start, start + len(batch), rows, bad)


def loaded(predictor: Predictor, items: Iterable[Item], threads: int, window: int) -> Iterator[tuple[Item, np.ndarray | tuple[str, str]]]:
    """(item, pixels or why not), in order, read and decoded by threads at most `window` items ahead."""

    def load(item: Item) -> np.ndarray | tuple[str, str]:
        try:
            return predictor.pixels(item.read(), item.id)
        except Exception as error:
            reason = failure(error)
            if reason is None:
                raise
            return reason

    pool = ThreadPoolExecutor(threads, thread_name_prefix="vitrail-decode")
    ahead: deque[tuple[Item, Future[np.ndarray | tuple[str, str]]]] = deque()
    try:
        for item in items:
            ahead.append((item, pool.submit(load, item)))
            if len(ahead) >= window:
                item, future = ahead.popleft()
                yield item, future.result()
        while ahead:
            item, future = ahead.popleft()
            yield item, future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def default_threads() -> int:
    return min(8, os.cpu_count() or 1)


# ---------------------------------------------------------------- ranks


def share(inputs: Inputs) -> tuple[int, int | None]:
    """This rank's run of items; all of them where there is one rank."""
    rank, world = distributed.rank(), distributed.world()
    if world == 1:
        return 0, inputs.total
    total = len(inputs)
    return total * rank // world, total * (rank + 1) // world


def rank_path(path: Path) -> Path:
    """OUT.csv, or OUT-00000-of-00004.csv where there are ranks."""
    rank, world = distributed.rank(), distributed.world()
    return path if world == 1 else path.with_name(f"{path.stem}-{rank:05d}-of-{world:05d}{path.suffix}")


# ---------------------------------------------------------------- models


def as_predictor(
    model: str | os.PathLike[str] | nn.Module | Predictor, *, device: str | None = None, fast: bool = False, **options: Any
) -> Predictor:
    """Whatever stands for a model -> a Predictor."""
    if isinstance(model, Predictor):
        return model
    if not isinstance(model, nn.Module):
        from vitrail.weights.load import load_model

        model = load_model(model)
    predictor = Predictor(model, device=device, **options)
    if fast:
        from vitrail.ship.fast import make_fast

        make_fast(predictor)
    return predictor


def load_predictors(
    weights: Sequence[str],
    *,
    device: str | None = None,
    max_pixels: float | None = None,
    threads: int | None = None,
    fast: bool = False,
) -> dict[str, Predictor]:
    """The models of a server by name, in order; two of the same name get a number. None named: the model in the box."""
    from vitrail.weights.load import load_model

    if threads:
        torch.set_num_threads(threads)
    if not weights:
        from vitrail.weights.hub import default_model

        weights = (default_model(),)
    options = {} if max_pixels is None else {"max_pixels": max_pixels}
    found: dict[str, Predictor] = {}
    for where in weights:
        predictor = as_predictor(in_memory(load_model(where)), device=device, fast=fast, **options)
        name = plain_name(predictor.name)
        number = 2
        while name in found:
            name, number = f"{plain_name(predictor.name)}-{number}", number + 1
        predictor.name = name
        found[name] = predictor
    return found


def in_memory(model: nn.Module) -> nn.Module:
    """Parameters out of the mapped file: a server must outlive someone who writes over its weights."""
    for tensor in model.parameters():
        tensor.data = tensor.data.clone()
    return model


def plain_name(name: str) -> str:
    """A model's name as one segment of a URL: "ViT-B/16@384" -> "ViT-B-16-384"."""
    return "".join(c if c.isascii() and (c.isalnum() or c in "._-") else "-" for c in name).strip(".-") or "model"
