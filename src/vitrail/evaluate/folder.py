"""A measurement as a folder of files that other tools read.

result.json       all figures, with intervals, notes and cost
answers.csv       an image a row: what it is, what was said, how surely
per_class.csv     a class a row: images, recall with its interval, precision, F1 (and AP)
confusion.csv     rows: true class; columns: answered class; "none": an answer outside the classes
confusion.png     the same as a picture
reliability.png   accuracy against confidence
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.encode import encode_png
from vitrail.data.source import Source
from vitrail.errors import ResourceError
from vitrail.evaluate.calibration import bins_at
from vitrail.evaluate.charts import confusion_chart, reliability_chart
from vitrail.evaluate.intervals import wilson
from vitrail.evaluate.result import Evaluation
from vitrail.runtime.disk import write_atomic

__all__ = ["prepare_folder", "write_folder"]

MOST_DRAWN = 2000  # classes; a larger table has less than a pixel a class


def prepare_folder(folder: str | Path) -> Path:
    """Make it, before anything is measured that could not be put there."""
    where = Path(folder)
    try:
        where.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ResourceError(f"{where} cannot be written ({error.strerror or error}).", hint="choose another --out") from None
    return where


def write_folder(result: Evaluation, folder: str | Path, source: Source | None = None) -> Path:
    """Write every file; `source` names the images of answers.csv."""
    where = prepare_folder(folder)
    try:
        for name, body in _files(result, source):
            write_atomic(where / name, body)
    except OSError as error:
        raise ResourceError(f"{where} cannot be written ({error.strerror or error}).", hint="choose another --out") from None
    return where


def _files(result: Evaluation, source: Source | None) -> Iterable[tuple[str, bytes]]:
    yield "result.json", (json.dumps(result.to_dict(), indent=1, ensure_ascii=False) + "\n").encode()
    yield "per_class.csv", _per_class(result)
    if result.answers is not None:
        yield "answers.csv", _answers(result, source)
    counts = result.counts
    if counts.confusion is not None:
        yield "confusion.csv", _confusion(result)
        if len(result.classes) <= MOST_DRAWN:
            title = f"{result.data}: {result.top1.percent(1)} of {result.images:,} images"
            yield "confusion.png", encode_png(confusion_chart(counts.confusion, result.classes, title))
    yield "reliability.png", encode_png(reliability_chart(counts.bins, counts.ece, _scaled(result)))


def _table(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(header)
    writer.writerows(rows)
    return text.getvalue().encode("utf-8", "backslashreplace")


def _per_class(result: Evaluation) -> bytes:
    ranked = result.class_ap is not None
    rows = []
    for row, right in zip(result.per_class(), result.counts.right):
        recall = wilson(int(right), row["images"])
        ends = [f"{end:.6f}" for end in (recall.low, recall.high)] if row["images"] else ["", ""]
        shares = [_share(row[name]) for name in ("precision", "f1", *(["ap"] if ranked else []))]
        rows.append([row["class"], row["images"], int(right), _share(row["recall"]), *ends, *shares])
    header = ["class", "images", "right", "recall", "recall_low", "recall_high", "precision", "f1", *(["ap"] if ranked else [])]
    return _table(header, rows)


def _share(value: float | None) -> str:
    return "" if value is None else f"{value:.6f}"


def _confusion(result: Evaluation) -> bytes:
    table = result.counts.confusion
    assert table is not None
    outside = result.counts.support - table.sum(1)
    rows = [[name, *line.tolist(), int(none)] for name, line, none in zip(result.classes, table, outside)]
    return _table(["is \\ said", *result.classes, "none"], rows)


def _answers(result: Evaluation, source: Source | None) -> bytes:
    answers = result.answers
    assert answers is not None
    name = lambda k: result.classes[k] if k >= 0 else ""
    depth = answers.guesses.shape[1]
    rows = []
    for row in range(len(answers)):
        index, label = int(answers.index[row]), answers.labels[row]
        several = np.ndim(label) > 0
        true = "|".join(name(k) for k in np.flatnonzero(label)) if several else name(int(label))
        guesses = [int(k) for k in answers.guesses[row]]
        right = bool(label[guesses[0]] > 0) if several else guesses[0] == int(label)
        known = several or int(label) >= 0
        rows.append(
            [index, source.id(index) if source else "", true, int(right) if known else "", f"{answers.confidence[row]:.6f}"]
            + [name(k) for k in guesses]
        )
    return _table(["index", "image", "is", "right", "confidence", *(f"guess{k + 1}" for k in range(depth))], rows)


def _scaled(result: Evaluation) -> tuple[np.ndarray, float, float] | None:
    """The bins after the temperature, where one was fitted and the scores are at hand."""
    answers, scaling = result.answers, result.scaling
    if scaling is None or answers is None or answers.scores is None:
        return None
    return bins_at(scaling.temperature, answers.scores, answers.labels), scaling.ece_after, scaling.temperature
