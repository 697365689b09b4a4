"""Splits and parts of splits: `train[:98%]`, `train[98%:]`, `[:1000]`, `train[:800]+val[:200]`.

    expression = term ("+" term)*          term = [name] part*          part = "[" from ":" to "]"

A bound is a number of images or a percentage, negative from the end. A part is cut from a
shuffle that depends on the seed alone and in which every class is spread evenly: a folder
sorted by class loses no class, two parts that meet at one bound share nothing and miss
nothing, and a larger part contains every smaller one that begins where it does (so
`[:1%]`, `[:3%]`, `[:10%]` are nested, as data-size studies need). Where a protocol defines
the parts by the order of the records (`official`), that order is used instead.
"""

from __future__ import annotations

import csv
import hashlib
import os
import posixpath
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

import numpy as np

from vitrail.data.names import shown
from vitrail.data.problem import Problem
from vitrail.errors import DataError, UsageError

__all__ = ["Part", "Term", "by_role", "listed", "nested", "parse", "role", "select", "shard_splits", "shuffled", "without"]

_NAME = r"[A-Za-z0-9_][A-Za-z0-9_.\-]*"
_BOUND = r"[-+]?\d[\d_]*(?:\.\d+)?%?"
_TERM = re.compile(rf"(?P<name>{_NAME})?(?P<parts>(?:\[\s*(?:{_BOUND})?\s*:\s*(?:{_BOUND})?\s*\])*)")
_PART = re.compile(rf"\[\s*({_BOUND})?\s*:\s*({_BOUND})?\s*\]")


# what folders, files and columns call them -> what Vitrail calls them
ROLES = {
    "train": "train", "training": "train", "trn": "train",
    "val": "val", "valid": "val", "validation": "val", "dev": "val",
    "test": "test", "testing": "test", "tst": "test", "eval": "test",
}  # fmt: skip


def role(name: str) -> str:
    """'validation' -> 'val'; '' for a name that is no usual name of a split."""
    return ROLES.get(name.lower(), "")


def by_role(named: dict[str, str]) -> dict[str, str]:
    """{its own name: split} -> {split: its own name}, train first; two folders for one split keep their own names."""
    taken = list(named.values())
    found = {split if taken.count(split) == 1 else own: own for own, split in named.items()}
    places = ["train", "val", "test"]
    return dict(sorted(found.items(), key=lambda item: (places.index(item[0]) if item[0] in places else 3, item[0])))


_SHARD = re.compile(r"(?P<split>[A-Za-z0-9_.]+?)-\d{5}-of-\d{5}\.")
_WORD = re.compile(r"[A-Za-z]+")


def shard_splits(paths: Sequence[str]) -> dict[str, list[str]]:
    """{split: its files}, from names as the hub and webdataset give them; {} when the names tell of none.

    train-00000-of-00008.parquet, val_0003.tar, data/test/0000.parquet
    """
    named: dict[str, list[str]] = {}
    if not paths:
        return {}
    shared = posixpath.commonpath([posixpath.dirname(path) for path in paths])  # the address, which names no split
    for path in paths:
        folder, base = posixpath.split(path[len(shared) :])
        whole, word = _SHARD.match(base), _WORD.match(base)
        parent = next((role(part) for part in reversed(folder.split("/")) if role(part)), "")
        own = (word and role(word[0])) or (whole and (role(whole["split"]) or whole["split"])) or parent
        named.setdefault(own, []).append(path)
    if "" in named or (len(named) == 1 and not any(role(name) for name in named)):
        return {}
    return {split: named[own] for split, own in by_role({name: role(name) or name for name in named}).items()}


@dataclass(frozen=True)
class Term:
    """One split, and the parts to cut from it, each from what the one before left."""

    name: str | None
    parts: tuple[tuple[str, str], ...] = ()


def parse(expression: str | None) -> tuple[Term, ...]:
    """'train[:800]+val' -> (Term('train', (('', '800'),)), Term('val'))."""
    if expression is None:
        return (Term(None),)
    terms = []
    for text in expression.replace(" ", "").split("+"):
        found = _TERM.fullmatch(text)
        if not text or not found:
            raise UsageError(f"{expression!r} is no split.", hint="write 'train', 'train[:98%]', 'train[98%:]', '[:1000]', 'train+val'")
        parts = tuple((a or "", b or "") for a, b in _PART.findall(found["parts"]))
        terms.append(Term(found["name"], parts))
    return tuple(terms)


