"""Files where they are: on a disk (`LocalFiles`) or in an object store (`CloudFiles`, through fsspec).

Both answer the same few questions in the same order on every platform: what is here,
how large, these bytes please. Paths use "/" everywhere. Whatever goes wrong while
reading is one DecodeError with the reason "io", so that a lost file costs one sample.
"""

from __future__ import annotations

import functools
import glob
import itertools
import os
import re
import stat
from collections.abc import Iterator
from typing import Any, BinaryIO, Protocol

from vitrail.data.header import EXTENSIONS
from vitrail.data.names import shown
from vitrail.errors import DataError, DecodeError, missing_extra

__all__ = ["CloudFiles", "Files", "LocalFiles", "expand_braces", "is_image"]


def is_image(name: str) -> bool:
    """Whether a listing takes this name for an image (what it really is, its content decides)."""
    return os.path.splitext(name)[1].lower() in EXTENSIONS


class Files(Protocol):
    local: bool

    def exists(self, path: str) -> bool: ...
    def is_dir(self, path: str) -> bool: ...
    def names(self, path: str) -> list[str]: ...
    def folders(self, path: str) -> list[str]: ...
    def has_image(self, path: str) -> bool: ...
    def find(self, path: str, ending: str, depth: int) -> list[str]: ...
    def expand(self, pattern: str) -> list[str]: ...
    def size(self, path: str) -> int: ...
    def read(self, path: str) -> bytes: ...
    def read_range(self, path: str, start: int, length: int) -> bytes: ...
    def open(self, path: str) -> BinaryIO: ...


class _Handle:
    """A file descriptor that closes when the last thread that reads from it lets go."""

    def __init__(self, path: str) -> None:
        self.fd = -1
        self.fd = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0))

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class LocalFiles:
    """Shards are read in many small pieces: descriptors are kept, and positioned reads share them, across a fork too.

    They belong to one source: who opens a data set again sees files that were replaced since.
    """

    local = True

    def __init__(self) -> None:
        self._handle = functools.lru_cache(maxsize=64)(_Handle)

    def __reduce__(self) -> tuple[type[LocalFiles], tuple[()]]:
        return LocalFiles, ()

    def exists(self, path: str) -> bool:
        return os.path.exists(path)

    def is_dir(self, path: str) -> bool:
        return os.path.isdir(path)

    def names(self, path: str) -> list[str]:
        try:
            return sorted(os.listdir(path))
        except OSError:
            return []

    def folders(self, path: str) -> list[str]:
        """Names of the folders in this one, and of links to folders; hidden ones left out."""
        try:
            with os.scandir(path) as entries:
                return sorted(e.name for e in entries if not e.name.startswith((".", "__MACOSX")) and e.is_dir())
        except OSError:
            return []

    def has_image(self, path: str) -> bool:
        """Whether an image lies directly in this folder."""
        try:
            with os.scandir(path) as entries:
                return any(is_image(e.name) and not e.name.startswith(".") for e in entries)
        except OSError:
            return False

    def find(self, path: str, ending: str, depth: int) -> list[str]:
        """Files below `path` that end so, at most `depth` levels down, hidden folders left out."""
        found: list[str] = []
        self._find(path.rstrip("/"), ending, depth, found)
        return found

    def _find(self, path: str, ending: str, depth: int, found: list[str]) -> None:
        try:
            with os.scandir(path) as listing:
                entries = sorted(listing, key=lambda e: os.fsencode(e.name))
        except OSError:
            return
        for entry in entries:
            if entry.name.startswith("."):
                continue
            if entry.name.lower().endswith(ending) and entry.is_file():
                found.append(f"{path}/{entry.name}")
            elif depth > 1 and entry.is_dir(follow_symlinks=False):
                self._find(f"{path}/{entry.name}", ending, depth - 1, found)

    def expand(self, pattern: str) -> list[str]:
        """Braces and stars -> paths; every name in braces has to exist."""
        return _expand(self, pattern, lambda one: sorted(glob.glob(one), key=os.fsencode))

    def size(self, path: str) -> int:
        return os.stat(path).st_size

    def read(self, path: str) -> bytes:
        try:
            with open(path, "rb") as file:
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    raise DecodeError("io", "not a regular file", where=shown(path))
                return file.read()
        except OSError as error:
            raise _io(error, path) from None

    def read_range(self, path: str, start: int, length: int) -> bytes:
        try:
            if not hasattr(os, "pread"):  # Windows
                with open(path, "rb") as file:
                    file.seek(start)
                    return file.read(length)
            handle = self._handle(path)
            pieces = []
            while length > 0:
                piece = os.pread(handle.fd, length, start)
                if not piece:
                    raise DecodeError("truncated", "the shard ends early", where=shown(path))
                pieces.append(piece)
                start, length = start + len(piece), length - len(piece)
            return b"".join(pieces)
        except OSError as error:
            raise _io(error, path) from None

    def open(self, path: str) -> BinaryIO:
        return open(path, "rb")


