"""A survey: every image of a source put to a model once, the answers kept so that an interrupted one goes on.

Under torchrun the ranks share the images. With a folder, answers are committed in parts of at
most 2,048 images, named by a hash of all they depend on (weights, data, view, precision, classes),
and the same survey later asks nothing again.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.data.loader import EvalStream
from vitrail.data.source import Source
from vitrail.data.transform import Preprocess
from vitrail.evaluate.answers import DEPTH, Answers
from vitrail.evaluate.parts import Parts, weights_fingerprint
from vitrail.evaluate.score import answers_of
from vitrail.evaluate.spent import Meter, Spent
from vitrail.evaluate.views import Views
from vitrail.runtime import distributed
from vitrail.runtime.progress import Progress, duration

__all__ = ["Asker", "Survey"]


@dataclass(frozen=True, eq=False)
class Survey:
    """The answers, one row an image that could be read, in the order of the source; the same on every rank."""

    answers: Answers
    unreadable: tuple[str, ...]
    spent: Spent


@dataclass(frozen=True, eq=False)
class Asker:
    """A model, and how it is asked."""

    model: Any
    views: Views
    device: torch.device
    precision: str  # resolved: no "auto"
    batch_size: int
    workers: int | None
    folder: Path | None  # where answers are kept; None: in memory
    quiet: bool = True

    def survey(
        self,
        source: Source,
        view: Preprocess,
        *,
        owner: np.ndarray | None = None,
        restrict: bool = False,
        keep_scores: bool = False,
    ) -> Survey:
        meter = Meter(self.model.config, self.device)
        options: dict[str, Any] = {"restrict": restrict, "keep_scores": keep_scores}
        with distributed.group():
            parts = Parts(source, self.folder / "answers" if self.folder else None, self._identity(source, view, owner, options))
            remaining = parts.remaining()
            asked = len(remaining) if remaining is not None else 0
            if remaining is not None:
                if owner is not None:
                    options["owner"] = torch.from_numpy(owner).to(self.device)
                with EvalStream(remaining, self.views.preprocess(view), batch_size=self.batch_size, workers=self.workers) as stream:
                    parts.take(self._rows(stream, source, parts.size, asked, options))
            answers = _answers(parts.everything(), source)
            asked = sum(distributed.gather_objects(asked))
            lost = np.setdiff1d(np.arange(len(source)), answers.index)
            if distributed.is_main():
                parts.forget(lost)  # a storage that failed may answer tomorrow
        names = tuple(source.id(int(i)) for i in lost)
        return Survey(answers, names, meter.read(asked, self.views.count))

    def _identity(self, source: Source, view: Preprocess, owner: np.ndarray | None, options: dict[str, Any]) -> dict[str, Any]:
        if self.folder is None:
            return {}
        return {
            "what": "answers",
            "weights": weights_fingerprint(self.model),
            "model": repr(self.model.config),
            "data": source.fingerprint,
            "view": view.to_dict(),
            "views": self.views.name,
            "precision": self.precision,
            "owner": None if owner is None else owner.tolist(),
            **options,
        }

    def _rows(self, stream: EvalStream, source: Source, size: int, total: int, options: dict[str, Any]) -> Iterator[dict[str, np.ndarray]]:
        begin, done = time.monotonic(), 0
        found = answers_of(
            self.model, stream, device=self.device, precision=self.precision, classes=len(source.classes),
            forward=self.views.forward(self.model, source.multilabel), every=size, **options,
        )  # fmt: skip
        with Progress(quiet=self.quiet or not distributed.is_main()) as line:
            for part in found:
                part.refuse_nonfinite(stream.source.id)
                done += len(part)
                left = duration((time.monotonic() - begin) / max(1, done) * (total - done))
                line.show(f"{done:,} of {total:,} images, {left} left")
                yield part.arrays()


def _answers(rows: dict[str, np.ndarray], source: Source) -> Answers:
    """Columns back into answers; no column but "index" means that no image could be read."""
    if len(rows["index"]):
        return Answers(**rows)
    none = np.zeros(0, np.int64)
    labels = np.zeros((0, len(source.classes)), np.float32) if source.multilabel else none
    empty = np.zeros(0, np.float32)
    guesses = np.zeros((0, min(DEPTH, len(source.classes))), np.int64)
    return Answers(none, labels, guesses, empty, empty, np.zeros(0, bool))
