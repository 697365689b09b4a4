"""Parquet files in the Hugging Face layout: an `image` struct of bytes and path, and a label column.

Class names come from the `huggingface` schema metadata (ClassLabel), which `datasets` and
`vitrail data pack` write. A sample of a plain, uncompressed local file (what `vitrail data pack`
writes) is read where it lies; any other is reached through its row group, and the groups read last
are kept, up to a number of bytes. A source tells its row groups as shards, so that an order
which stays within a window of them reads each once. Labels are read when a source is opened,
images when they are asked for.
"""

from __future__ import annotations

import functools
import hashlib
import json
import os
import threading
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrail.data.classes import declared, difference
from vitrail.data.labels import Values, empty_classes, number, read_value, resolve, together
from vitrail.data.names import Chosen, Numbered, shown
from vitrail.data.pages import Places, find_places, is_plain
from vitrail.data.problem import Problems
from vitrail.data.runs import runs, say_if_sorted
from vitrail.data.source import Listing, Options, Record
from vitrail.data.split import shard_splits
from vitrail.data.table import LABEL_COLUMNS
from vitrail.errors import DataError, DecodeError, missing_extra, nearest

__all__ = ["Groups", "Parquet", "ParquetImages", "relative"]

CACHE_BYTES = 512 << 20
KNOWN = 4096  # groups whose images' places are remembered
SMALL_BYTES = 256 << 20  # every process that reads a set this small ends up holding all of it
IMAGE_COLUMNS = ("image", "img", "jpg", "png", "image_bytes", "bytes", "picture", "photo")


def _pyarrow() -> Any:
    try:
        import pyarrow.parquet as pq
    except ImportError:
        raise missing_extra("pyarrow", "data", "Reading parquet files") from None
    return pq


class Groups:
    """Row groups of one column of several files, by number; the last ones read stay in memory, or the places of their values."""

    def __init__(self, files: Any, paths: Sequence[str], column: str, starts: np.ndarray, file_of: np.ndarray, first: np.ndarray) -> None:
        self.files, self.paths, self.column = files, list(paths), column
        self.starts: list[int] = starts.tolist()  # a group's first row; a list, which bisect searches ten times faster
        self.file_of, self.first = file_of, first  # a group's file, and that file's first group
        self._forget()

    def _forget(self) -> None:
        self._process = os.getpid()
        self._lock = threading.Lock()
        self._held: OrderedDict[int, Any] = OrderedDict()
        self._bytes = 0
        self._open: OrderedDict[int, Any] = OrderedDict()
        self._places: dict[int, Places | None] = {}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_held": None, "_open": None, "_places": None, "_lock": None, "_process": -1}

    def row(self, row: int) -> bytes | None:
        """The image at a row of all files laid end to end."""
        if self._process != os.getpid():
            self._forget()
        group = bisect_right(self.starts, row) - 1
        place = row - self.starts[group]
        known = self._places[group] if group in self._places else self._find(group)
        if known is None:
            return self._group(group)[place].as_py()  # type: ignore[no-any-return]
        path = self.paths[int(self.file_of[group])]
        return self.files.read_range(path, int(known.starts[place]), int(known.lengths[place]))  # type: ignore[no-any-return]

    def _find(self, group: int) -> Places | None:
        """Where the images of a group lie in its file, or None where only Arrow can tell."""
        with self._lock:
            if len(self._places) >= KNOWN:
                self._places.clear()
            if group not in self._places:
                self._places[group] = self._look(group) if self.files.local else None
            return self._places[group]

    def _look(self, group: int) -> Places | None:
        k = int(self.file_of[group])
        try:
            file = self._file(k)
            rows = file.metadata.row_group(group - int(self.first[k]))
            names = [file.schema.column(c).path for c in range(rows.num_columns)]
            number = next(c for c, name in enumerate(names) if name in (self.column, f"{self.column}.bytes"))
            column, about = rows.column(number), file.schema.column(number)
            if not is_plain(column) or about.max_repetition_level:
                return None
            read = functools.partial(self.files.read_range, self.paths[k])
            size, levels = column.total_compressed_size, about.max_definition_level > 0
            return find_places(read, column.data_page_offset, size, column.num_values, levels)
        except (OSError, ValueError, StopIteration, DecodeError):
            return None  # the reading proper will say what is wrong

    def _group(self, group: int) -> Any:
        with self._lock:
            held = self._held.get(group)
            if held is None:
                held = self._held[group] = self._load(group)
                self._bytes += held.nbytes
                while self._bytes > CACHE_BYTES and len(self._held) > 1:
                    _, old = self._held.popitem(last=False)
                    self._bytes -= old.nbytes
            self._held.move_to_end(group)
        return held

    def _load(self, group: int) -> Any:
        k = int(self.file_of[group])
        try:
            table = self._file(k).read_row_group(group - int(self.first[k]), columns=[self.column], use_threads=False)
        except (OSError, ValueError) as error:  # pyarrow's own errors are of these kinds
            raise DecodeError("io", " ".join(str(error).split())[:200], where=shown(self.paths[k])) from None
        column = table.column(0).combine_chunks()
        return column.field("bytes") if hasattr(column.type, "get_field_index") and column.type.num_fields else column

    def _file(self, k: int) -> Any:
        if k not in self._open:
            self._open[k] = open_file(self.files, self.paths[k])
            if len(self._open) > 64:
                self._open.popitem(last=False)
        return self._open[k]


