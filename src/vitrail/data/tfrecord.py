"""TFRecord files and tf.train.Example messages, and the folders TFDS makes of them, without TensorFlow.

    tfds:/data/tensorflow_datasets/cifar100/3.0.2        a prepared data set: image and label by record

    record   = length u64 | masked CRC-32C of the length u32 | data | masked CRC-32C of the data u32
    Example  = 1: Features = 1: entry of a map = 1: name, 2: Feature
    Feature  = 1: bytes_list | 2: float_list | 3: int64_list, each 1: values, packed or one by one

TFDS numbers the records of a split through its shards in order, and its slices ("train[:800]")
are ranges of these numbers; so is the order of the sources made here, which call themselves
official. Labels are read at opening, and only from the shards that hold the range asked for.
"""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data import decode
from vitrail.data.files import LocalFiles
from vitrail.data.names import Names
from vitrail.data.source import Listing, Options, Record, read_probes
from vitrail.data.split import by_role, role
from vitrail.errors import DataError, DecodeError, nearest

__all__ = ["Prepared", "RecordImages", "Tfds", "find_prepared", "parse_example", "read_range", "record_places"]

Fields = Mapping[str, Any]  # name -> list of bytes, or an array of float32 or int64


# ---------------------------------------------------------------- records


def _crc_table() -> list[int]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return table


_TABLE = _crc_table()


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and offset as TFRecord stores it."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = _TABLE[(crc ^ byte) & 255] ^ (crc >> 8)
    crc ^= 0xFFFFFFFF
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def record_places(path: str | Path) -> tuple[np.ndarray, np.ndarray]:
    """(start, length) of the data of every record. A file that ends early, or is no TFRecord, is refused."""
    starts, lengths = [], []
    with _mapped(path) as view:
        at, end = 0, len(view)
        while at < end:
            head = view[at : at + 12]
            if len(head) < 12:
                raise DataError(f"{path} ends within a record, at byte {at:,}.", hint="copy or prepare the file again")
            length, check = struct.unpack("<QI", head)
            if check != masked_crc(head[:8]):
                raise DataError(f"{path} is no TFRecord file, or damaged at byte {at:,}.", hint="copy or prepare the file again")
            if at + 16 + length > end:
                raise DataError(f"{path} ends within a record, at byte {at:,}.", hint="copy or prepare the file again")
            starts.append(at + 12)
            lengths.append(length)
            at += 16 + length
    return np.array(starts, np.int64), np.array(lengths, np.int64)


class _mapped:
    """A file as bytes that are read where they are touched; empty files map to nothing."""

    def __init__(self, path: str | Path) -> None:
        self.path = path

    def __enter__(self) -> mmap.mmap | bytes:
        self.file = open(self.path, "rb")
        self.map = mmap.mmap(self.file.fileno(), 0, access=mmap.ACCESS_READ) if os.fstat(self.file.fileno()).st_size else b""
        return self.map

    def __exit__(self, *_: object) -> None:
        self.file.close()
        if isinstance(self.map, mmap.mmap):
            with contextlib.suppress(BufferError):  # an error on its way out still holds a piece: freed with it
                self.map.close()


# ---------------------------------------------------------------- messages


def parse_example(data: bytes | memoryview, wanted: Collection[str] | None = None) -> dict[str, Any]:
    """A serialised tf.train.Example -> {name: list of bytes, or an array}; only the fields in `wanted`, if given."""
    try:
        found: dict[str, Any] = {}
        view = memoryview(data)
        for number, features in _messages(view):
            if number == 1:
                for inner, entry in _messages(features):
                    if inner == 1:
                        _entry(entry, wanted, found)
        return found
    except (IndexError, ValueError, struct.error) as error:
        raise DecodeError("corrupt", f"no tf.train.Example: {error}") from None


def _entry(entry: memoryview, wanted: Collection[str] | None, found: dict[str, Any]) -> None:
    name, feature = "", memoryview(b"")
    for number, value in _messages(entry):
        if number == 1:
            name = bytes(value).decode()
        elif number == 2:
            feature = value
    if wanted is None or name in wanted:
        found[name] = _feature(feature)


def _feature(feature: memoryview) -> Any:
    for kind, values in _messages(feature):
        if kind == 1:
            return [bytes(value) for number, value in _messages(values) if number == 1]
        if kind == 2:
            return np.concatenate([np.empty(0, "<f4"), *(np.frombuffer(value, "<f4") for _, value in _messages(values))])
        if kind == 3:
            return np.array([n for _, value in _messages(values) for n in _varints(value)], np.int64)
    return []