def select(open_base: Callable[[str | None], Any], expression: str | None, seed: int, official: bool) -> Any:
    """The source that `expression` describes; `open_base(name)` opens one whole split."""
    terms = parse(expression)
    bases: dict[str | None, Any] = {}
    pieces: dict[str | None, list[np.ndarray]] = {}
    for term in terms:
        if term.name not in bases:
            bases[term.name] = open_base(term.name)
        base = bases[term.name]
        order = _order(base, seed, official) if term.parts else np.arange(len(base), dtype=np.int64)
        for first, last in term.parts:
            order = order[_bound(first, 0, len(order), term) : _bound(last, len(order), len(order), term)]
        pieces.setdefault(term.name, []).append(order)
    if len(terms) == 1 and not terms[0].parts:
        return bases[terms[0].name]
    for name, found in pieces.items():
        _refuse_overlap(name, found, expression)
    chosen = [(bases[name], np.concatenate(found)) for name, found in pieces.items()]
    if not sum(len(indices) for _, indices in chosen):
        raise UsageError(f"the split {expression!r} holds no image.", hint="take a larger part")
    ordered = official or all(base.official for base, _ in chosen)
    part = join([(base, indices if ordered else np.sort(indices)) for base, indices in chosen], expression, ordered)
    if not ordered and any(term.parts for term in terms):
        part.notes += (f"{expression} is drawn at random (seed {seed}): not the official split",)
    return part


def shuffled(labels: Any, seed: int) -> np.ndarray:
    """All indices in an order that depends on (seed, labels) alone, every class spread evenly along it.

    Samples are shuffled by a keyed permutation; then the r-th sample of a class of n goes to
    the place (r + u) / n of the line, u being that class's own draw. So any stretch of the
    line holds every class in proportion, to within one image.
    """
    from vitrail.data.order import Permutation
    from vitrail.kernels import draws

    count = len(labels)
    order = Permutation(count, draws.key(seed, "split"))(np.arange(count))
    if not isinstance(labels, np.ndarray):
        return order  # several labels an image: nothing to spread by
    mixed = labels[order]
    by_class = np.argsort(mixed, kind="stable")
    values, starts, sizes = np.unique(mixed[by_class], return_index=True, return_counts=True)
    offset = draws.uniform_numpy(draws.key(seed, "split offset"), values.astype(np.int64) + 1, 1)[:, 0]
    rank = np.arange(count) - np.repeat(starts, sizes)
    place = (rank + np.repeat(offset, sizes)) / np.repeat(sizes, sizes)
    return order[by_class[np.argsort(place, kind="stable")]]


def nested(source: Any, percents: Sequence[float], seed: int = 0) -> list[Any]:
    """Random subsets of `source`, one a percentage; each contains every smaller one."""
    return [select(lambda _name: source, f"[:{percent:g}%]", seed, False) for percent in percents]


def listed(source: Any, ids: Sequence[str], name: str = "list") -> Part:
    """The samples a protocol lists by their ids, in its order: an official split as its authors published it.

    An id may leave out folders and the extension ("n01440764_10026" finds "train/n01440764/n01440764_10026.JPEG").
    """
    places: dict[str, list[int]] = {}
    for i in range(len(source)):
        whole = source.id(i)
        base = posixpath.basename(whole)
        for key in {whole, base, posixpath.splitext(base)[0]}:
            places.setdefault(key, []).append(i)
    found = [places.get(one) or places.get(posixpath.basename(one), []) for one in ids]
    for what, bad in (
        ("does not hold", [o for o, f in zip(ids, found) if not f]),
        ("has several", [o for o, f in zip(ids, found) if len(f) > 1]),
    ):
        if bad:
            raise DataError(f"{source.name} {what} {len(bad):,} of the {len(ids):,} images of {name}, for example {shown(bad[0])}.")
    indices = np.array([f[0] for f in found], np.int64)
    return Part((source,), indices, f"{source.split or ''}:{name}", official=True)


def without(source: Any, path: str) -> Part:
    """The source but for the images a file names: a csv with a column `image`, or one id a line."""
    try:
        with open(os.path.expanduser(path), newline="", encoding="utf-8", errors="surrogateescape") as file:
            rows = [row for row in csv.reader(file) if row and not row[0].startswith("#")]
    except OSError as error:
        raise DataError(f"exclude={path} cannot be read ({error.strerror or error}).", hint="vitrail data overlap writes one") from None
    column = rows[0].index("image") if rows and "image" in rows[0] else None
    ids = {row[column] for row in rows[1:]} if column is not None else {",".join(row) for row in rows}
    kept = np.array([i for i in range(len(source)) if source.id(i) not in ids], np.int64)
    if not len(kept):
        raise DataError(f"{path} leaves no image of {source.name}.")
    part = Part((source,), kept, source.split, source.official)
    part.notes += (f"{len(source) - len(kept):,} of {len(source):,} images are left out, as {posixpath.basename(path)} says",)
    return part


