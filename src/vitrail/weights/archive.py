"""A weight file opened but not read: names, shapes and types first, arrays one at a time.

Every container (npz, safetensors, a PyTorch pickle) becomes an `Archive`. What it
declares is known, and bounded, before a byte of it is allocated; whether the names and
shapes are a model's is decided on the declaration alone.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from vitrail.errors import CheckpointError

__all__ = ["Archive", "Entry", "available_memory", "check_total", "open_archive"]

Shape = tuple[int, ...]


@dataclass(frozen=True)
class Entry:
    """What a file says about one of its arrays."""

    shape: Shape
    dtype: torch.dtype | str  # a str names a type that no weights have ("<U5", "object")

    @property
    def itemsize(self) -> int:
        return self.dtype.itemsize if isinstance(self.dtype, torch.dtype) else 1

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class Archive:
    """The declaration of a weight file, and how to read one array of it."""

    path: Path
    container: str  # "npz", "safetensors", "pickle"
    entries: Mapping[str, Entry]
    read: Callable[[str], Tensor]
    metadata: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def shapes(self) -> dict[str, Shape]:
        return {name: entry.shape for name, entry in self.entries.items()}


CGROUP = Path("/sys/fs/cgroup")


def available_memory() -> int:
    """Bytes that can be allocated now without swapping, in this container (Linux; elsewhere half the physical memory)."""
    try:
        with open("/proc/meminfo", encoding="ascii") as lines:
            for line in lines:
                if line.startswith("MemAvailable:"):
                    return min(int(line.split()[1]) * 1024, _left_in_container())
    except OSError:
        pass
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2
    except (ValueError, OSError, AttributeError):
        return 8 << 30


def _left_in_container() -> int:
    """What a container's limit leaves (cgroup v2); cached files in it can be dropped, so they do not count as used."""
    try:
        limit = int((CGROUP / "memory.max").read_text())  # "max" is no number: no limit
        used = int((CGROUP / "memory.current").read_text())
        stat = dict(line.split() for line in (CGROUP / "memory.stat").read_text().splitlines())
        return max(0, limit - used + int(stat["file"]))
    except (OSError, ValueError, KeyError):
        return 1 << 62


def check_total(path: Path, sizes: Iterable[int], limit: int | None) -> None:
    """Refuse a file whose arrays together would not fit, before the first is allocated."""
    total, allowed = sum(sizes), available_memory() if limit is None else limit
    if total > allowed:
        raise CheckpointError(
            f"{path}: its arrays take {total:,} bytes in all, and {allowed:,} are allowed.",
            hint="free memory, or pass max_weight_bytes= if you trust the file",
        )


def open_archive(path: str | os.PathLike, *, max_weight_bytes: int | None = None) -> Archive:
    """Open a weight file by its first bytes, never by its name."""
    from vitrail.weights import npz, pickled, safe

    file = Path(path)
    try:
        with open(file, "rb") as stream:
            head = stream.read(16)
    except OSError as error:
        raise CheckpointError(f"{file}: cannot be read ({error.strerror}).", hint="check the path") from None
    if head.lstrip()[:1] == b"<":
        raise CheckpointError(f"{file}: this is a web page, not weights.", hint="the download failed; follow its address in a browser")
    if head[:4] == b"PK\x03\x04":
        opener = npz.open_npz if npz.is_npz(file) else pickled.open_pickle
    elif head[8:9] == b"{":
        opener = safe.open_safetensors
    elif head[:1] == b"\x80" or file.suffix in (".pth", ".pt", ".bin", ".ckpt"):
        opener = pickled.open_pickle
    elif head[:4] in (b"PK\x05\x06", b"PK\x07\x08"):
        opener = npz.open_npz
    elif file.suffix == ".safetensors":
        opener = safe.open_safetensors
    elif head[:8].startswith(b"version "):
        raise CheckpointError(f"{file}: this is a Git LFS pointer, not the weights it points to.", hint="run `git lfs pull` beside it")
    else:
        raise CheckpointError(
            f"{file}: not a weight file (its first bytes are {head[:8]!r}).",
            hint="Vitrail reads .safetensors, Google .npz and PyTorch .pth/.bin files",
        )
    return opener(file, max_weight_bytes)
