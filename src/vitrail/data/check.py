"""`vitrail data check`: everything that can be known about a data set before it is trained on.

Opens every split with all problems allowed, reads and decodes every image once, and counts:
problems of the listing, files that are no images, names that lie about the format, the same
picture twice (to the byte, or to the eye) within a split and across splits, one picture with
two labels, class balance, sizes. Nothing is changed.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import time
from collections import Counter, deque
from collections.abc import Collection, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from vitrail.data import decode
from vitrail.data.copies import Copies, Leak, Seen
from vitrail.data.header import EXTENSIONS
from vitrail.data.likeness import THUMB, print_of
from vitrail.data.names import shown
from vitrail.data.problem import HARMLESS, KINDS, Problem
from vitrail.data.source import Source, list_splits, open_source
from vitrail.errors import DecodeError, UsageError, nearest
from vitrail.runtime.cores import cores
from vitrail.runtime.progress import Progress, duration, quantity

__all__ = ["CheckReport", "SplitReport", "check", "examine"]

EDGES = (32, 64, 128, 224, 384, 512, 1024)  # of the histogram of shorter sides
FAULTS = ("corrupt", "leaked", "label-conflict")  # besides the problems of a listing
EXAMPLES = 20
_CHUNK = 32


@dataclass
class SplitReport:
    """One split, counted."""

    split: str | None
    images: int
    classes: int
    multilabel: bool
    bytes: int = 0
    formats: dict[str, int] = field(default_factory=dict)
    corrupt: dict[str, int] = field(default_factory=dict)  # reason -> files
    corrupt_examples: list[str] = field(default_factory=list)
    wrong_extension: int = 0
    wrong_extension_examples: list[str] = field(default_factory=list)
    animated: int = 0
    shorter_side: dict[str, int] = field(default_factory=dict)
    sizes: dict[str, list[int]] = field(default_factory=dict)  # smallest, median, largest: [width, height]
    balance: dict[str, Any] = field(default_factory=dict)
    duplicates: int = 0  # images that repeat an earlier one to the byte
    near_duplicates: int = 0  # images that look like an earlier one and are not the same bytes
    duplicate_examples: list[list[str]] = field(default_factory=list)
    near_examples: list[list[str]] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


@dataclass
class CheckReport:
    name: str
    splits: list[SplitReport]
    leaks: list[Leak]
    conflicts: int  # pictures that carry different labels, to the byte the same
    conflict_examples: list[list[str]]
    seconds: float
    images_per_second: float
    allowed: tuple[str, ...] = ()  # kinds of faults the caller accepts

    @property
    def problems(self) -> dict[str, int]:
        """Kind -> count over all splits; what splits report alike (a mismatch between them) counts once."""
        distinct = {(p.kind, p.count, p.examples) for split in self.splits for p in split.problems}
        counts: Counter[str] = Counter()
        for kind, count, _ in distinct:
            counts[kind] += count
        return dict(sorted(counts.items()))

    @property
    def faults(self) -> dict[str, int]:
        """What makes the answer 'no': counts by kind, empty when all is well."""
        counts = {kind: n for kind, n in self.problems.items() if kind not in HARMLESS}
        counts |= {"corrupt": sum(sum(s.corrupt.values()) for s in self.splits)}
        counts |= {"leaked": sum(leak.exact + leak.near for leak in self.leaks), "label-conflict": self.conflicts}
        return {kind: n for kind, n in counts.items() if n and kind not in self.allowed}

    @property
    def ok(self) -> bool:
        return not self.faults

    @property
    def exit_code(self) -> int:
        return 0 if self.ok else 3

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "problems": self.problems, "faults": self.faults, "ok": self.ok}

    def __str__(self) -> str:
        return "\n".join(_lines(self))


# ---------------------------------------------------------------- one image


def _look(source: Source, places: range, near: bool) -> list[dict[str, Any]]:
    return [_look_at(source, i, near) for i in places]


def _look_at(source: Source, i: int, near: bool) -> dict[str, Any]:
    """Read, hash, name and decode one image; a DecodeError becomes its reason."""
    found: dict[str, Any] = {"place": i}
    try:
        record = source.read(i)
        data = record.data
        raw = data if isinstance(data, bytes) else str(data.shape).encode() + np.ascontiguousarray(data).tobytes()
        found |= {"digest": hashlib.sha256(raw).digest()[:16], "bytes": len(raw)}
        if isinstance(data, bytes):
            found["format"], width, height, found["frames"] = decode.probe(data, where=record.id)
            image = decode.decode(data, where=record.id, min_size=64)  # a scaled JPEG is read to its end as well
        else:
            image = decode.pixels(data, where=record.id)
            height, width = image.shape[:2]
            found |= {"format": "array", "frames": 1}
        found["size"] = width, height
        if near:
            found["print"] = print_of(image)
    except DecodeError as error:
        found |= {"reason": error.reason, "message": error.message}
    return found


def _results(source: Source, near: bool, workers: int) -> Iterator[dict[str, Any]]:
    """Every image in order, decoded by threads (codecs let go of the interpreter), a few chunks ahead."""
    chunks = (range(at, min(at + _CHUNK, len(source))) for at in range(0, len(source), _CHUNK))
    with ThreadPoolExecutor(workers) as pool:
        ahead: deque[Future[list[dict[str, Any]]]] = deque()
        for chunk in chunks:
            ahead.append(pool.submit(_look, source, chunk, near))
            if len(ahead) > 3 * workers:
                yield from ahead.popleft().result()
        while ahead:
            yield from ahead.popleft().result()


# ---------------------------------------------------------------- one split


def examine(source: Source, near: bool, workers: int, tell: Any) -> tuple[SplitReport, Seen]:
    """Read every image of a split once; `tell` is called with how many are done."""
    count = len(source)
    report = SplitReport(source.split, count, len(source.classes), source.multilabel, problems=list(source.problems))
    seen = Seen(
        source, np.zeros((count, 2), np.uint64), np.zeros(count, np.uint64),
        np.zeros((count, THUMB * THUMB) if near else (0, THUMB * THUMB), np.uint8), np.zeros(count, bool), np.zeros((count, 2), np.int64),
    )  # fmt: skip
    formats: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    for found in _results(source, near, workers):
        i = found["place"]
        report.bytes += found.get("bytes", 0)
        if "digest" in found:
            seen.digest[i] = np.frombuffer(found["digest"], np.uint64)
        if "format" in found:
            formats[found["format"]] += 1
            _extension(report, source.id(i), found["format"])
        if "reason" in found:
            reasons[found["reason"]] += 1
            _example(report.corrupt_examples, shown(found["message"]))
        else:
            seen.good[i], seen.size[i] = True, found["size"]
            report.animated += found["frames"] > 1
            if near:
                seen.bits[i], seen.thumbs[i] = found["print"]
        tell(i + 1)
    report.formats, report.corrupt = dict(formats.most_common()), dict(reasons.most_common())
    _sizes(report, seen.size[seen.good])
    report.balance = _balance(source)
    return report, seen


def _extension(report: SplitReport, name: str, format: str) -> None:
    claimed = EXTENSIONS.get(os.path.splitext(name)[1].lower())
    if claimed and format not in ("array", claimed):
        report.wrong_extension += 1
        _example(report.wrong_extension_examples, f"{shown(name)} is {format}")


def _example(examples: list[Any], one: Any) -> None:
    if len(examples) < EXAMPLES:
        examples.append(one)


def _sizes(report: SplitReport, size: np.ndarray) -> None:
    if not len(size):
        return
    short = size.min(1)
    places = np.searchsorted(EDGES, short, side="right")
    names = [f"< {EDGES[0]}", *(f"{a} to {b - 1}" for a, b in itertools.pairwise(EDGES)), f">= {EDGES[-1]}"]
    report.shorter_side = {name: int(n) for name, n in zip(names, np.bincount(places, minlength=len(names))) if n}
    order = np.argsort(size.prod(1), kind="stable")
    report.sizes = {what: size[order[at]].tolist() for what, at in (("smallest", 0), ("median", len(order) // 2), ("largest", -1))}


def _balance(source: Source) -> dict[str, Any]:
    """Images a class: fewest, median, most, and how many classes have none."""
    if not source.classes:
        return {}
    flat = source.labels if isinstance(source.labels, np.ndarray) else [k for label in source.labels for k in label]
    flat = np.asarray(flat, np.int64)
    counts = np.bincount(flat[flat >= 0], minlength=len(source.classes))
    low, high = int(counts.argmin()), int(counts.argmax())
    return {
        "fewest": [shown(source.classes[low]), int(counts[low])], "median": float(np.median(counts)),
        "most": [shown(source.classes[high]), int(counts[high])], "empty": int((counts == 0).sum()),
    }  # fmt: skip


# ---------------------------------------------------------------- the verb


def check(
    where: Any,
    *,
    split: str | None = None,
    near: bool = True,
    allow: Collection[str] = (),
    workers: int | None = None,
    progress: bool = True,
    **options: Any,
) -> CheckReport:
    """Check every split of `where` (or one); `options` are those of `open_source`.

    `allow` names faults that are reported and do not make the answer "no".
    """
    start = time.perf_counter()
    allow = _allowed(allow)
    arrays = not isinstance(where, str | os.PathLike)
    names: Sequence[str | None] = (
        [split] if split or arrays else list_splits(where, image=options.get("image"), label=options.get("label")) or [None]
    )
    sources = [open_source(where, name, allow="all", **options) for name in names]
    total = sum(map(len, sources))
    workers = workers or min(32, cores())
    reports, seen, done = [], [], 0
    with Progress(quiet=not progress) as line:
        for source in sources:
            base = done

            def tell(n: int, base: int = base, split: str | None = source.split) -> None:
                if (base + n) % 256 == 0:
                    line.show(_said(split, base + n, total, time.perf_counter() - start))

            report, kept = examine(source, near, workers, tell)
            reports.append(report)
            seen.append(kept)
            done += len(source)
        line.show(f"comparing {total:,} images")
        copies = Copies(seen, near)
        for k, report in enumerate(reports):
            report.duplicates, report.near_duplicates, report.duplicate_examples, report.near_examples = copies.within(k)
        pairs = itertools.combinations(range(len(seen)), 2)
        leaks = [leak for a, b in pairs if (leak := copies.across(a, b)) is not None]
        conflicts, examples = copies.conflicts()
    seconds = time.perf_counter() - start
    return CheckReport(sources[0].name, reports, leaks, conflicts, examples, seconds, total / seconds, allow)


def _allowed(allow: Collection[str]) -> tuple[str, ...]:
    """The kinds named; 'all' is every one."""
    every = (*KINDS, *FAULTS)
    names = (allow,) if isinstance(allow, str) else tuple(allow)
    for kind in names:
        if kind not in (*every, "all"):
            raise UsageError(f"allow={kind!r} is no kind of fault{nearest(kind, every)}.")
    return every if "all" in names else names


def _said(split: str | None, done: int, total: int, seconds: float) -> str:
    left = duration(seconds / done * (total - done))
    return f"checking {f'{split} ' if split else ''}{done:,} of {total:,}, {done / seconds:,.0f} images/s, {left} left"


def _lines(report: CheckReport) -> Iterator[str]:
    yield f"{report.name}: {sum(s.images for s in report.splits):,} images in {duration(report.seconds)}"
    for s in report.splits:
        formats = ", ".join(f"{name} {n:,}" for name, n in s.formats.items())
        yield f"\n{s.split or 'all'}: {s.images:,} images, {s.classes:,} classes, {quantity(s.bytes, 'B')} ({formats})"
        if s.sizes:
            yield "  sizes        " + ", ".join(f"{what} {w}x{h}" for what, (w, h) in s.sizes.items())
            yield "  shorter side " + ", ".join(f"{name}: {n:,}" for name, n in s.shorter_side.items())
        if s.balance:
            low, high = s.balance["fewest"], s.balance["most"]
            middle = f"median {s.balance['median']:g}, empty {s.balance['empty']}"
            uneven = f"{low[1]:,} ({low[0]}) to {high[1]:,} ({high[0]}), {middle}"
            yield f"  a class      {uneven if low[1] != high[1] else f'{low[1]:,} each'}"
        for reason, n in s.corrupt.items():
            yield f"  corrupt      {reason}: {n:,}"
        yield from _named(s.corrupt_examples, sum(s.corrupt.values()))
        for what, n, examples in (
            ("wrong name", s.wrong_extension, s.wrong_extension_examples),
            ("animated", s.animated, []),
            ("twice", s.duplicates, s.duplicate_examples),
            ("alike", s.near_duplicates, s.near_examples),
        ):
            if n:
                yield f"  {what:12} {n:,}"
                yield from _named(examples, n)
        yield from (f"  {problem}" for problem in s.problems)
    for leak in report.leaks:
        yield f"\nleak: {leak.exact:,} images of {leak.inside} are in {leak.of}, and {leak.near:,} more look like one there"
        yield from _named(leak.examples, leak.exact + leak.near)
    if report.conflicts:
        yield f"\none picture, two labels: {report.conflicts:,}"
        yield from _named(report.conflict_examples, report.conflicts)
    yield "\n" + ("nothing is wrong" if report.ok else "wrong: " + ", ".join(f"{kind} {n:,}" for kind, n in report.faults.items()))


def _named(examples: Sequence[str | list[str]], count: int) -> Iterator[str]:
    """The examples there are, and how many more of the `count` are not among them."""
    yield from (f"    {one if isinstance(one, str) else ' = '.join(one)}" for one in examples)
    if examples and count > len(examples):
        yield f"    … and {count - len(examples):,} more"