class CloudFiles:
    """Files of an fsspec file system (s3, gs, memory, …); connections are made anew in each process."""

    local = False

    def __init__(self, scheme: str) -> None:
        self.scheme = scheme
        self._open: tuple[int, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {"scheme": self.scheme, "_open": None}

    @property
    def system(self) -> Any:
        if self._open is None or self._open[0] != os.getpid():
            try:
                import fsspec
            except ImportError:
                raise missing_extra("fsspec", "cloud", f"Reading {self.scheme}:// addresses") from None
            try:
                options = {} if self._open is None else {"skip_instance_cache": True}
                self._open = os.getpid(), fsspec.filesystem(self.scheme, **options)
            except (ImportError, ValueError) as error:
                raise DataError(f"{self.scheme}:// cannot be read: {error}", hint="install the fsspec package for it") from None
        return self._open[1]

    def exists(self, path: str) -> bool:
        return bool(self.system.exists(path))

    def is_dir(self, path: str) -> bool:
        return bool(self.system.isdir(path))

    def names(self, path: str) -> list[str]:
        try:
            return sorted(self._bare(name).rsplit("/", 1)[-1] for name in self.system.ls(path, detail=False))
        except OSError:
            return []

    def folders(self, path: str) -> list[str]:
        try:
            entries = self.system.ls(path, detail=True)
        except OSError:
            return []
        names = (self._bare(e["name"]).rsplit("/", 1)[-1] for e in entries if e["type"] == "directory")
        return sorted(name for name in names if not name.startswith("."))

    def has_image(self, path: str) -> bool:
        return any(is_image(name) and not name.startswith(".") for name in self.names(path))

    def find(self, path: str, ending: str, depth: int) -> list[str]:
        found = (self._bare(name) for name in self.system.find(path, maxdepth=depth))
        base = path.strip("/")
        inside = (name for name in found if not any(p.startswith(".") for p in name[len(base) :].split("/")))
        return sorted(name for name in inside if name.lower().endswith(ending))

    def walk(self, path: str) -> Iterator[str]:
        """Every file below `path`, relative to it, in order."""
        base = path.strip("/")
        for name in self.system.find(path):
            yield self._bare(name)[len(base) :].lstrip("/")

    def expand(self, pattern: str) -> list[str]:
        return _expand(self, pattern, lambda one: sorted(map(self._bare, self.system.glob(one))))

    def _bare(self, name: str) -> str:
        return name.strip("/")

    def size(self, path: str) -> int:
        return int(self.system.size(path))

    def read(self, path: str) -> bytes:
        try:
            return bytes(self.system.cat_file(path))
        except OSError as error:
            raise _io(error, path) from None

    def read_range(self, path: str, start: int, length: int) -> bytes:
        try:
            data = bytes(self.system.cat_file(path, start=start, end=start + length))
        except OSError as error:
            raise _io(error, path) from None
        if len(data) < length:
            raise DecodeError("truncated", "the shard ends early", where=shown(path))
        return data

    def open(self, path: str) -> BinaryIO:
        file: BinaryIO = self.system.open(path, "rb")
        return file


def _io(error: OSError, path: str) -> DecodeError:
    return DecodeError("io", error.strerror or str(error) or type(error).__name__, where=shown(path))


def _expand(files: Files, pattern: str, match: Any) -> list[str]:
    if files.exists(pattern):
        return [pattern]
    paths: list[str] = []
    missing: list[str] = []
    for one in expand_braces(pattern):
        found = match(one) if any(c in one for c in "*?[") else [one] if files.exists(one) else []
        paths += found
        missing += [] if found else [one]
    if missing:
        more = "" if len(missing) <= 5 else f" and {len(missing) - 5:,} more"
        raise DataError(
            f"{shown(pattern)}: no such file: {', '.join(shown(m) for m in missing[:5])}{more}.",
            hint="name the shards that are there, as in {000..127} or *",
        )
    return paths


def expand_braces(pattern: str) -> list[str]:
    """'a-{000..127}.tar' -> 128 names; '{x,y}' -> two; several braces multiply."""
    pieces = re.split(r"(\{[^{}]*\})", pattern)
    return ["".join(choice) for choice in itertools.product(*map(_brace, pieces))]


def _brace(piece: str) -> list[str]:
    span = re.fullmatch(r"\{(\d+)\.\.(\d+)\}", piece)
    if span:
        first, last, width = int(span[1]), int(span[2]), len(span[1])
        if last < first or last - first > 10_000_000:
            raise DataError(f"{piece} is no range of shards.", hint="write the lower number first, as in {000..127}")
        return [str(k).zfill(width) for k in range(first, last + 1)]
    if piece.startswith("{") and "," in piece:
        return piece[1:-1].split(",")
    return [piece]
