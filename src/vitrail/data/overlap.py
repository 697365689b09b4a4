"""`vitrail data overlap`: training images that are also in the data a model is judged by, to the byte or to the eye.

    found = overlap("jpegs/", ["cifar10/", "pets/"], out="copies.csv")
    open_source("jpegs/?exclude=copies.csv", "train")        the training set without them

The paper removed such near-duplicates from its pre-training sets, as BiT did. Images are compared
as in `data check`: by a hash of their bytes, then by how they look (`likeness`).
"""

from __future__ import annotations

import csv
import io
import os
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.data.check import examine
from vitrail.data.copies import Copies, Seen
from vitrail.data.source import Source, list_splits, open_source
from vitrail.errors import ResourceError, UsageError
from vitrail.runtime.disk import write_atomic
from vitrail.runtime.progress import Progress, duration

__all__ = ["Against", "Overlap", "overlap"]

EXAMPLES = 10


@dataclass(frozen=True)
class Against:
    """One set of evaluation images, and how many training images it shares."""

    name: str
    split: str | None
    images: int
    exact: int
    near: int
    examples: tuple[tuple[str, str], ...]  # (training image, evaluation image)


@dataclass(frozen=True)
class Overlap:
    """What was compared and what is in both; `images` is the number of training images."""

    name: str
    split: str | None
    images: int
    unreadable: int
    against: tuple[Against, ...]
    excluded: int  # distinct training images
    out: str | None
    seconds: float

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        bad = f" ({self.unreadable:,} more unreadable)" if self.unreadable else ""
        lines = [f"{self.name} {self.split or ''}: {self.images:,} training images{bad}, compared in {duration(self.seconds)}"]
        for one in self.against:
            held = f"{one.exact:,} training images are among its {one.images:,} to the byte, {one.near:,} more to the eye"
            lines.append(f"{one.name} {one.split or ''}: {held}")
            lines += [f"    {mine} = {theirs}" for mine, theirs in one.examples]
        lines.append(f"{self.excluded:,} training images are in the evaluation data")
        lines += [f"list      {self.out}"] if self.out else []
        lines += [f"next      data.train='{self.name}?exclude={self.out}'"] if self.out and self.excluded else []
        return "\n".join(lines)


def overlap(
    where: Any,
    against: Sequence[Any],
    *,
    split: str | None = None,
    against_split: str | None = None,
    near: bool = True,
    out: str | Path | None = None,
    allow: Collection[str] = (),
    workers: int | None = None,
    progress: bool = True,
) -> Overlap:
    """Training images of `where` (its train split) that any of `against` (every split that is not for training) holds.

    out: a csv of them (image, kind, evaluation data, evaluation image), for the option `?exclude=` of an address.
    """
    if not against:
        raise UsageError("against what?", hint="--against EVALUATION_DATA")
    start = time.monotonic()
    training = _open_training(where, split, allow)
    sets = [source for one in against for source in _open_judging(one, against_split, allow)]
    workers = workers or min(32, os.cpu_count() or 1)
    with Progress(quiet=not progress) as line:
        seen = [_looked_at(source, near, workers, line) for source in (*sets, training)]
        line.show("comparing")
        copies = Copies(seen, near)
    rows: dict[str, list[str]] = {}
    found = [_shared(copies, a, len(sets), source, rows) for a, source in enumerate(sets)]
    if out is not None:
        _write(Path(out), rows)
    good = int(seen[-1].good.sum())
    where_to = str(out) if out is not None else None
    return Overlap(
        training.name, training.split, good, len(training) - good, tuple(found), len(rows), where_to, time.monotonic() - start
    )  # fmt: skip


def _open_training(where: Any, split: str | None, allow: Collection[str]) -> Source:
    if split is None and isinstance(where, str | os.PathLike):
        have = list_splits(where)
        split = "train" if "train" in have else have[0] if have else None
    return open_source(where, split, allow=allow, labelled=False)


def _open_judging(where: Any, split: str | None, allow: Collection[str]) -> list[Source]:
    """Every split but the one for training; all of data without splits."""
    names: list[str | None] = [split]
    if split is None and isinstance(where, str | os.PathLike):
        names = [name for name in list_splits(where) if name != "train"] or [None]
    return [open_source(where, name, allow=allow, labelled=False) for name in names]


def _looked_at(source: Source, near: bool, workers: int, line: Progress) -> Seen:
    def tell(done: int) -> None:
        if done % 256 == 0:
            line.show(f"{source.name} {source.split or ''}: {done:,} of {len(source):,}")

    return examine(source, near, workers, tell)[1]


def _shared(copies: Copies, a: int, training: int, source: Source, rows: dict[str, list[str]]) -> Against:
    """The images of the training set that set `a` holds; each is entered in `rows` once."""
    exact, alike = copies.held(a, training)
    twins = [(int(j), copies.twin(a, int(j)), "exact") for j in exact] + [(j, i, "near") for j, i in alike.items()]
    name = lambda at: copies.seen[int(copies.split[at])].source.id(int(copies.place[at]))
    for j, i, kind in twins:
        rows.setdefault(name(j), [name(j), kind, f"{source.name} {source.split or ''}".strip(), name(i)])
    examples = tuple((name(j), name(i)) for j, i, _ in twins[:EXAMPLES])
    return Against(source.name, source.split, int(copies.seen[a].good.sum()), len(exact), len(alike), examples)


def _write(path: Path, rows: dict[str, list[str]]) -> None:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["image", "kind", "in", "twin"])
    writer.writerows(rows[key] for key in sorted(rows))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, text.getvalue().encode("utf-8", "surrogateescape"))
    except OSError as error:
        raise ResourceError(f"{path} cannot be written ({error.strerror or error}).", hint="choose another --out") from None
