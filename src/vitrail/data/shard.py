"""One tar shard: which samples it holds and where their bytes lie, from one pass over its headers.

    key.jpg + key.cls (or key.json) in a row are one sample, as webdataset writes them

Names inside an archive are keys and never become paths. Members that are no regular files
are passed over. A header that does not add up, or a member that ends after the file, ends
the shard there: what came before is whole. The index of a local shard is kept in the user's
cache folder, under the shard's path, size and time, so that the next start does not read it.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from vitrail.data.files import is_image
from vitrail.data.labels import Value, Values, compact, read_value
from vitrail.data.names import Names, composed
from vitrail.errors import DecodeError

__all__ = ["Member", "Shard", "index_shard", "members"]

_BLOCK = 512
_MAX_TEXT = 1 << 20  # a label, a long name
FORMAT = 1  # of the stored index; another number is built again
LABEL_KEYS = ("label", "labels", "class", "cls", "target", "category", "classes", "tags")


class Member(NamedTuple):
    name: str
    start: int
    size: int


class Broken(Exception):
    """The archive cannot be followed beyond this point."""


class _Reader:
    """Bytes at any place of a file, read ahead in pieces: large ones where a request is a journey."""

    def __init__(self, files: Any, path: str) -> None:
        self.files, self.path, self.size = files, path, files.size(path)
        self.piece = (16 << 10) if files.local else (8 << 20)
        self.start, self.held = 0, b""

    def at(self, start: int, length: int) -> bytes:
        if start + length > self.size:
            raise Broken(f"ends at {self.size:,}, {start + length:,} expected")
        if not (self.start <= start and start + length <= self.start + len(self.held)):
            self.start = start
            self.held = self.files.read_range(self.path, start, min(max(length, self.piece), self.size - start))
        return self.held[start - self.start : start - self.start + length]


def members(reader: _Reader) -> Iterator[Member]:
    """Every regular file of the archive, in order; raises Broken where it stops making sense."""
    at, long_name = 0, ""
    pax: dict[str, str] = {}
    while at < reader.size:
        header = reader.at(at, _BLOCK)
        if not header.strip(b"\0"):
            return
        if _number(header[148:156]) != sum(header[:148]) + 8 * 32 + sum(header[156:]):
            raise Broken(f"no tar header at {at:,}")
        size, kind, start = _number(header[124:136]) or 0, header[156:157], at + _BLOCK
        if kind in (b"L", b"x", b"g"):  # this member describes the next
            if size > _MAX_TEXT:
                raise Broken(f"a name of {size:,} bytes at {at:,}")
            text = reader.at(start, size)
            long_name = _text(text) if kind == b"L" else long_name
            pax = _pax(text) if kind == b"x" else pax
        else:
            size = int(pax.get("size", size))
            if size < 0 or start + size > reader.size:
                raise Broken(f"ends at {reader.size:,}, {start + size:,} expected")
            if kind in (b"0", b"\0", b"7"):
                prefix = _text(header[345:500]) if header[257:262] == b"ustar" else ""
                short = f"{prefix}/{_text(header[:100])}" if prefix else _text(header[:100])
                yield Member(pax.get("path") or long_name or short, start, size)
            long_name, pax = "", {}
        at = start + -(-size // _BLOCK) * _BLOCK
    raise Broken("no end mark")  # cut between two members


def _number(digits: bytes) -> int | None:
    if digits[:1] in (b"\x80", b"\xff"):  # base 256, for sizes over 8 GiB
        return int.from_bytes(digits[1:], "big", signed=digits[0] == 0xFF)
    text = digits.strip(b"\0 ")
    try:
        return int(text, 8) if text else 0
    except ValueError:
        return None


def _text(raw: bytes) -> str:
    return raw.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")


def _pax(text: bytes) -> dict[str, str]:
    """Records 'LENGTH key=value\\n'."""
    found, at = {}, 0
    while at < len(text):
        length, space, _ = text[at:].partition(b" ")
        if not space or not length.isdigit() or not 0 < int(length) <= len(text) - at:
            raise Broken("a header that is none")
        key, _, value = text[at + len(length) + 1 : at + int(length) - 1].partition(b"=")
        found[key.decode("utf-8", "replace")] = value.decode("utf-8", "surrogateescape")
        at += int(length)
    return found


# ---------------------------------------------------------------- samples


@dataclass
class Shard:
    """The samples of one shard. `labels` are as written; numbers come when all shards are known."""

    keys: Names
    starts: np.ndarray
    sizes: np.ndarray
    labels: Values
    incomplete: list[str] = field(default_factory=list)  # keys with a label but no image
    twice: list[str] = field(default_factory=list)
    climbing: list[str] = field(default_factory=list)  # names such as ../../x
    broken: str = ""  # how it ends early


def index_shard(files: Any, path: str, image: str | None = None, label: str | None = None) -> Shard:
    """Read a shard's headers (or its stored index)."""
    stored = _stored(files, path, image, label)
    if stored is not None and stored.is_file():
        found = _load(stored)
        if found is not None:
            return found
    shard = _index(files, path, image, label)
    if stored is not None and not shard.broken:
        _save(stored, shard)
    return shard


