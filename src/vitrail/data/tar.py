"""Tar shards in the webdataset layout, read at any place: no shard is ever unpacked or streamed through.

    shards/train-{00000..00127}.tar    train-00000.tar … and val-00000.tar … in one folder are splits

Class names come from a classes.txt or classes.json beside the shards, or from labels that are names.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np

from vitrail.data.classes import declared
from vitrail.data.labels import Values, empty_classes, number, resolve, together
from vitrail.data.names import Chosen, Names
from vitrail.data.parquet import relative
from vitrail.data.problem import Problems
from vitrail.data.runs import runs, say_if_sorted
from vitrail.data.shard import Shard, index_shard
from vitrail.data.source import Listing, Options, Record, read_probes
from vitrail.data.split import shard_splits
from vitrail.errors import DataError

__all__ = ["Tar", "TarImages"]

SMALL_BYTES = 8 << 30  # a set this small stays in the page cache, wherever it is read


class Keys(Sequence[str]):
    """`shard.tar/key` of every sample, from each shard's own table of keys."""

    def __init__(self, shards: Sequence[str], keys: Sequence[Names]) -> None:
        self.shards, self.keys = Names(shards), list(keys)
        self.ends: list[int] = np.cumsum([len(names) for names in keys], dtype=np.int64).tolist()

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if not 0 <= i < len(self):
            raise IndexError(i)
        k = bisect_right(self.ends, i)
        return f"{self.shards[k]}/{self.keys[k][i - (self.ends[k - 1] if k else 0)]}"

    def update(self, digest: Any) -> None:
        self.shards.update(digest)
        for names in self.keys:
            names.update(digest)


@dataclass(eq=False)
class TarImages(Listing):
    """Images at (shard, start, size)."""

    files: Any = None
    paths: Names = field(default_factory=Names)
    ends: list[int] = field(default_factory=list)  # of the shards, in rows of the tables
    starts: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    lengths: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    rows: np.ndarray | None = None  # the row of each sample, where some are left out

    def read(self, i: int) -> Record:
        row = i if self.rows is None else int(self.rows[i])
        path = self.paths[bisect_right(self.ends, row)]
        data = self.files.read_range(path, int(self.starts[row]), int(self.lengths[row]))
        return Record(data, self.label(i), self.id(i))

    def sizes(self) -> np.ndarray:
        return self.lengths if self.rows is None else self.lengths[self.rows]

    def probes(self) -> Iterable[bytes]:
        return read_probes(self) if self.files.local else ()


class Tar:
    """The reader of one or many tar shards; a few damaged samples are counted and borne."""

    tolerant = True

    def __init__(self, files: Any, paths: Sequence[str], name: str, by_split: dict[str, list[str]] | None = None) -> None:
        self.files, self.paths, self.name = files, list(paths), name
        packed = [path for path in self.paths if not path.lower().endswith(".tar")]
        if packed:
            raise DataError(
                f"{packed[0]} is compressed as a whole, so no image in it can be reached directly.",
                hint="unpack it to .tar first (images hardly shrink): gunzip, xz -d, zstd -d",
            )
        self.by_split = shard_splits(self.paths) if by_split is None else by_split
        self._read: dict[tuple[Any, ...], list[Shard]] = {}

    def splits(self) -> tuple[str, ...]:
        return tuple(self.by_split)

    def names_classes(self, options: Options) -> bool:
        """Whether the names of the classes are known without every split's labels."""
        return not options.labelled or self._fixed(options) is not None

    def _fixed(self, options: Options) -> tuple[str, ...] | None:
        return options.classes or declared(self.files, os.path.dirname(self.paths[0]))

    def open(self, split: str | None, options: Options) -> Listing:
        problems = Problems()
        paths = self.by_split[split] if split else self.paths
        shards = self._shards(paths, options)
        names = relative(paths)
        _count(names, shards, problems)
        keys: Any = Keys(names, [shard.keys for shard in shards])
        values = together([shard.labels for shard in shards])
        counts = np.array([len(shard.keys) for shard in shards], np.int64)
        ends = np.cumsum(counts)
        classes: tuple[str, ...] = ()
        labels: Any = np.full(len(values), -1)
        several, rows, ids = False, None, keys
        if options.labelled:
            classes = self._classes(split, options, values, problems)
            labels, kept, several = number(values, classes, keys, problems, places=self._fixed(options) is not None)
            if len(kept) < len(values):
                rows, ids = kept, Chosen(keys, kept)
                counts = np.bincount(np.repeat(np.arange(len(counts)), counts)[kept], minlength=len(counts))
            if split in (None, "train"):
                empty_classes(labels, classes, problems)
        shards_bytes = sum(int(shard.sizes.sum()) for shard in shards)
        lengths = runs(counts, shards_bytes, SMALL_BYTES) if self.files.local else None  # a store answers any request alike
        return TarImages(
            self.name, split, classes, labels, ids, several, say_if_sorted(labels, lengths), problems=problems.found(),
            shards=lengths, files=self.files, paths=Names(paths), ends=ends.tolist(),
            starts=np.concatenate([shard.starts for shard in shards]),
            lengths=np.concatenate([shard.sizes for shard in shards]), rows=rows,
        )  # fmt: skip

    def _shards(self, paths: Sequence[str], options: Options) -> list[Shard]:
        return [index_shard(self.files, path, options.image, options.label) for path in paths]

    def _classes(self, split: str | None, options: Options, values: Values, problems: Problems) -> tuple[str, ...]:
        fixed = self._fixed(options)
        by_split = {split or "": values}
        if fixed is None:
            for other, paths in self.by_split.items():
                if other != split:
                    by_split[other] = together([shard.labels for shard in self._shards(paths, options)])
        return resolve(by_split, split or "", fixed, problems)


def _count(names: Sequence[str], shards: Sequence[Shard], problems: Problems) -> None:
    usual = int(np.median([len(shard.keys) for shard in shards if not shard.broken] or [0]))
    for name, shard in zip(names, shards):
        if shard.broken:  # counted by the samples it probably lost
            problems.add("truncated-shard", f"{name}: {shard.broken}", max(1, usual - len(shard.keys)))
        for kind, keys in (("missing-image", shard.incomplete), ("duplicate-id", shard.twice), ("unsafe-name", shard.climbing)):
            for key in keys:
                problems.add(kind, f"{name}/{key}")
