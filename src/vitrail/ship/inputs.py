"""What `vitrail predict` is pointed at, as one stream of items: images, folders, patterns, URLs, lists, any source.

    photo.jpg   photos/   'photos/**/*.png'   https://host/cat.jpg   list.txt   -   (a list on standard input)
    labels.csv  data.parquet  'shards-{000..127}.tar'  hf://datasets/owner/name  builtin:fashion   (data.source)

An item has a name and a way to get its bytes; nothing is read before it is asked for. A
folder gives every image below it, whatever its sub-folders mean; with `split` it is opened
as a data set instead. All but standard input know their length, so ranks can take parts.
"""

from __future__ import annotations

import glob
import hashlib
import itertools
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.data.decode import MAX_BYTES
from vitrail.data.header import EXTENSIONS
from vitrail.data.names import Names, shown
from vitrail.data.source import Source, open_source
from vitrail.errors import DataError, DecodeError, UsageError, VitrailError

__all__ = ["Inputs", "Item", "open_inputs"]

URL_TIMEOUT_S = 30.0
LISTS = (".txt", ".lst", ".list")


@dataclass(frozen=True)
class Item:
    """One image: its place in the stream, its name, its label where the source has one, and how to read it."""

    index: int
    id: str
    label: str | None
    read: Callable[[], bytes | np.ndarray]


class Inputs:
    """Items in a fixed order. `parts` are sequences of (id, label, reader) with a known length, or one open stream."""

    def __init__(self, parts: Sequence[Part], stream: Iterable[str] | None = None) -> None:
        self.parts = parts
        self.stream = stream
        self.ends = list(itertools.accumulate(len(part) for part in parts))

    def __len__(self) -> int:
        if self.stream is not None:
            raise UsageError("standard input has no length.", hint="write the list to a file and give its name")
        return self.ends[-1] if self.ends else 0

    @property
    def total(self) -> int | None:
        return None if self.stream is not None else len(self)

    @property
    def labelled(self) -> bool:
        return any(part.labelled for part in self.parts)

    def items(self, start: int = 0, stop: int | None = None) -> Iterator[Item]:
        """Items number start .. stop - 1."""
        if self.stream is not None:
            lines = (line.strip("\r\n") for line in self.stream)
            for index, line in enumerate(itertools.islice((line for line in lines if line), start, stop), start):
                yield Item(index, line, None, lambda line=line: read_one(line))  # type: ignore[misc]
            return
        begin = 0
        for part, end in zip(self.parts, self.ends):
            for index in range(max(start, begin), min(end, len(self) if stop is None else stop)):
                yield part.item(index - begin, index)
            begin = end

    def fingerprint(self) -> str:
        """A hash of what the items are, so that half a result is not continued with other images."""
        digest = hashlib.blake2b(digest_size=8)
        for part in self.parts:
            digest.update(part.fingerprint().encode())
        return "stdin" if self.stream is not None else digest.hexdigest()


class Part:
    """A run of items of one kind."""

    labelled = False

    def __len__(self) -> int:
        raise NotImplementedError

    def item(self, i: int, index: int) -> Item:
        raise NotImplementedError

    def fingerprint(self) -> str:
        raise NotImplementedError


class Files(Part):
    """Paths and URLs, kept as two flat buffers however many there are."""

    def __init__(self, names: Iterable[str]) -> None:
        self.names = Names(names)

    def __len__(self) -> int:
        return len(self.names)

    def item(self, i: int, index: int) -> Item:
        name = self.names[i]
        return Item(index, name, None, lambda: read_one(name))

    def fingerprint(self) -> str:
        digest = hashlib.blake2b(digest_size=8)
        self.names.update(digest)  # type: ignore[arg-type]
        return digest.hexdigest()