def open_file(files: Any, path: str) -> Any:
    """A pyarrow ParquetFile; local ones are mapped."""
    pq = _pyarrow()
    return pq.ParquetFile(path, memory_map=True) if files.local else pq.ParquetFile(files.open(path))


@dataclass(eq=False)
class ParquetImages(Listing):
    """Images in row groups."""

    groups: Any = None
    rows: np.ndarray | None = None  # the row of each sample, where some rows are left out
    footers: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))

    def read(self, i: int) -> Record:
        data = self.groups.row(i if self.rows is None else int(self.rows[i]))
        if not data:
            raise DecodeError("empty", "the row holds no image", where=self.id(i))
        return Record(data, self.label(i), self.id(i))

    def sizes(self) -> np.ndarray:
        """A hash of each file's footer: sizes, offsets and statistics of all its row groups."""
        return self.footers


@dataclass
class Footer:
    """What one file says about itself."""

    path: str
    schema: Any
    counts: list[int]
    digest: int
    bytes: int


class Parquet:
    """The reader of one or many parquet files."""

    tolerant = False

    def __init__(self, files: Any, paths: Sequence[str], name: str, by_split: dict[str, list[str]] | None = None) -> None:
        self.files, self.paths, self.name = files, list(paths), name
        self.by_split = shard_splits(self.paths) if by_split is None else by_split

    def splits(self) -> tuple[str, ...]:
        return tuple(self.by_split)

    def names_classes(self, options: Options) -> bool:
        """Whether the files themselves name their classes (or none are wanted)."""
        if not options.labelled or options.classes:
            return True
        footer = _footer(self.files, self.paths[0])
        _, label = self._columns(footer, options)
        return label is not None and _class_names(_features(footer.schema).get(label)) is not None

    def open(self, split: str | None, options: Options) -> Listing:
        problems = Problems()
        footers = self._footers(self.by_split[split] if split else self.paths, problems)
        if not footers:
            raise DataError(f"{self.name}: no readable parquet file.", hint=f"vitrail data check '{self.name}'")
        image, label = self._columns(footers[0], options)
        values, classes, fixed = self._labels(footers, label, split, options, problems)
        counts = np.array([n for footer in footers for n in footer.counts], np.int64)
        per_file = [sum(footer.counts) for footer in footers]
        ids: Any = Numbered(relative([footer.path for footer in footers]), per_file)
        labels: Any = np.full(len(values), -1)
        several, rows = False, None
        if options.labelled and label:
            labels, kept, several = number(values, classes, ids, problems, places=fixed)
            if len(kept) < len(values):
                rows, ids = kept, Chosen(ids, kept)
                counts = np.bincount(np.repeat(np.arange(len(counts)), counts)[kept], minlength=len(counts))
            if split in (None, "train"):
                empty_classes(labels, classes, problems)
        shards = runs(counts, sum(footer.bytes for footer in footers), SMALL_BYTES)
        return ParquetImages(
            self.name, split, classes, labels, ids, several, say_if_sorted(labels, shards), problems=problems.found(),
            shards=shards, groups=self._groups(footers, image), rows=rows,
            footers=np.array([footer.digest for footer in footers]),
        )  # fmt: skip

    def _groups(self, footers: list[Footer], image: str) -> Groups:
        sizes = [n for footer in footers for n in footer.counts]
        starts = np.concatenate([[0], np.cumsum(sizes)[:-1]]).astype(np.int64)
        many = [len(footer.counts) for footer in footers]
        first = np.concatenate([[0], np.cumsum(many)[:-1]]).astype(np.int64)
        return Groups(self.files, [f.path for f in footers], image, starts, np.repeat(np.arange(len(footers)), many), first)

    def _footers(self, paths: Sequence[str], problems: Problems) -> list[Footer]:
        footers = []
        for path in paths:
            try:
                footers.append(_footer(self.files, path))
            except (OSError, ValueError) as error:
                problems.add("truncated-shard", f"{shown(path)}: {' '.join(str(error).split())[:120]}", plain=True)
        return footers

    def _columns(self, footer: Footer, options: Options) -> tuple[str, str | None]:
        names, features = footer.schema.names, _features(footer.schema)
        where = shown(footer.path)
        for asked in (options.image, options.label):
            if asked is not None and asked not in names:
                raise DataError(f"{where} has no column {asked!r}{nearest(asked, names)}.")
        image = options.image or _image_column(names, footer.schema, features)
        if image is None:
            raise DataError(
                f"{where}: none of the columns {', '.join(names)} holds images.",
                hint="a struct with the field 'bytes', or a binary column named by ?image=COLUMN",
            )
        if options.label or not options.labelled:
            return image, options.label
        marked = [name for name in names if _class_names(features.get(name)) is not None]
        usual = [name for name in LABEL_COLUMNS if name in names]
        if len(marked) > 1 and not usual:
            raise DataError(f"{where} has several label columns: {', '.join(marked)}.", hint=f"say which: ?label={marked[0]}")
        if not marked and not usual:
            raise DataError(
                f"{where}: none of the columns {', '.join(names)} is known to hold labels.",
                hint="add ?label=COLUMN to the address, or open it with labelled=False",
            )
        return image, (usual or marked)[0]

    def _labels(
        self, footers: list[Footer], label: str | None, split: str | None, options: Options, problems: Problems
    ) -> tuple[Values, tuple[str, ...], bool]:
        """(label values, class names, whether the names were given rather than found among the labels)."""
        if label is None:
            return np.full(sum(sum(footer.counts) for footer in footers), -1), (), True
        values = together([_values(self.files, footer, label) for footer in footers])
        fixed = options.classes or _class_names(_features(footers[0].schema).get(label))
        fixed = fixed or declared(self.files, os.path.dirname(footers[0].path))
        by_split = {split or "": values}
        if not fixed:  # then every split has a say
            for other in self.by_split:
                if other != split:
                    found = self._footers(self.by_split[other], problems)
                    by_split[other] = together([_values(self.files, footer, label) for footer in found])
        self._compare(footers, label, split, problems)
        return values, resolve(by_split, split or "", fixed, problems), bool(fixed)

    def _compare(self, footers: list[Footer], label: str, split: str | None, problems: Problems) -> None:
        """Files that name their classes have to name the same ones, within a split and across splits."""
        ours = _class_names(_features(footers[0].schema).get(label))
        others = [(footer.path, footer) for footer in footers[1:]]
        others += [(name, _footer(self.files, p[0])) for name, p in self.by_split.items() if name != split]
        for name, footer in others:
            theirs = _class_names(_features(footer.schema).get(label))
            found = difference(ours or (), theirs or (), split or footers[0].path, name) if theirs is not None else ""
            if found and ours is not None:
                problems.add("class-mismatch", found, plain=True)


