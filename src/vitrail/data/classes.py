"""Class names: where they come from beside the data, and what happens when two lists disagree."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from vitrail.data.names import composed, shown
from vitrail.data.problem import Problems
from vitrail.errors import DataError

__all__ = ["compare_splits", "declared", "difference", "require_same_classes"]

NAMES = ("classes.txt", "classes.json")


def difference(ours: Sequence[str], theirs: Sequence[str], us: str, them: str) -> str:
    """What two lists of classes do not share, in words; '' when they are the same list."""
    if tuple(ours) == tuple(theirs):
        return ""
    only_us, only_them = sorted(set(ours) - set(theirs)), sorted(set(theirs) - set(ours))
    parts = [f"only in {who}: {_few(names)}" for who, names in ((us, only_us), (them, only_them)) if names]
    if not parts:
        k = next(k for k, (a, b) in enumerate(zip(ours, theirs)) if a != b)
        parts = [f"the same names in another order (class {k} is {shown(ours[k])} in {us}, {shown(theirs[k])} in {them})"]
    return "; ".join(parts)


def _few(names: Sequence[str], limit: int = 8) -> str:
    more = f", … ({len(names):,} in all)" if len(names) > limit else ""
    return ", ".join(shown(name, 60) for name in names[:limit]) + more


def require_same_classes(ours: Sequence[str], theirs: Sequence[str], us: str, them: str) -> None:
    """DataError with the difference unless both lists name the same classes in the same order."""
    found = difference(ours, theirs, us, them)
    if found:
        raise DataError(
            f"{us} has {len(ours):,} classes, {them} has {len(theirs):,}, and they differ: {found}.",
            hint="give both the same classes (a classes.txt beside the data fixes names and order)",
        )


def compare_splits(by_split: Mapping[str, Sequence[str]], split: str, problems: Problems) -> tuple[str, ...]:
    """The classes that number the labels of `split`; every other split has to have the same ones.

    Training data decides (a model cannot learn what it does not hold); without any, `split` itself.
    """
    lead = "train" if "train" in by_split else split
    classes = tuple(by_split[lead])
    for other, names in by_split.items():
        found = difference(classes, tuple(names), lead, other)
        if found:
            problems.add("class-mismatch", f"{lead} and {other}: {found}", plain=True)
    return classes


def declared(files: Any, folder: str) -> tuple[str, ...] | None:
    """The names in a classes.txt (one a line) or classes.json (a list) beside the data, or None."""
    for base in NAMES:
        path = f"{folder.rstrip('/')}/{base}" if folder else base
        if files.exists(path):
            return _parse(files.read(path), path)
    return None


def _parse(data: bytes, path: str) -> tuple[str, ...] | None:
    try:
        text = data.decode("utf-8-sig")
        names = json.loads(text) if path.endswith(".json") else [line.strip() for line in text.splitlines() if line.strip()]
    except ValueError as error:
        raise DataError(f"{shown(path)} cannot be read: {error}.", hint="one class name a line, in UTF-8") from None
    if isinstance(names, dict):  # {"0": "cat"} or {"cat": 0}, as various tools write it
        names = _by_number(names)
    if names is None or not all(isinstance(name, str) for name in names):
        return None  # some other document of that name
    names = [composed(name) for name in names]
    if len(set(names)) < len(names):
        raise DataError(f"{shown(path)} names a class twice.", hint="class names have to be distinct")
    return tuple(names)


def _by_number(table: Mapping[str, Any]) -> list[str] | None:
    if all(isinstance(k, int) and not isinstance(k, bool) for k in table.values()):
        table = {str(number): name for name, number in table.items()}
    count = len(table)
    if sorted(table) != sorted(map(str, range(count))):
        return None
    return [table[str(k)] for k in range(count)]
