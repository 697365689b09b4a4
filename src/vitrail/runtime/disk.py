"""Writing that survives a power cut: every byte is fsynced before a name points at it.

`FileWriter` hashes what it writes; `write_tensors` streams a safetensors file through
it one tensor at a time (no second copy of the model in memory); `write_atomic` replaces
a small file by rename. Nothing here leaves a half-written file under a final name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

__all__ = ["FileWriter", "Written", "fsync_directory", "sha256_of", "write_atomic", "write_tensors"]

_CHUNK = 8 << 20
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}


@dataclass(frozen=True)
class Written:
    """What the manifest records of a file."""

    size: int
    sha256: str


class FileWriter:
    """A new file, hashed as it is written and fsynced when the block ends well."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.size = 0
        self._hash = hashlib.sha256()

    def __enter__(self) -> FileWriter:
        self._handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        return self

    def write(self, data: bytes | memoryview) -> None:
        view = memoryview(data).cast("B") if len(data) else memoryview(b"")
        for start in range(0, len(view), _CHUNK):
            rest = view[start : start + _CHUNK]
            self._hash.update(rest)
            while len(rest):  # a nearly full disk writes short before it refuses
                rest = rest[os.write(self._handle, rest) :]
        self.size += len(view)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            if kind is None:
                os.fsync(self._handle)
        finally:
            os.close(self._handle)

    @property
    def written(self) -> Written:
        return Written(self.size, self._hash.hexdigest())


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None) -> Written:
    """A safetensors file (8-byte header length, JSON header, raw little-endian data), tensors in name order."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    offset = 0
    for name in sorted(tensors):
        tensor = tensors[name]
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _DTYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + size],
        }
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)  # the data starts on an 8-byte boundary
    with FileWriter(path) as file:
        file.write(len(text).to_bytes(8, "little"))
        file.write(text)
        for name in sorted(tensors):
            host = tensors[name].detach().to("cpu").contiguous().reshape(-1)
            file.write(memoryview(host.view(torch.uint8).numpy()))  # type: ignore[arg-type]
    return file.written


def write_atomic(path: Path, data: bytes) -> Written:
    """Replace a small file: a reader sees the old bytes or the new ones, never part of them."""
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    draft.unlink(missing_ok=True)
    try:
        with FileWriter(draft) as file:
            file.write(data)
        os.replace(draft, path)
    except BaseException:
        draft.unlink(missing_ok=True)
        raise
    fsync_directory(path.parent)
    return file.written


def fsync_directory(path: Path) -> None:
    """Make the names inside a directory durable (a rename is not, until this)."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sha256_of(path: Path) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
