"""`score`: a model over a stream of batches, as `Counts`; what training calls between epochs.

Every rank brings its share of the stream; the sums come back the same on every rank. No
image is dropped or doubled: padding has `valid` False, and so has a file that could not
be read, which therefore is missing from `Counts.images` and named in `stream.quarantine`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.batch import Batch
from vitrail.evaluate.answers import Answers, answer
from vitrail.evaluate.metrics import Counts
from vitrail.runtime.device import Precision
from vitrail.runtime.distributed import gather_objects

__all__ = ["answers_of", "evaluating", "precision_for", "resolved", "score"]

FLUSH = 1 << 24  # numbers that may wait on the device before they are brought to the host in one piece


def score(
    model: nn.Module,
    stream: Any,
    *,
    device: torch.device | str,
    precision: str = "fp32",
    classes: int,
    normalise: Callable[[Tensor], Tensor] | None = None,
) -> Counts:
    """Counts of `model` over a `data.loader.EvalStream` (or anything that yields `Batch`), summed over the ranks.

    The model's outputs are the data's classes, in order; `evaluate` matches them by name first.
    normalise: uint8 batch -> what the model takes; None: `stream.preprocess.normalise`.
    """
    counts = None
    for part in answers_of(model, stream, device=device, precision=precision, classes=classes, normalise=normalise):
        part.refuse_nonfinite()
        counts = part_counts(part, classes) if counts is None else counts + part_counts(part, classes)
    parts = [part for part in gather_objects(counts) if part is not None]
    if not parts:
        return no_counts(classes)
    return sum(parts[1:], parts[0])


def part_counts(part: Answers, classes: int) -> Counts:
    kept = part.labels >= 0 if part.labels.ndim == 1 else np.ones(len(part), bool)
    rows = part.rows(kept)
    return Counts.of(rows.labels, rows.guesses, rows.confidence, rows.loss, classes)


def no_counts(classes: int) -> Counts:
    none = np.zeros(0, np.int64)
    return Counts.of(none, np.zeros((0, min(5, classes)), np.int64), np.zeros(0), np.zeros(0), classes)


def answers_of(
    model: nn.Module,
    stream: Iterable[Batch],
    *,
    device: torch.device | str,
    precision: str,
    classes: int,
    normalise: Callable[[Tensor], Tensor] | None = None,
    forward: Callable[[Tensor], Tensor] | None = None,
    every: int | None = None,
    **options: Any,
) -> Iterator[Answers]:
    """The answers to every valid image of this rank's share, many batches at a time, on the host.

    every: images after which they are brought to the host (and may be put away); None: as late as memory allows.
    forward: normalised images -> logits, where that is more than `model(x)` (flips, crops: `evaluate.views`).
    options: `owner`, `restrict`, `keep_scores` of `answers.answer`.
    """
    device = torch.device(device)
    normalise = normalise or stream.preprocess.normalise  # type: ignore[attr-defined]
    forward = forward or model
    mode = precision_for(precision, device)
    waiting: list[tuple[Tensor | None, ...]] = []
    held = images_held = 0
    with evaluating(model):
        for batch in stream:
            images = normalise(batch.images.to(device, non_blocking=True)).to(mode.weights)
            with mode.autocast(device):
                logits = forward(images)
            columns = answer(logits, batch.labels.to(device), batch.index.to(device), classes, **options)
            waiting.append((*columns, batch.valid.to(device)))
            held += sum(c.numel() for c in columns if c is not None)
            images_held += len(images)
            if held >= FLUSH or (every is not None and images_held >= every):
                yield _to_host(waiting)
                waiting, held, images_held = [], 0, 0
        if waiting:
            yield _to_host(waiting)


def _to_host(waiting: list[tuple[Tensor | None, ...]]) -> Answers:
    columns = [None if c[0] is None else torch.cat(c).cpu().numpy() for c in zip(*waiting)]  # type: ignore[arg-type]
    valid = columns.pop()
    return Answers(*columns).rows(valid)  # type: ignore[arg-type]


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Evaluation mode and no gradients for the length of a block; the model's own mode afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def resolved(name: str, device: torch.device) -> str:
    """ "auto": bf16 on a GPU, else fp32."""
    return ("bf16" if device.type == "cuda" else "fp32") if name == "auto" else name


def precision_for(name: str, device: torch.device) -> Precision:
    precision = Precision(resolved(name, device))
    precision.prepare()
    return precision
