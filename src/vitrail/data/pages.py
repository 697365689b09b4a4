"""Where the values of a plain, uncompressed parquet column lie, so that one can be read without its row group.

A column's part of a row group is a run of pages: a header in Thrift's compact protocol, then the definition
levels behind their length, then each value behind its own. Only headers and lengths are read here. What is not
of that kind (compressed, a dictionary, nulls, pages of version 2) is answered with None: Arrow reads it.

`vitrail data pack` writes such files. A worker that decodes a few images of a group then reads those few, and
not, as each of its neighbours does too, the whole group.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

__all__ = ["Places", "find_places", "is_plain"]

HEADS = (512, 1 << 20)  # bytes to look for a page's header in; the second only where statistics make it long
Read = Callable[[int, int], bytes]  # (start, length)


class Places(NamedTuple):
    starts: np.ndarray  # int64: of each value in the file
    lengths: np.ndarray  # int64


def is_plain(column: Any) -> bool:
    """Whether Arrow's metadata of a column chunk leave room for hope."""
    plain = column.compression == "UNCOMPRESSED" and not column.has_dictionary_page
    return plain and column.physical_type == "BYTE_ARRAY" and set(column.encodings) <= {"PLAIN", "RLE", "BIT_PACKED"}


def find_places(read: Read, start: int, size: int, count: int, levels: bool) -> Places | None:
    """The `count` values of the column chunk at `start`; `levels`: a value may be missing, so pages begin with levels."""
    starts, lengths, at = np.empty(count, np.int64), np.empty(count, np.int64), start
    found = 0
    try:
        while found < count:
            values, at, stop = _page(read, at, start + size)
            if levels:
                at += 4 + _number(read, at)
            if found + values > count:
                return None
            for i in range(found, found + values):
                length = _number(read, at)
                starts[i], lengths[i] = at + 4, length
                at += 4 + length
                if at > stop:
                    return None  # fewer values than rows: some are null
            if at != stop:
                return None
            found += values
    except (ValueError, KeyError):
        return None
    return Places(starts, lengths)


def _number(read: Read, at: int) -> int:
    return int.from_bytes(read(at, 4), "little")


def _page(read: Read, at: int, end: int) -> tuple[int, int, int]:
    """(values, where its body begins, where it ends) of the data page at `at`; ValueError where it is no such page."""
    if at >= end:
        raise ValueError("the pages end early")
    head, length = _header(read, at, end)
    about = head[5]
    if not isinstance(about, dict):
        raise ValueError("no page header")
    if head[1] != 0 or head[2] != head[3] or about[2] != 0 or about[1] < 1:  # a data page, uncompressed, plain
        raise ValueError("another kind of page")
    stop = at + length + head[3]
    if stop > end:
        raise ValueError("a page ends after its column")
    return about[1], at + length, stop


def _header(read: Read, at: int, end: int) -> tuple[dict[int, Any], int]:
    for most in HEADS:
        data = read(at, min(most, end - at))
        try:
            return _struct(data, 0)
        except IndexError:
            if len(data) < most:
                break
    raise ValueError("no header")


# ---------------------------------------------------------------- Thrift's compact protocol, as far as page headers use it


def _struct(data: bytes, at: int, depth: int = 0) -> tuple[dict[int, Any], int]:
    """({field: value}, where it ends)."""
    if depth > 4:
        raise ValueError("a page header is not that deep")
    fields: dict[int, Any] = {}
    name = 0
    while data[at]:
        kind, step = data[at] & 15, data[at] >> 4
        at += 1
        if step:
            name += step
        else:
            name, at = _integer(data, at)
        fields[name], at = _value(data, at, kind, depth)
    return fields, at + 1


def _value(data: bytes, at: int, kind: int, depth: int) -> tuple[Any, int]:
    if kind in (1, 2):  # a boolean is its type
        return kind == 1, at
    if kind in (4, 5, 6):
        return _integer(data, at)
    if kind == 8:
        length, at = _varint(data, at)
        if at + length > len(data):
            raise IndexError("a string ends after the data")
        return data[at : at + length], at + length
    if kind == 12:
        return _struct(data, at, depth + 1)
    raise ValueError(f"a field of kind {kind}")


def _integer(data: bytes, at: int) -> tuple[int, int]:
    """Zigzag: 0, -1, 1, -2, …"""
    value, at = _varint(data, at)
    return (value >> 1) ^ -(value & 1), at


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at
        if shift > 63:
            raise ValueError("a number without an end")
