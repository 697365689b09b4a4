"""A table of strings in two flat buffers.

Ids of millions of images as Python strings would cost a gigabyte and would be copied
page by page into every forked worker (reference counts are writes). Two buffers are not.
"""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

import numpy as np

__all__ = ["Chosen", "Names", "Numbered", "composed", "shown"]


class Names(Sequence[str]):
    """An immutable sequence of strings; bytes that are no UTF-8 survive as surrogates, as in `os.fsdecode`."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        encoded = [name.encode("utf-8", "surrogateescape") for name in names]
        self.blob = b"".join(encoded)
        ends = np.cumsum([0, *map(len, encoded)], dtype=np.int64)
        self.ends = ends if ends[-1] >= 1 << 31 else ends.astype(np.int32)

    def __len__(self) -> int:
        return len(self.ends) - 1

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if i < 0:
            i += len(self)
        if not 0 <= i < len(self):
            raise IndexError(i)
        return self.blob[self.ends[i] : self.ends[i + 1]].decode("utf-8", "surrogateescape")

    def __iter__(self) -> Iterator[str]:
        return (self[i] for i in range(len(self)))

    def update(self, digest: Any) -> None:
        """Feed the whole table to a hash."""
        digest.update(self.ends.astype("<i8").tobytes())
        digest.update(self.blob)


class Numbered(Sequence[str]):
    """`group:place` for every sample of a sequence of groups: two numbers a group instead of a string a sample."""

    def __init__(self, groups: Sequence[str], counts: Sequence[int] | np.ndarray) -> None:
        self.groups = Names(groups)
        self.ends: list[int] = np.cumsum(np.asarray(counts, np.int64)).tolist()

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        if isinstance(i, slice):
            return [self[k] for k in range(*i.indices(len(self)))]
        if i < 0:
            i += len(self)
        if not 0 <= i < len(self):
            raise IndexError(i)
        group = bisect_right(self.ends, i)
        return f"{self.groups[group]}:{i - (self.ends[group - 1] if group else 0)}"

    def update(self, digest: Any) -> None:
        self.groups.update(digest)
        digest.update(np.asarray(self.ends, "<i8").tobytes())


class Chosen(Sequence[str]):
    """Some names of a table, by number."""

    def __init__(self, names: Any, places: np.ndarray) -> None:
        self.names, self.places = names, places

    def __len__(self) -> int:
        return len(self.places)

    @overload
    def __getitem__(self, i: int) -> str: ...
    @overload
    def __getitem__(self, i: slice) -> list[str]: ...
    def __getitem__(self, i: int | slice) -> str | list[str]:
        return [self.names[int(k)] for k in self.places[i]] if isinstance(i, slice) else self.names[int(self.places[i])]

    def update(self, digest: Any) -> None:
        self.names.update(digest)
        digest.update(self.places.astype("<i8").tobytes())


def composed(name: str) -> str:
    """Unicode's composed form (NFC): one spelling of a name, whichever file system it came from."""
    return name if name.isascii() else unicodedata.normalize("NFC", name)


def shown(name: str, limit: int = 200) -> str:
    """A name as it may be printed: control characters, newlines and stray bytes escaped, never longer than `limit`."""
    safe = "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in name)
    return safe if len(safe) <= limit else safe[: limit - 1] + "…"