def _order(base: Any, seed: int, official: bool) -> np.ndarray:
    if official or base.official:
        return np.arange(len(base), dtype=np.int64)
    return shuffled(base.labels, seed)


def _bound(text: str, default: int, length: int, term: Term) -> int:
    """'98%' or '1000' or '-5%' -> a place in 0 .. length; percentages round half up."""
    if not text:
        return default
    digits = text.replace("_", "")
    if digits.endswith("%"):
        share = Fraction(digits[:-1])
        if abs(share) > 100:
            raise UsageError(f"{text} in the split {term.name or ''!r} is more than everything.")
        place = int(abs(share) * length / 100 + Fraction(1, 2))
    else:
        if "." in digits:
            raise UsageError(f"{text} in a split is neither a count nor a percentage.", hint=f"write {text}% or a whole number")
        place = abs(int(digits))
        if place > length:
            name = term.name or "the data"
            raise UsageError(f"{name} is asked for {place:,} images but has {length:,} here.", hint=f"at most {length}")
    return length - place if digits.startswith("-") else place


def _refuse_overlap(name: str | None, found: list[np.ndarray], expression: str | None) -> None:
    together = np.concatenate(found)
    twice = len(together) - len(np.unique(together))
    if len(found) > 1 and twice:
        raise UsageError(f"the parts of {name or 'the data'} in {expression!r} share {twice:,} images.")


# ---------------------------------------------------------------- a source made of parts of others


@dataclass(eq=False)
class Part:
    """Chosen samples of one or more sources with the same classes, as one source.

    `indices` number the samples of the sources laid end to end.
    """

    sources: tuple[Any, ...]
    indices: np.ndarray
    split: str | None
    official: bool = False
    labels: Any = field(init=False, repr=False)
    shards: tuple[int, ...] | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        first = self.sources[0]
        self.name, self.classes, self.multilabel = first.name, first.classes, first.multilabel
        self.starts = np.cumsum([0, *map(len, self.sources)])
        self.notes: tuple[str, ...] = tuple(dict.fromkeys(note for s in self.sources for note in s.notes))
        self.problems: tuple[Problem, ...] = tuple(p for s in self.sources for p in s.problems)
        self.labels = self._labels()
        self.shards = self._shards()
        self._fingerprint: str | None = None

    def _labels(self) -> Any:
        if self.multilabel:
            return [self.sources[k].labels[i] for k, i in map(self.locate, range(len(self)))]
        return np.concatenate([np.asarray(s.labels) for s in self.sources])[self.indices]

    def _shards(self) -> tuple[int, ...] | None:
        """How many chosen samples each shard keeps, where the chosen are in the order of the shards."""
        if all(s.shards is None for s in self.sources) or np.any(np.diff(self.indices) < 0):
            return None
        ends = np.cumsum([n for s in self.sources for n in (s.shards or (len(s),))])
        counts = np.diff(np.searchsorted(self.indices, ends, side="left"), prepend=0)
        return tuple(int(n) for n in counts if n)

    def __len__(self) -> int:
        return len(self.indices)

    def locate(self, i: int) -> tuple[int, int]:
        """(which source, which sample of it)."""
        place = int(self.indices[i])
        k = int(np.searchsorted(self.starts, place, side="right")) - 1
        return k, place - int(self.starts[k])

    def read(self, i: int) -> Any:
        k, place = self.locate(i)
        return self.sources[k].read(place)

    def id(self, i: int) -> str:
        k, place = self.locate(i)
        name: str = self.sources[k].id(place)
        return name

    @property
    def fingerprint(self) -> str:
        if self._fingerprint is None:
            digest = hashlib.blake2b(digest_size=16)
            for source in self.sources:
                digest.update(source.fingerprint.encode())
            digest.update(self.indices.astype("<i8").tobytes())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint


def join(chosen: list[tuple[Any, np.ndarray]], split: str | None, official: bool) -> Part:
    """Chosen samples of several sources, one after another; their classes have to agree."""
    first = chosen[0][0]
    for other, _ in chosen[1:]:
        if other.classes != first.classes or other.multilabel != first.multilabel:
            raise UsageError(f"{split!r} adds splits with different classes.", hint="make the classes the same first")
    starts = np.cumsum([0, *(len(base) for base, _ in chosen)])
    indices = np.concatenate([place + start for (_, place), start in zip(chosen, starts)])
    return Part(tuple(base for base, _ in chosen), indices, split, official)