class Records(Part):
    """The records of a data source, with their labels."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.labelled = bool(source.classes) and not source.multilabel

    def __len__(self) -> int:
        return len(self.source)

    def item(self, i: int, index: int) -> Item:
        label = int(self.source.labels[i]) if self.labelled else -1  # type: ignore[arg-type]
        name = self.source.classes[label] if label >= 0 else None
        return Item(index, self.source.id(i), name, lambda: self.source.read(i).data)

    def fingerprint(self) -> str:
        return self.source.fingerprint


class Memory(Part):
    """Images already in memory: arrays, bytes, or Pillow images."""

    def __init__(self, images: Sequence[Any]) -> None:
        self.images = images

    def __len__(self) -> int:
        return len(self.images)

    def item(self, i: int, index: int) -> Item:
        return Item(index, str(i), None, lambda: _in_memory(self.images[i]))

    def fingerprint(self) -> str:
        return f"memory {len(self)}"


def open_inputs(what: Any, split: str | None = None, *, stdin: Iterable[str] | None = None) -> Inputs:
    """Anything named above, one or several, in the order given."""
    if isinstance(what, Inputs):
        return what
    if isinstance(what, np.ndarray):
        what = list(what) if what.ndim == 4 else [what]
    wanted = [what] if isinstance(what, (str, os.PathLike, bytes)) or not isinstance(what, (list, tuple)) else list(what)
    if any(isinstance(one, str) and one == "-" for one in wanted):
        if len(wanted) > 1:
            raise UsageError("'-' reads the list of images from standard input; give nothing else beside it.")
        return Inputs([], sys.stdin if stdin is None else stdin)
    parts: list[Part] = []
    for memory, group in itertools.groupby(wanted, key=_is_memory):
        several = list(group)
        parts += [Memory(several)] if memory else [part for one in several for part in _part_of(one, split)]
    inputs = Inputs(parts)
    if not len(inputs):
        raise DataError(f"no images in {', '.join(shown(str(w)) for w in wanted[:5])}.", hint="looked for " + " ".join(sorted(EXTENSIONS)))
    return inputs


def _is_memory(one: Any) -> bool:
    return not isinstance(one, (str, os.PathLike, Source)) and not hasattr(one, "fingerprint")


def _part_of(one: Any, split: str | None) -> Iterator[Part]:
    if isinstance(one, Source):
        yield Records(one)
        return
    where = os.fspath(one)
    path = os.path.expanduser(where.removeprefix("file://"))
    suffix = os.path.splitext(path.partition("?")[0])[1].lower()
    if where.startswith(("http://", "https://")) and not where.startswith("https://huggingface.co/datasets/"):
        yield Files([where])
    elif os.path.isfile(path) and suffix in LISTS:
        with open(path, encoding="utf-8", errors="surrogateescape") as lines:
            yield Files(line.strip("\r\n") for line in lines if line.strip())
    elif os.path.isfile(path) and suffix in EXTENSIONS:
        yield Files([path])
    elif os.path.isdir(path) and split is None and (images := Files(_walk(path))):
        yield images
    elif glob.has_magic(path) and not os.path.exists(path) and "://" not in where and (found := _expanded(path)):
        yield Files(found)
    elif os.path.isfile(path) and not _is_table(suffix):
        yield Files([path])  # no known ending: the content decides
    else:
        yield Records(open_source(where, split, labelled=False))


def _is_table(suffix: str) -> bool:
    return suffix in (".csv", ".tsv", ".jsonl", ".ndjson", ".parquet", ".tar", ".gz", ".tgz", ".bz2", ".xz", ".zst")


def _walk(folder: str) -> Iterator[str]:
    """Every image below a folder by its ending, in one order everywhere; hidden folders and links to folders left out."""
    try:
        with os.scandir(folder) as listing:
            entries = sorted(listing, key=lambda entry: os.fsencode(entry.name))
    except OSError as error:
        raise DataError(f"{shown(folder)}: {error.strerror or error}.", hint="check the path and its permissions") from None
    for entry in entries:
        if entry.name.startswith("."):
            continue
        if entry.is_dir(follow_symlinks=False):
            yield from _walk(entry.path)
        elif os.path.splitext(entry.name)[1].lower() in EXTENSIONS and not entry.is_dir():
            yield entry.path


def _expanded(pattern: str) -> list[str]:
    """A pattern's images; shards, tables and folders that match are for `open_source`."""
    found = sorted(glob.glob(pattern, recursive=True), key=os.fsencode)
    return [path for path in found if os.path.splitext(path)[1].lower() in EXTENSIONS and os.path.isfile(path)]


def read_one(where: str) -> bytes:
    """The bytes of one path or URL; whatever goes wrong is a DecodeError with the reason 'io'."""
    if where.startswith(("http://", "https://")):
        return _download(where)
    if "://" in where and not where.startswith("file://"):
        from vitrail.data.files import CloudFiles

        scheme, _, rest = where.partition("://")
        return CloudFiles(scheme).read(rest)
    from vitrail.data.files import LocalFiles

    return LocalFiles().read(where.removeprefix("file://"))


def _download(url: str) -> bytes:
    request = urllib.request.Request(url, headers={"User-Agent": "vitrail", "Accept": "image/*"})
    try:
        with urllib.request.urlopen(request, timeout=URL_TIMEOUT_S) as answer:
            data: bytes = answer.read(MAX_BYTES + 1)
    except (urllib.error.URLError, OSError, ValueError) as error:
        raise DecodeError("io", str(getattr(error, "reason", error)), where=shown(url)) from None
    return data


def _in_memory(image: Any) -> bytes | np.ndarray:
    if isinstance(image, (bytes, np.ndarray)):
        return image
    from vitrail.data.transform import _data

    data, _ = _data(image)
    return data


def failure(error: Exception) -> tuple[str, str] | None:
    """(reason, text) of an error that costs one image; None: it costs the run."""
    if isinstance(error, DecodeError):
        return error.reason, error.message
    if isinstance(error, OSError) and not isinstance(error, VitrailError):
        return "io", str(error)
    return None
