"""Label values as they are written in tables and shards -> numbers, and the names that go with them.

A label is text or a whole number; several of them an image (a list, or "cat|dog" in a column
called `labels`) make the data multi-label. Whole numbers count from 0. Names are numbered in
the order declared (classes.txt, ClassLabel, `classes=`), else sorted, and the training split
decides which there are. A sample whose label is missing or unknown is counted and left out.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from vitrail.data.classes import compare_splits
from vitrail.data.names import composed
from vitrail.data.problem import Problems

__all__ = ["Value", "Values", "compact", "empty_classes", "number", "read_value", "resolve", "together"]

Value = str | int | tuple[Any, ...] | None
Values = list[Value] | np.ndarray  # int64 where all are whole numbers, negative: missing


def together(parts: Sequence[Values]) -> Values:
    """The values of several files, as numbers if all of them are."""
    if all(isinstance(part, np.ndarray) for part in parts):
        return np.concatenate([np.empty(0, np.int64), *parts])
    return [value for part in parts for value in (map(read_value, part.tolist()) if isinstance(part, np.ndarray) else part)]


def compact(values: list[Value]) -> Values:
    """A list of values as an array where that loses nothing."""
    if all(value is None or isinstance(value, int) for value in values):
        return np.array([-1 if value is None else value for value in values], np.int64)
    return values


def read_value(raw: Any, several: bool = False) -> Value:
    """One cell -> a name, a whole number, a tuple of either, or None where there is no label."""
    if raw is None or (isinstance(raw, float) and math.isnan(raw)):
        return None
    if isinstance(raw, list | tuple | np.ndarray):
        return tuple(v for v in (read_value(one, False) for one in raw) if v is not None)
    if isinstance(raw, bool | np.bool_):
        return str(raw).lower()
    if isinstance(raw, int | np.integer):
        return int(raw) if raw >= 0 else None
    if isinstance(raw, float) and raw.is_integer():
        return int(raw)
    text = composed(str(raw).strip())
    if several:
        mark = "|" if "|" in text else ";"
        return tuple(v for v in (read_value(one, False) for one in text.split(mark)) if v is not None)
    if text.isascii() and text.isdigit() and (text == "0" or text[0] != "0"):
        return int(text)
    return None if not text or (text[0] == "-" and text[1:].isdigit()) else text  # -1: unlabelled, as everywhere


def resolve(by_split: Mapping[str, Iterable[Value]], split: str, fixed: Sequence[str] | None, problems: Problems) -> tuple[str, ...]:
    """The class names that number the labels of `split`, given every split's labels."""
    if fixed is not None:
        return tuple(fixed)
    arrays = [values for values in by_split.values() if isinstance(values, np.ndarray)]
    if len(arrays) == len(by_split):
        return tuple(map(str, range(1 + max(int(values.max(initial=-1)) for values in arrays))))
    found: dict[str, set[str | int]] = {}
    for name, values in by_split.items():
        mine = found.setdefault(name, set())
        distinct: Iterable[Value] = np.unique(values[values >= 0]).tolist() if isinstance(values, np.ndarray) else values
        for value in distinct:
            mine.update(value if isinstance(value, tuple) else () if value is None else (value,))
    if all(isinstance(value, int) for values in found.values() for value in values):
        top = max((int(value) for values in found.values() for value in values), default=-1)
        return tuple(map(str, range(top + 1)))
    lead = "train" if "train" in found else split
    classes = sorted({str(value) for value in found[lead]}, key=lambda name: name.encode("utf-8", "surrogateescape"))
    for name, values in found.items():
        strange = {str(value) for value in values} - set(classes)
        if name != lead and strange:  # a small split may lack a class; one that training never saw is another matter
            compare_splits({"train": classes, name: [*classes, *sorted(strange)]}, "train", problems)
    return tuple(classes)


def number(
    values: Values, classes: Sequence[str], ids: Any, problems: Problems, *, places: bool
) -> tuple[np.ndarray | list[tuple[int, ...]], np.ndarray, bool]:
    """(labels of the samples kept, their places in `values`, whether there are several labels an image).

    `places`: a whole number is a place among the classes, whatever they are called, as in
    ClassLabel columns; else it is a class's name first, as in a table that people write.
    """
    if isinstance(values, np.ndarray) and (places or _in_order(classes)):
        return _number_places(values, len(classes), ids, problems)
    values = values.tolist() if isinstance(values, np.ndarray) else values
    values = [None if isinstance(value, int) and value < 0 else value for value in values]
    table: dict[str | int, int] = {k: k for k in range(len(classes))}
    if not places:
        table = {k: k for k in range(len(classes)) if str(k) not in classes}
        table |= {int(name): k for k, name in enumerate(classes) if _plain(name)}
    table |= {name: k for k, name in enumerate(classes)}
    several = any(isinstance(value, tuple) for value in values)
    if all(value is None for value in values):
        return np.full(len(values), -1), np.arange(len(values)), False
    keep: list[int] = []
    labels: list[Any] = []
    for i, value in enumerate(values):
        wanted = value if isinstance(value, tuple) else () if value is None else (value,)
        if not wanted and not isinstance(value, tuple):
            problems.add("missing-label", ids[i])
            continue
        known = [table[one] for one in wanted if one in table]
        if len(known) < len(wanted):
            strange = ", ".join(str(one) for one in wanted if one not in table)
            problems.add("unknown-class", f"{ids[i]} ({strange})")
            if not several or not known:
                continue
        keep.append(i)
        labels.append(tuple(sorted(set(known))) if several else known[0])
    return labels if several else np.asarray(labels, np.int64), np.asarray(keep, np.int64), several


def _in_order(classes: Sequence[str]) -> bool:
    return all(name == str(k) for k, name in enumerate(classes))


def _number_places(values: np.ndarray, count: int, ids: Any, problems: Problems) -> tuple[np.ndarray, np.ndarray, bool]:
    """Whole numbers are the labels themselves: the same as below, without a step a sample."""
    if (values < 0).all():
        return values, np.arange(len(values)), False
    for i in np.flatnonzero(values < 0):
        problems.add("missing-label", ids[int(i)])
    for i in np.flatnonzero(values >= count):
        problems.add("unknown-class", f"{ids[int(i)]} ({values[i]})")
    good = (values >= 0) & (values < count)
    if good.all():
        return values, np.arange(len(values)), False
    keep = np.flatnonzero(good)
    return values[keep], keep, False


def _plain(name: str) -> bool:
    return name.isascii() and name.isdigit() and (name == "0" or name[0] != "0")


def empty_classes(labels: np.ndarray | list[tuple[int, ...]], classes: Sequence[str], problems: Problems) -> None:
    """A class of the training split without an image (a long vocabulary of several labels an image may have some)."""
    if isinstance(labels, np.ndarray) and len(labels):
        counts = np.bincount(labels[labels >= 0], minlength=len(classes))
        for k in np.flatnonzero(counts == 0):
            problems.add("empty-class", classes[int(k)])