def _messages(view: memoryview) -> Iterator[tuple[int, memoryview]]:
    """(field number, content) of a message; a fixed or variable number is given as its own bytes."""
    at = 0
    while at < len(view):
        tag, at = _varint(view, at)
        wire, start = tag & 7, at
        if wire == 2:
            length, start = _varint(view, at)
            at = start + length
        elif wire == 0:
            _, at = _varint(view, at)
        elif wire in (1, 5):
            at = start + (8 if wire == 1 else 4)
        else:
            raise ValueError(f"wire type {wire}")
        if at > len(view):
            raise ValueError("a field is longer than its message")
        yield tag >> 3, view[start:at]


def _varint(view: memoryview, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = view[at]
        value |= (byte & 127) << shift
        at += 1
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise ValueError("a number of more than 64 bits")


def _varints(view: memoryview) -> Iterator[int]:
    at = 0
    while at < len(view):
        value, at = _varint(view, at)
        value &= (1 << 64) - 1
        yield value - (1 << 64) if value >> 63 else value


# ---------------------------------------------------------------- folders that TFDS prepared


@dataclass(frozen=True)
class Prepared:
    """One version of one data set as TFDS wrote it: dataset_info.json, label names, shards."""

    path: Path
    name: str
    counts: Mapping[str, tuple[int, ...]]  # split -> records of each shard

    def length(self, split: str) -> int:
        return sum(self._counts(split))

    def _counts(self, split: str) -> tuple[int, ...]:
        if split not in self.counts:
            raise DataError(f"{self.path} has no split {split!r}{nearest(split, self.counts)}.")
        return self.counts[split]

    def shards(self, split: str) -> list[Path]:
        """The files of a split, in order; all of them have to be there."""
        counts = self._counts(split)
        found = {}
        for file in self.path.iterdir():
            match = re.fullmatch(rf".+-{re.escape(split)}\.tfrecord-(\d{{5,}})-of-(\d{{5,}})", file.name)
            if match and int(match[2]) == len(counts):
                found[int(match[1])] = file
        missing = [k for k in range(len(counts)) if k not in found]
        if missing:
            raise DataError(
                f"{self.path}: shard {missing[0]:05d}-of-{len(counts):05d} of {split} is missing ({len(missing)} in all).",
                hint="copy the whole folder, or prepare it again with tfds build",
            )
        return [found[k] for k in range(len(counts))]

    def class_names(self, label: str) -> tuple[str, ...] | None:
        """Names of a ClassLabel field, where TFDS stored them."""
        file = self.path / f"{label}.labels.txt"
        return tuple(file.read_text("utf-8").splitlines()) if file.is_file() else None


def find_prepared(where: str | Path, dataset: str | None = None, major: int | None = None) -> Prepared:
    """The prepared folder at `where`, or the newest version of `dataset` ("eurosat/rgb") below it."""
    base = Path(where).expanduser()
    base = base / dataset if dataset and not (base / "dataset_info.json").is_file() else base
    if not (base / "dataset_info.json").is_file():
        versions = {tuple(map(int, v.name.split("."))): v for v in base.glob("*.*.*") if re.fullmatch(r"\d+\.\d+\.\d+", v.name)}
        fitting = {number: v for number, v in versions.items() if major in (None, number[0])}
        if not fitting:
            have = ", ".join(sorted(v.name for v in versions.values()))
            wanted = f"version {major}.*.*" if major is not None else "prepared version"
            raise DataError(
                f"{base} holds no {wanted} of a TFDS data set" + (f", only {have}." if have else "."),
                hint=f"prepare it once where TensorFlow is (tfds build {dataset or base.name}) and copy the folder here",
            )
        base = fitting[max(fitting)]
    return _prepared(base)


def _prepared(path: Path) -> Prepared:
    try:
        info = json.loads((path / "dataset_info.json").read_text("utf-8"))
        form = info.get("fileFormat", "tfrecord") or "tfrecord"
        splits = {s["name"]: tuple(int(n) for n in s.get("shardLengths", ())) for s in info["splits"]}
        name = str(info["name"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path}/dataset_info.json cannot be read ({error}).", hint="copy the folder again") from None
    if form != "tfrecord":
        raise DataError(f"{path} is stored as {form}; TFRecord is read here.", hint="tfds build --file_format=tfrecord")
    without = [split for split, counts in splits.items() if not counts]
    if without:
        raise DataError(f"{path} does not say how many records the shards of {without[0]} have.", hint="prepare it again with tfds build")
    return Prepared(path, name, splits)


@dataclass(eq=False)
class RecordImages(Listing):
    """Images in TFRecord files; the files are read at (shard, start, length)."""

    paths: Names = field(default_factory=Names)
    shard: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    starts: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    lengths: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    image: str = "image"
    times: int = 1  # of the pixel values: 255 where masks are stored as 0 and 1
    files: LocalFiles = field(default_factory=LocalFiles)

    def read(self, i: int) -> Record:
        name = self.id(i)
        data = self.files.read_range(self.paths[int(self.shard[i])], int(self.starts[i]), int(self.lengths[i]))
        held = parse_example(data, (self.image,)).get(self.image)
        if not held:
            raise DecodeError("empty", f"the record has no {self.image!r}", where=name)
        if self.times == 1:
            return Record(held[0], self.label(i), name)
        pixels = decode.pixels(held[0], where=name).astype(np.int64) * self.times
        return Record(np.clip(pixels, 0, 255).astype(np.uint8), self.label(i), name)

    def sizes(self) -> np.ndarray:
        return self.lengths

    def probes(self) -> Iterable[bytes]:
        return read_probes(self) if self.times == 1 else ()


Label = Callable[[Fields], int]


def read_range(
    prepared: Prepared,
    ranges: Sequence[tuple[str, int, int]],
    *,
    name: str,
    split: str | None,
    classes: Sequence[str],
    label: Label,
    fields: Collection[str],
    times: int = 1,
) -> RecordImages:
    """The records of some ranges (TFDS split, from, to), one after another, labelled by `label` of their `fields`."""
    paths: list[str] = []
    shard, starts, lengths, ids, labels = [], [], [], [], []
    for which, first, last in ranges:
        files, counts = prepared.shards(which), prepared.counts[which]
        if not 0 <= first <= last <= sum(counts):
            raise DataError(f"{prepared.path} has {sum(counts):,} records in {which}, not {last:,}.")
        begin = 0
        for file, count in zip(files, counts):
            low, high = max(first, begin) - begin, min(last, begin + count) - begin
            begin += count
            if low >= high:
                continue
            at, length = record_places(file)
            if len(at) != count:
                raise DataError(f"{file} has {len(at):,} records, and dataset_info.json says {count:,}.", hint="copy it again")
            labels += _labels(file, at[low:high], length[low:high], label, fields, len(classes))
            shard += [len(paths)] * (high - low)
            starts.append(at[low:high])
            lengths.append(length[low:high])
            ids += [f"{file.name}:{place}" for place in range(low, high)]
            paths.append(str(file))
    none = np.empty(0, np.int64)
    return RecordImages(
        name, split, tuple(classes), np.array(labels, np.int64), Names(ids), official=True, paths=Names(paths),
        shard=np.array(shard, np.int64), starts=np.concatenate([none, *starts]), lengths=np.concatenate([none, *lengths]), times=times,
    )  # fmt: skip


def _labels(file: Path, at: np.ndarray, length: np.ndarray, label: Label, fields: Collection[str], classes: int) -> list[int]:
    found = []
    with _mapped(file) as view, memoryview(view) as whole:
        for place, (start, size) in enumerate(zip(at.tolist(), length.tolist())):
            with whole[start : start + size] as record:
                values = parse_example(record, fields)
            missing = [name for name in fields if name not in values]
            if missing:
                raise DataError(f"{file}: record {place} has no field {missing[0]!r}.")
            k = label(values)
            if not 0 <= k < classes:
                raise DataError(f"{file}: record {place} has label {k}, and there are {classes} classes.")
            found.append(k)
    return found


class Tfds:
    """The reader of a `tfds:FOLDER` address: `image` and `label` of every record, or another label field by `?label=`."""

    tolerant = False

    def __init__(self, where: str, options: Options) -> None:
        self.name = where
        self.prepared = find_prepared(where.removeprefix("tfds:"))
        named = {split: role(split) or split for split in self.prepared.counts}
        self._splits = by_role(named)
        self.label = options.label or "label"

    def splits(self) -> tuple[str, ...]:
        return tuple(self._splits)

    def open(self, split: str | None, options: Options) -> Listing:
        assert split is not None
        own, label = self._splits[split], self.label
        names = options.classes or self.prepared.class_names(label)
        if names is None:
            raise DataError(f"{self.name} has no names for the field {label!r}.", hint="?label=FIELD with a FIELD.labels.txt, or classes=")
        whole = [(own, 0, self.prepared.length(own))]
        return read_range(
            self.prepared, whole, name=self.name, split=split, classes=names, label=lambda f: int(f[label][0]), fields=(label,)
        )  # fmt: skip