def relative(paths: Sequence[str]) -> list[str]:
    """Paths without the folders they share, however the address was written."""
    paths = [os.path.normpath(path) for path in paths]
    shared = os.path.commonpath([os.path.dirname(path) for path in paths]) if len(paths) > 1 else os.path.dirname(paths[0])
    return [path[len(shared) :].lstrip("/") if shared else path for path in paths]


def _footer(files: Any, path: str) -> Footer:
    opened = open_file(files, path)
    meta = opened.metadata
    counts = [meta.row_group(g).num_rows for g in range(meta.num_row_groups)]
    size = files.size(path)
    tail = files.read_range(path, max(0, size - meta.serialized_size - 8), min(size, meta.serialized_size + 8))
    digest = int.from_bytes(hashlib.blake2b(tail, digest_size=8).digest(), "little", signed=True)
    unpacked = sum(meta.row_group(g).total_byte_size for g in range(meta.num_row_groups))
    return Footer(path, opened.schema_arrow, counts, digest, unpacked)


def _features(schema: Any) -> dict[str, Any]:
    """The column descriptions that `datasets` stores in the schema metadata, or {}."""
    raw = (schema.metadata or {}).get(b"huggingface")
    try:
        found = json.loads(raw)["info"]["features"] if raw else {}
    except (ValueError, KeyError, TypeError):
        return {}
    return found if isinstance(found, dict) else {}


def _class_names(feature: Any) -> tuple[str, ...] | None:
    """The names of a ClassLabel, also inside a list or Sequence of them."""
    if isinstance(feature, list) and len(feature) == 1:
        feature = feature[0]
    if isinstance(feature, dict) and "feature" in feature:
        return _class_names(feature["feature"])
    if isinstance(feature, dict) and feature.get("_type") == "ClassLabel" and feature.get("names"):
        return tuple(map(str, feature["names"]))
    return None


def _image_column(names: Sequence[str], schema: Any, features: dict[str, Any]) -> str | None:
    import pyarrow as pa

    structs, binaries = [], []
    for name in names:
        kind = schema.field(name).type
        if pa.types.is_struct(kind) and kind.get_field_index("bytes") >= 0:
            structs.append(name)
        elif pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
            binaries.append(name)
    marked = [name for name in names if isinstance(features.get(name), dict) and features[name].get("_type") == "Image"]
    usual = [name for name in IMAGE_COLUMNS if name in structs + binaries]
    choices = [name for name in marked if name in structs + binaries] or usual or structs or binaries
    return choices[0] if choices else None


def _values(files: Any, footer: Footer, label: str) -> Values:
    import pyarrow as pa

    column = open_file(files, footer.path).read(columns=[label], use_threads=False).column(0)
    if pa.types.is_integer(column.type):
        return np.asarray(column.fill_null(-1).to_numpy(), np.int64)
    several = label.lower() in ("labels", "tags", "categories")
    return [read_value(value, several and isinstance(value, str)) for value in column.to_pylist()]
