"""A table that names images: csv, tsv or jsonl with a path, a label or labels, and perhaps a split.

    path,label,split          cats/1.jpg,cat,train
    {"file_name": "1.jpg", "labels": ["cat", "outdoor"]}

Columns are known by their usual names, or by `?image=COLUMN&label=COLUMN`. Paths are relative
to the table. Files named train.csv, val.csv, test.csv in one folder, or train/metadata.csv,
val/metadata.csv below it, are the splits of one data set. UTF-8 with or without a byte order mark, any line ends, quotes as in RFC 4180.
"""

from __future__ import annotations

import csv
import io
import json
import os
import posixpath
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from vitrail.data.classes import declared
from vitrail.data.files import is_image
from vitrail.data.folder import ImageFiles
from vitrail.data.labels import Value, empty_classes, number, read_value, resolve
from vitrail.data.names import Names, composed, shown
from vitrail.data.problem import Problems
from vitrail.data.source import Listing, Options
from vitrail.data.split import by_role, role
from vitrail.errors import DataError, nearest

__all__ = ["Table"]

IMAGE_COLUMNS = (
    "path", "file_name", "filename", "file", "filepath", "file_path", "image", "image_path", "img", "img_path",
)  # fmt: skip
LABEL_COLUMNS = ("label", "labels", "class", "class_name", "category", "target", "classes", "categories", "tags")
SEVERAL = ("labels", "classes", "categories", "tags")
SPLIT_COLUMNS = ("split", "subset", "partition", "set")


@dataclass
class Rows:
    """The columns that matter, one entry a row."""

    paths: list[str] = field(default_factory=list)
    labels: list[Value] = field(default_factory=list)
    splits: list[str] = field(default_factory=list)


class Table:
    """The reader of one table, or of one table a split."""

    tolerant = False

    def __init__(self, files: Any, paths: Sequence[str], name: str, options: Options) -> None:
        self.files, self.paths, self.name, self.options = files, list(paths), name, options
        self.folder = posixpath.commonpath([posixpath.dirname(path) for path in self.paths])
        self._read: Rows | None = None

    def splits(self) -> tuple[str, ...]:
        return tuple(self._splits(self._rows()))

    def _splits(self, rows: Rows) -> dict[str, str]:
        return by_role({own: role(own) or own for own in sorted(set(rows.splits)) if own})

    def open(self, split: str | None, options: Options) -> Listing:
        problems = Problems()
        rows = self._rows()
        names = self._splits(rows)
        own = names[split] if split else ""
        here = [i for i, one in enumerate(rows.splits) if one == own or not split]
        if names:
            for i, one in enumerate(rows.splits):
                if not one:
                    problems.add("missing-split", rows.paths[i])
        real = self._on_disk(rows, set(here), problems)
        kept, seen = [], set()
        for i in here:
            path = rows.paths[i]
            if path in seen:
                problems.add("duplicate-id", path)
            elif path and real[i] is not None:
                kept.append(i)
            seen.add(path)
        _count_elsewhere(rows, here, problems)
        fixed = options.classes or declared(self.files, self.folder)
        groups = {role_of: _labels_of(rows, own_name) for role_of, own_name in names.items()} or {"": rows.labels}
        classes = resolve(groups, split or "", fixed, problems) if options.labelled else ()
        ids = [rows.paths[i] for i in kept]
        labels: Any = np.full(len(kept), -1)
        several = False
        if options.labelled:
            labels, places, several = number([rows.labels[i] for i in kept], classes, ids, problems, places=False)
            kept, ids = [kept[k] for k in places], [ids[k] for k in places]
            if split in (None, "train"):
                empty_classes(labels, classes, problems)
        paths = [real[i] or "" for i in kept]
        return ImageFiles(
            self.name, split, classes, labels, Names(map(composed, ids)), several, problems=problems.found(),
            files=self.files, root=self.folder, paths=Names(paths),
        )  # fmt: skip

    def _rows(self) -> Rows:
        if self._read is None:
            self._read = Rows()
            for path in self.paths:
                place, base = posixpath.split(path)
                own = posixpath.splitext(base)[0]
                own = own if role(own) or place == self.folder else posixpath.basename(place)  # train/metadata.csv
                start = len(self._read.paths)
                _read_table(self.files.read(path), path, own if len(self.paths) > 1 else "", self.options, self._read)
                inside = place[len(self.folder) :].strip("/")
                for i in range(start, len(self._read.paths) if inside else 0):
                    self._read.paths[i] = posixpath.join(inside, self._read.paths[i]) if self._read.paths[i] else ""
        return self._read

    def _on_disk(self, rows: Rows, here: set[int], problems: Problems) -> list[str | None]:
        """Each row's path as the disk spells it, or None; counts rows of this split without files, and files without rows."""
        folders: dict[str, dict[str, str]] = {}
        real: list[str | None] = []
        named: dict[str, set[str]] = {}
        for i, path in enumerate(rows.paths):
            folder, base = os.path.split(path)
            if folder not in folders:
                there = folder if folder.startswith("/") else os.path.join(self.folder, folder).rstrip("/")
                folders[folder] = {composed(name): name for name in self.files.names(there or ".")}
                named[folder] = set()
            spelled = folders[folder].get(composed(base)) if base else None
            named[folder].add(composed(base))
            real.append(f"{folder}/{spelled}" if spelled and folder else spelled)
            if i not in here:
                continue
            if not path:
                problems.add("missing-image", f"row {i + 1:,}")
            elif spelled is None:
                problems.add("missing-file", path)
        for folder, listing in folders.items():
            for name in sorted(set(listing) - named[folder]):
                if is_image(name) and not name.startswith("."):
                    problems.add("extra-file", f"{folder}/{name}" if folder else name)
        return real