def _index(files: Any, path: str, image: str | None, label: str | None) -> Shard:
    reader = _Reader(files, path)
    keys: list[str] = []
    places: list[tuple[int, int]] = []
    values: list[Value] = []
    shard = Shard(Names(), np.empty(0, np.int64), np.empty(0, np.int64), [])
    seen: set[str] = set()

    def close(key: str, parts: dict[str, Member]) -> None:
        picture = _picture(parts, image)
        value = _label(reader, parts, label)
        if key in seen:
            shard.twice.append(key)
        elif picture is None:
            if value is not None:
                shard.incomplete.append(key)
        else:
            keys.append(key)
            places.append((picture.start, picture.size))
            values.append(value)
        seen.add(key)

    key, parts = None, dict[str, Member]()
    try:
        for member in members(reader):
            if any(part == ".." for part in member.name.split("/")) or member.name.startswith("/"):
                shard.climbing.append(member.name)
            stem, ending = _split_name(member.name)
            if stem is None:
                continue
            if stem != key and key is not None:
                close(key, parts)
                parts = {}
            key = stem
            if ending in parts:
                shard.twice.append(f"{stem}.{ending}")
            parts.setdefault(ending, member)
        if key is not None:
            close(key, parts)
    except (Broken, DecodeError) as error:
        shard.broken = str(error)
        if key is not None and _picture(parts, image) and _label(reader, parts, label) is not None:
            close(key, parts)  # both halves of the last sample are whole
    shard.keys, shard.labels = Names(keys), compact(values)
    table = np.asarray(places, np.int64).reshape(-1, 2)
    small = table[:, 1].max(initial=0) < 1 << 31
    shard.starts, shard.sizes = table[:, 0].copy(), table[:, 1].astype(np.int32 if small else np.int64)
    return shard


def _split_name(name: str) -> tuple[str | None, str]:
    """'a/b.seg.png' -> ('a/b', 'seg.png'): the key ends at the first dot of the last part."""
    folder, slash, base = name.rpartition("/")
    stem, dot, ending = base.partition(".")
    if not dot or not stem:
        return None, ""
    return composed(folder + slash + stem), ending.lower()


def _picture(parts: dict[str, Member], image: str | None) -> Member | None:
    if image:
        return parts.get(image.lower())
    return next((member for ending, member in parts.items() if "." not in ending and is_image(f"x.{ending}")), None)


def _label(reader: _Reader, parts: dict[str, Member], label: str | None) -> Value:
    """From key.cls, else from key.json; `label` names another member, or a field of the json."""
    if label and label in parts:
        return read_value(_small(reader, parts[label]).decode("utf-8", "replace"), False)
    if "cls" in parts and not label:
        return read_value(_small(reader, parts["cls"]).decode("utf-8", "replace"), False)
    if "json" in parts:
        try:
            table = json.loads(_small(reader, parts["json"]))
        except ValueError:
            return None
        if isinstance(table, dict):
            key = label or next((key for key in LABEL_KEYS if key in table), None)
            return read_value(table.get(key), False) if key else None
        return read_value(table, False)
    return None


def _small(reader: _Reader, member: Member) -> bytes:
    return reader.at(member.start, min(member.size, _MAX_TEXT))


# ---------------------------------------------------------------- the stored index


def cache_folder() -> Path:
    base = os.environ.get("VITRAIL_CACHE") or os.path.join(os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache"), "vitrail")
    return Path(base) / "shards"


def _stored(files: Any, path: str, image: str | None, label: str | None) -> Path | None:
    if not files.local:
        return None
    found = os.stat(path)
    identity = json.dumps([FORMAT, os.path.realpath(path), found.st_size, found.st_mtime_ns, image, label])
    return cache_folder() / f"{hashlib.blake2b(identity.encode('utf-8', 'surrogateescape'), digest_size=16).hexdigest()}.npz"


def _load(stored: Path) -> Shard | None:
    try:
        with np.load(stored, allow_pickle=False) as table:
            keys = Names()
            keys.blob, keys.ends = table["keys"].tobytes(), table["ends"]
            rest = json.loads(table["rest"].tobytes())
            labels = table["labels"] if "labels" in table else [tuple(v) if isinstance(v, list) else v for v in rest["labels"]]
            return Shard(keys, table["starts"], table["sizes"], labels, rest["incomplete"], rest["twice"], rest["climbing"])
    except (OSError, ValueError, KeyError, EOFError):
        return None  # another process is writing it, or it was damaged: read the shard instead


def _save(stored: Path, shard: Shard) -> None:
    numbers = isinstance(shard.labels, np.ndarray)
    rest: dict[str, Any] = {"incomplete": shard.incomplete, "twice": shard.twice, "climbing": shard.climbing}
    tables: dict[str, Any] = {"keys": np.frombuffer(shard.keys.blob, np.uint8), "ends": shard.keys.ends}
    tables |= {"starts": shard.starts, "sizes": shard.sizes}
    if numbers:
        tables["labels"] = np.asarray(shard.labels)
    else:
        rest["labels"] = shard.labels
    body = io.BytesIO()
    np.savez(body, rest=np.frombuffer(json.dumps(rest).encode(), np.uint8), **tables)
    try:
        stored.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=stored.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(body.getbuffer())
        os.replace(name, stored)
    except OSError:
        return  # a cache that cannot be written costs time, nothing else
