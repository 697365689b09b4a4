"""Where images come from: one address, one `Source`, no Dataset class to write.

    open_source("photos/", split="train")          a folder with one sub-folder a class
    open_source("labels.csv", split="val")         path,label[,split] rows; also .tsv and .jsonl
    open_source("data/", split="train[:98%]")      parquet files in the Hugging Face layout
    open_source("shards/train-{000..127}.tar")     tar shards as webdataset writes them
    open_source("hf://datasets/owner/name", …)     the hub
    open_source("s3://bucket/data", …)             object stores, through fsspec
    open_source("tfds:data/cifar10/3.0.2", …)      a folder that TFDS prepared, without TensorFlow
    open_source("vtab:cifar100", split="train800") the 19 tasks of VTAB-1k
    open_source("builtin:fashion", split="test")   packaged with Vitrail
    open_source((images, labels))                  arrays

A source knows its labels without reading an image, lists in the same order on every
platform, and reads any sample by its number. Everything random is someone else's job.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import os
import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable
from urllib.parse import parse_qsl

import numpy as np

from vitrail.data.names import Names, composed
from vitrail.data.problem import Problem, check_allow, refuse
from vitrail.data.split import role as split_role
from vitrail.data.split import select, without
from vitrail.errors import DataError, DecodeError, UsageError, nearest

__all__ = ["Listing", "Options", "Record", "Source", "list_splits", "open_source", "read_probes"]

Labels = np.ndarray | list[tuple[int, ...]]


class Record(NamedTuple):
    """One sample: an encoded file or a uint8 array (HW or HWC), its label(s), and a name to report it by."""

    data: bytes | np.ndarray
    label: int | tuple[int, ...]
    id: str


@runtime_checkable
class Source(Protocol):
    """What every consumer may rely on. Sources pickle, and workers and threads may share one."""

    name: str
    split: str | None
    classes: tuple[str, ...]
    multilabel: bool
    labels: Labels  # int64 array (-1: unlabelled), or one tuple a sample when multilabel
    notes: tuple[str, ...]  # sentences a result has to carry along
    problems: tuple[Problem, ...]  # what is wrong with the listing (all of it allowed, or this had raised)
    official: bool  # the order of records is the official one of a protocol
    shards: tuple[int, ...] | None  # lengths of the runs that are cheap to read together

    @property
    def fingerprint(self) -> str: ...
    def __len__(self) -> int: ...
    def read(self, i: int) -> Record: ...
    def id(self, i: int) -> str: ...


@dataclass(frozen=True)
class Options:
    """How to open; each reader takes what concerns it."""

    follow_links: bool = False
    labelled: bool = True
    allow: frozenset[str] = frozenset()
    label: str | None = None
    image: str | None = None
    order: str | None = None  # "official": the caller vouches for the record order
    classes: tuple[str, ...] | None = None  # the names that number the labels, where the caller fixes them
    exclude: str | None = None  # a file of ids that are left out (`vitrail data overlap` writes one)


class Ids(Protocol):
    """A sequence of names that can be hashed whole."""

    def __len__(self) -> int: ...
    def __getitem__(self, i: int, /) -> str: ...
    def update(self, digest: Any) -> None: ...


@dataclass
class Listing:
    """What all readers have in common; a reader adds `read(i)` and `sizes()`."""

    name: str
    split: str | None
    classes: tuple[str, ...]
    labels: Labels
    ids: Ids
    multilabel: bool = False
    notes: tuple[str, ...] = ()
    problems: tuple[Problem, ...] = ()
    official: bool = False
    shards: tuple[int, ...] | None = None
    _fingerprint: str | None = field(default=None, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def id(self, i: int) -> str:
        return self.ids[i]

    def label(self, i: int) -> int | tuple[int, ...]:
        return int(self.labels[i]) if isinstance(self.labels, np.ndarray) else self.labels[i]

    def read(self, i: int) -> Record:
        raise NotImplementedError

    def sizes(self) -> np.ndarray:
        """Bytes of each sample (or whatever stands for its content cheaply), for the fingerprint."""
        raise NotImplementedError

    def probes(self) -> Iterable[bytes]:
        """The content of some samples, where sizes alone would miss an edit."""
        return ()

    @property
    def fingerprint(self) -> str:
        """A hash over (id, size, label) of every sample in order, some contents, and the class names; computed once."""
        if self._fingerprint is None:
            digest = hashlib.blake2b(digest_size=16)
            self.ids.update(digest)
            digest.update(np.asarray(self.sizes(), "<i8").tobytes())
            for piece in label_bytes(self.labels):
                digest.update(piece)
            Names(self.classes).update(digest)
            for content in self.probes():
                digest.update(hashlib.blake2b(content, digest_size=16).digest())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint


PROBES = 256


def read_probes(source: Listing) -> Iterator[bytes]:
    """Evenly spaced samples (all of a small set); one that cannot be read counts as empty."""
    for i in np.unique(np.linspace(0, len(source) - 1, min(PROBES, len(source))).astype(np.int64)):
        try:
            data = source.read(int(i)).data
        except DecodeError:
            data = b""
        assert isinstance(data, bytes)
        yield data


def label_bytes(labels: Labels) -> Iterator[bytes]:
    """Labels as bytes, the same on every platform; in pieces, because there may be 300 million."""
    for at in range(0, len(labels), 1 << 20):
        piece = labels[at : at + (1 << 20)]
        flat = piece if isinstance(piece, np.ndarray) else [word for label in piece for word in (len(label), *label)]
        yield np.asarray(flat, "<i8").tobytes()


@dataclass(eq=False)
class Arrays(Listing):
    """Images that are already in memory: uint8 (N, H, W[, C]), or a list of arrays or of encoded files."""

    images: Sequence[Any] | np.ndarray = ()

    def read(self, i: int) -> Record:
        image = self.images[i]
        return Record(image if isinstance(image, bytes) else np.asarray(image), self.label(i), self.id(i))

    def sizes(self) -> np.ndarray:
        """Here the content itself: 8 bytes of a hash a sample; memory is fast."""
        words = (hashlib.blake2b(self._bytes(i), digest_size=8).digest() for i in range(len(self)))
        return np.frombuffer(b"".join(words), "<i8")

    def _bytes(self, i: int) -> bytes:
        image = self.images[i]
        return image if isinstance(image, bytes) else np.ascontiguousarray(image).tobytes()


def open_arrays(images: Any, labels: Any = None, *, classes: Sequence[str] | None = None, name: str = "arrays") -> Arrays:
    """(images, labels) -> a Source; labels are integers, or a list of tuples for several classes an image."""
    images, labels = _numpy(images), _numpy(labels)
    if isinstance(images, np.ndarray):
        _check_images(images)
    count = len(images)
    if labels is None:
        labels = np.full(count, -1)
    if len(labels) != count:
        raise DataError(f"{name}: {count} images but {len(labels)} labels.", hint="give one label an image")
    multilabel = not isinstance(labels, np.ndarray) and any(not np.isscalar(label) for label in labels)
    if multilabel:
        labels = [tuple(sorted({int(k) for k in label})) for label in labels]
        top = max((max(label, default=-1) for label in labels), default=-1)
    else:
        labels = np.asarray(labels)
        if labels.dtype.kind not in "iub" or labels.ndim != 1:
            raise DataError(f"{name}: labels of type {labels.dtype}, shape {labels.shape}; give N integers.")
        labels = labels.astype(np.int64)
        top = int(labels.max(initial=-1))
        if labels.min(initial=0) < -1:
            raise DataError(f"{name}: label {labels.min()} is negative.", hint="labels count from 0; -1 means unlabelled")
    names = tuple(map(str, classes)) if classes is not None else tuple(map(str, range(top + 1)))
    if top >= len(names):
        raise DataError(f"{name}: label {top}, but only {len(names)} class names.")
    return Arrays(name, None, names, labels, Names(map(str, range(count))), multilabel, images=images)


def _numpy(value: Any) -> Any:
    """A torch tensor (without importing torch) -> numpy; anything else unchanged."""
    return value.detach().cpu().numpy() if hasattr(value, "detach") else value


def _check_images(images: np.ndarray) -> None:
    if images.dtype != np.uint8:
        raise DataError(
            f"images are {images.dtype}; Vitrail takes uint8 in 0..255 and does the scaling itself.",
            hint="for floats in 0..1: (images * 255).round().astype('uint8')",
        )
    if images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] not in (1, 3, 4)):
        swapped = images.ndim == 4 and images.shape[1] in (1, 3, 4)
        raise DataError(
            f"images have shape {images.shape}; give (N, height, width) or (N, height, width, channels).",
            hint="images.transpose(0, 2, 3, 1)" if swapped else None,
        )


# ---------------------------------------------------------------- opening


def open_source(
    where: Any,
    split: str | None = None,
    *,
    follow_links: bool = False,
    allow: str | Collection[str] = (),
    labelled: bool = True,
    label: str | None = None,
    image: str | None = None,
    order: str | None = None,
    split_seed: int = 0,
    classes: Sequence[str] | None = None,
) -> Source:
    """Open any data as a `Source`.

    split: "train", "val", "test", a part of one ("train[:98%]", "train[98%:]", "train[:1000]",
        drawn over a permutation seeded with `split_seed`), or a sum ("train[:800]+train[90%:][:200]").
    follow_links: links that lead out of the data set are refused unless this is set.
    allow: kinds of problems to accept (`vitrail.data.problem.KINDS`), or "all".
    labelled: False takes a folder of images without classes; labels are -1.
    classes: the class names in the order that numbers the labels; without them, the data's own, sorted.
    label, image: the columns of a table or parquet file, where their names do not tell.
    order: "official" when the records are in the order a protocol defines (TFDS, VTAB); parts are
        then taken in that order, not over a permutation.
    """
    if order not in (None, "official"):
        raise UsageError(f"order={order!r}; the only order that can be vouched for is 'official'.")
    fixed = tuple(map(composed, classes)) if classes is not None else None
    options = Options(follow_links, labelled, check_allow(allow), label, image, order, fixed)
    if isinstance(where, (tuple, list)) and where and all(isinstance(one, str | os.PathLike) for one in where):
        from vitrail.data.folder import open_files

        listed = open_files(where)
        return select(lambda _base: listed, split, split_seed, bool(order))
    if isinstance(where, (tuple, list)) and len(where) == 2:
        whole = open_arrays(*where, classes=classes)
        return select(lambda _base: whole, split, split_seed, bool(order))
    if isinstance(where, np.ndarray) or hasattr(where, "detach"):
        raise UsageError("an array needs its labels: open_source((images, labels)).")
    if isinstance(where, Listing) or (isinstance(where, Source) and not isinstance(where, str)):
        return select(lambda _base: where, split, split_seed, bool(order))
    reader, options = find_reader(os.fspath(where), options)
    return select(functools.partial(_open_split, reader, options), split, split_seed, bool(order))


def list_splits(where: str | os.PathLike[str], *, image: str | None = None, label: str | None = None) -> tuple[str, ...]:
    """The splits an address has ('train', 'val', 'test' in this order, then others); () when it has none."""
    reader, _ = find_reader(os.fspath(where), Options(allow=check_allow("all"), image=image, label=label))
    return reader.splits()


class Reader(Protocol):
    """One kind of storage at one address."""

    name: str
    tolerant: bool  # bears up to 1 % of damaged samples

    def splits(self) -> tuple[str, ...]: ...
    def open(self, split: str | None, options: Options) -> Listing: ...


def _open_split(reader: Reader, options: Options, split: str | None) -> Any:
    available = reader.splits()
    split = split if split in available or split is None else split_role(split) or split
    if len(available) == 1 and split is None:
        split = available[0]
    if available and split is None:
        raise UsageError(f"{reader.name} has the splits {', '.join(available)}.", hint=f"say which: split='{available[0]}'")
    if available and split not in available:
        part = f"'{available[0]}[:90%]' and '{available[0]}[90%:]'"
        raise DataError(
            f"{reader.name} has no split {split!r}, only {', '.join(available)}{nearest(split or '', available)}.",
            hint=f"name one of these, or cut one in two: {part}",
        )
    if not available and split not in (None, "train"):
        raise DataError(
            f"{reader.name} is not divided into splits, so there is no {split!r}.",
            hint="cut it in two: 'train[:90%]' and 'train[90%:]'",
        )
    source = reader.open(split if available else None, options)
    refuse(source.problems, len(source), options.allow, reader.name, reader.tolerant)
    if not len(source):
        raise DataError(f"{reader.name}{f' split {split}' if split else ''}: no images found.", hint=_looked_for())
    if options.labelled and not source.multilabel and bool(np.all(np.asarray(source.labels) < 0)):
        source.notes += ("no sample has a label",)
    if options.order == "official":
        source = dataclasses.replace(source, official=True)
    if not available and split is not None:
        source = dataclasses.replace(source, split=split)
    return source if options.exclude is None else without(source, options.exclude)


def _looked_for() -> str:
    from vitrail.data.header import EXTENSIONS

    return f"looked for {' '.join(sorted(EXTENSIONS))}, parquet, tar, csv and jsonl"


def find_reader(where: str, options: Options) -> tuple[Reader, Options]:
    """The reader for an address; options written in it (`?label=fine_label`) win over the defaults."""
    if where.startswith("builtin:"):
        from vitrail.data.builtin import Builtin

        return Builtin(where), options
    if where.startswith("vtab:"):
        from vitrail.data.vtab import Vtab

        return Vtab(where), options
    address, options = _query(where, options)
    if address.startswith("tfds:"):
        from vitrail.data.tfrecord import Tfds

        return Tfds(address, options), options
    if address.startswith(("hf://", "https://huggingface.co/datasets/")):
        from vitrail.data.hub import open_hub

        return open_hub(address.replace("https://huggingface.co/", "hf://"), options), options
    from vitrail.data.files import CloudFiles, LocalFiles

    scheme = re.match(r"([a-z][a-z0-9+.-]+)://", address)
    if scheme and scheme[1] in ("http", "https"):
        raise UsageError(f"{where}: a web address is no data source.", hint="download it first, or use hf:// or a store such as s3://")
    if scheme and scheme[1] != "file":
        return stored(CloudFiles(scheme[1]), address.split("://", 1)[1], address, options), options
    return stored(LocalFiles(), os.path.expanduser(address.removeprefix("file://")), address, options), options


_QUERY = re.compile(r"(.*?)\?([\w-]+=[^&?]*(?:&[\w-]+=[^&?]*)*)", re.DOTALL)  # a lone ? is part of a pattern


def _query(where: str, options: Options) -> tuple[str, Options]:
    """Split 'address?label=x&allow=empty-class&exclude=copies.csv' unless a file really has that name."""
    found = _QUERY.fullmatch(where)
    if not found or os.path.exists(where):
        return where, options
    values: dict[str, Any] = dict(parse_qsl(found[2], keep_blank_values=True))
    known = ("label", "image", "order", "allow", "follow-links", "exclude")
    for key in values:
        if key not in known:
            raise UsageError(f"{where}: unknown option {key!r}{nearest(key, known)}.")
    if "allow" in values:
        values["allow"] = options.allow | check_allow(values["allow"].split(","))
    if "follow-links" in values:
        values["follow_links"] = values.pop("follow-links").lower() in ("1", "yes", "true", "on", "")
    if values.get("order", "official") != "official":
        raise UsageError(f"{where}: the only order that can be vouched for is 'official'.")
    return found[1], dataclasses.replace(options, **values)


def stored(files: Any, path: str, name: str, options: Options) -> Reader:
    """The reader for files at `path`, by what is there: a table, shards, parquet, or a folder of classes."""
    if not path.lower().endswith(TABLE_ENDINGS + SHARD_ENDINGS):
        if not files.is_dir(path):
            _refuse_path(files, path, name)
        kind, found = _kind(files, path, name)
        if kind == "folder":
            from vitrail.data.folder import Folder

            return Folder(files, path, name)
    else:
        kind, found = _by_ending(path), files.expand(path)
    if kind == "table":
        from vitrail.data.table import Table

        return Table(files, found, name, options)
    if kind == "parquet":
        from vitrail.data.parquet import Parquet

        return Parquet(files, found, name)
    from vitrail.data.tar import Tar

    return Tar(files, found, name)


def _refuse_path(files: Any, path: str, name: str) -> None:
    if not files.exists(path):
        near = nearest(os.path.basename(path.rstrip("/")), files.names(os.path.dirname(path.rstrip("/")) or "."))
        raise DataError(f"{name}: no such file or folder{near}.", hint="give a folder, csv, jsonl, parquet or tar address")
    from vitrail.data.header import EXTENSIONS

    if os.path.splitext(path)[1].lower() in EXTENSIONS:
        raise DataError(f"{name} is one image, not a data set.", hint=f"vitrail predict {name}")
    raise DataError(f"{name}: cannot tell what kind of data this is.", hint=_looked_for())


TABLE_ENDINGS = (".csv", ".tsv", ".jsonl", ".ndjson")
SHARD_ENDINGS = (".parquet", ".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".tar.zst")
TABLES = ("metadata", "labels", "annotations", "index", "data")


def _by_ending(path: str) -> str:
    low = path.lower()
    return "table" if low.endswith(TABLE_ENDINGS) else "parquet" if low.endswith(".parquet") else "tar"


def _kind(files: Any, path: str, name: str) -> tuple[str, list[str]]:
    """What a folder holds ("parquet", "tar", "table" or "folder"), and its files.

    Shards lie at the top or, as on the hub, in a few folders below it; a folder of many
    folders is one of classes and is not searched.
    """
    depth = 3 if len(files.folders(path)) <= 16 else 1
    found = {kind: files.find(path, f".{kind}", depth=depth) for kind in ("parquet", "tar")}
    kinds = [kind for kind in found if found[kind]]
    if len(kinds) > 1:
        raise DataError(
            f"{name} holds parquet files and tar shards; it is not clear which are the data.",
            hint=f"name a pattern or a sub-folder: {found['parquet'][0]} or {found['tar'][0]}",
        )
    if kinds:
        return kinds[0], found[kinds[0]]
    names = files.names(path)
    stem = next((stem for stem in TABLES if any(stem + end in names for end in TABLE_ENDINGS)), None)
    if stem:
        tables = [stem + end for end in TABLE_ENDINGS if stem + end in names]
    else:  # train.csv, val.csv: one table a split
        tables = [one for one in names if one.lower().endswith(TABLE_ENDINGS) and split_role(os.path.splitext(one)[0])]
    if not tables:  # train/metadata.csv, val/metadata.csv
        inside = (f"{folder}/metadata{end}" for folder in files.folders(path) if split_role(folder) for end in TABLE_ENDINGS)
        tables = [one for one in inside if files.exists(f"{path.rstrip('/')}/{one}")]
    return ("table", [f"{path.rstrip('/')}/{one}" for one in tables]) if tables else ("folder", [])