def _labels_of(rows: Rows, split: str) -> list[Value]:
    return [label for label, one in zip(rows.labels, rows.splits) if one == split]


def _count_elsewhere(rows: Rows, here: list[int], problems: Problems) -> None:
    """Rows of this split whose path another split names too."""
    mine = {rows.paths[i] for i in here}
    others = set(range(len(rows.paths))) - set(here)
    for path in sorted({rows.paths[i] for i in others} & mine - {""}):
        problems.add("duplicate-id", f"{path} (in more than one split)")


# ---------------------------------------------------------------- reading


def _read_table(data: bytes, path: str, split: str, options: Options, rows: Rows) -> None:
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(
            f"{shown(path)} is not UTF-8 (byte {data[error.start]:#04x} at {error.start:,}).",
            hint="save it as UTF-8: iconv -f latin1 -t utf-8",
        ) from None
    if path.lower().endswith((".jsonl", ".ndjson")):
        _collect(_json_rows(text, path), path, split, options, rows)
    else:
        _collect(_csv_rows(text, path), path, split, options, rows)


def _json_rows(text: str, path: str) -> Iterator[dict[str, Any]]:
    for at, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                row = json.loads(line)
            except ValueError as error:
                raise DataError(f"{shown(path)}, line {at}: {error}.", hint="one JSON object a line") from None
            if not isinstance(row, dict):
                raise DataError(f"{shown(path)}, line {at}: not an object.", hint='one {"path": …, "label": …} a line')
            yield row


def _csv_rows(text: str, path: str) -> Iterator[dict[str, Any]]:
    first = text.split("\n", 1)[0]
    mark = "\t" if path.lower().endswith(".tsv") else ";" if ";" in first and "," not in first else ","
    csv.field_size_limit(1 << 20)
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=mark, strict=True)
    header: list[str] | None = None
    try:
        for row in reader:
            if not row or not any(cell.strip() for cell in row):
                continue
            if header is None:
                header = [cell.strip() for cell in row]
                if is_image(header[0]):  # no header: path, label, split
                    header = ["path", "label", "split"][: len(row)]
                else:
                    continue
            if len(row) > len(header):
                raise DataError(
                    f"{shown(path)}, line {reader.line_num}: {len(row)} cells under {len(header)} columns.",
                    hint='put quotes around a cell that holds the separator: "a, b"',
                )
            yield dict(zip(header, row))
    except csv.Error as error:
        raise DataError(f"{shown(path)}, line {reader.line_num}: {error}.", hint="check its quotes") from None


def _collect(table: Iterator[dict[str, Any]], path: str, split: str, options: Options, rows: Rows) -> None:
    columns: tuple[str, str | None, str | None] | None = None
    for row in table:
        if columns is None:
            columns = _columns(list(row), path, options)
        image, label, split_column = columns
        rows.paths.append(_clean(row.get(image)))
        rows.labels.append(read_value(row.get(label), label.lower() in SEVERAL) if label else None)
        rows.splits.append(split or (str(row.get(split_column) or "").strip() if split_column else ""))


def _clean(path: Any) -> str:
    text = str(path or "").strip().removeprefix("./")
    return text.replace("\\", "/") if "\\" in text and "/" not in text else text


def _columns(known: list[str], path: str, options: Options) -> tuple[str, str | None, str | None]:
    """(image, label, split) as this table spells them."""
    spelled = {name.strip().lower(): name for name in reversed(known)}

    def find(asked: str | None, usual: Sequence[str]) -> str | None:
        if asked is not None and asked.lower() not in spelled:
            raise DataError(f"{shown(path)} has no column {asked!r}{nearest(asked, known)}.")
        return spelled[asked.lower()] if asked else next((spelled[name] for name in usual if name in spelled), None)

    image, label = find(options.image, IMAGE_COLUMNS), find(options.label, LABEL_COLUMNS)
    if image is None:
        raise DataError(
            f"{shown(path)}: none of the columns {', '.join(map(shown, known))} is known to hold paths.",
            hint="call one 'path', or add ?image=COLUMN to the address",
        )
    if label is None and options.labelled:
        raise DataError(
            f"{shown(path)}: none of the columns {', '.join(map(shown, known))} is known to hold labels.",
            hint="call one 'label', or add ?label=COLUMN to the address",
        )
    return image, label, find(None, SPLIT_COLUMNS)
