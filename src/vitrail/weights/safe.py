"""safetensors files: a strict reader that maps the file, and a writer with stable bytes.

Layout: 8 bytes of header length (little endian), a JSON header, one buffer. The reader
checks the whole header against the file's size before it looks at any value, and its
tensors are views of a private (copy-on-write) mapping: loading copies nothing, and
training such a model never writes to the file. The writer keeps the order it is given.
"""

from __future__ import annotations

import json
import math
import mmap
import os
import struct
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.weights.archive import Archive, Entry, check_total

__all__ = ["open_safetensors", "write_safetensors"]

_MAX_HEADER = 16 << 20  # thousands of tensors and 21,843 class names take two megabytes
_ALIGN = 64
_DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
    "U8": torch.uint8,
    "BOOL": torch.bool,
}
_NAMES = {dtype: name for name, dtype in _DTYPES.items()}
_NAMED: dict[torch.dtype | str, torch.dtype] = {dtype: dtype for dtype in _DTYPES.values()}


def open_safetensors(path: Path, max_weight_bytes: int | None = None) -> Archive:
    """The declaration of a safetensors file, every offset checked against the file's size."""
    size = path.stat().st_size
    with open(path, "rb") as stream:
        header, start = _header(path, stream, size)
    metadata = _metadata(path, header.pop("__metadata__", {}))
    spans = {name: _span(path, name, value) for name, value in header.items()}
    _check_buffer(path, [(begin, end, name) for name, (_, begin, end) in spans.items()], size - start)
    check_total(path, (entry.nbytes for entry, _, _ in spans.values()), max_weight_bytes)
    mapping: list[mmap.mmap] = []

    def read(name: str) -> Tensor:
        entry, begin, end = spans[name]
        if begin == end:
            return torch.empty(entry.shape, dtype=_NAMED[entry.dtype])
        if not mapping:
            with open(path, "rb") as stream:
                mapping.append(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_COPY))
        return _view(mapping[0], entry, start + begin)

    return Archive(path, "safetensors", {name: entry for name, (entry, _, _) in spans.items()}, read, metadata)


def _view(mapping: mmap.mmap, entry: Entry, offset: int) -> Tensor:
    dtype = entry.dtype
    assert isinstance(dtype, torch.dtype)
    count = math.prod(entry.shape)
    if offset % dtype.itemsize:  # legal, though nobody writes it: copy what cannot be viewed
        raw = bytearray(mapping[offset : offset + count * dtype.itemsize])
        return torch.frombuffer(raw, dtype=dtype, count=count).view(entry.shape)
    return torch.frombuffer(mapping, dtype=dtype, count=count, offset=offset).view(entry.shape)


def _refused(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path}: malformed safetensors: {why}.", hint="get the file again from its origin")


def _header(path: Path, stream: IO[bytes], size: int) -> tuple[dict[str, Any], int]:
    if size < 8:
        raise _refused(path, f"{size} bytes are too few for a header")
    length = struct.unpack("<Q", stream.read(8))[0]
    if length > min(size - 8, _MAX_HEADER):
        raise _refused(path, f"a header of {length:,} bytes in a file of {size:,}")

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        table = dict(pairs)
        if len(table) != len(pairs):
            twice = next(key for key, count in Counter(key for key, _ in pairs).items() if count > 1)
            raise _refused(path, f"{twice[:80]!r} appears twice in the header")
        return table

    try:
        header = json.loads(stream.read(length).decode("utf-8"), object_pairs_hook=unique)
    except (ValueError, RecursionError) as error:
        raise _refused(path, f"the header is no JSON ({error})") from None
    if not isinstance(header, dict):
        raise _refused(path, "the header is no JSON object")
    return header, 8 + length


def _metadata(path: Path, value: Any) -> dict[str, str]:
    if not isinstance(value, dict) or not all(isinstance(text, str) for text in value.values()):
        raise _refused(path, "__metadata__ is no map of strings")
    return value


def _span(path: Path, name: str, value: Any) -> tuple[Entry, int, int]:
    """One header entry -> (declaration, first byte, end byte), or a refusal that names it."""

    def naturals(numbers: Any) -> bool:
        return isinstance(numbers, list) and all(type(n) is int and 0 <= n < 1 << 63 for n in numbers)

    if not isinstance(value, dict) or not {"dtype", "shape", "data_offsets"} <= value.keys():
        raise _refused(path, f"{name!r} lacks dtype, shape or data_offsets")
    offsets, shape = value["data_offsets"], value["shape"]
    if not isinstance(value["dtype"], str) or value["dtype"] not in _DTYPES:
        raise _refused(path, f"{name!r} has the unknown dtype {value['dtype']!r}")
    if not naturals(shape) or len(shape) > 16:
        raise _refused(path, f"{name!r} has the shape {shape!r}")
    if not naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise _refused(path, f"{name!r} has the offsets {offsets!r}")
    entry = Entry(tuple(shape), _DTYPES[value["dtype"]])
    if entry.nbytes != offsets[1] - offsets[0]:
        raise _refused(path, f"{name!r} needs {entry.nbytes:,} bytes, its offsets span {offsets[1] - offsets[0]:,}")
    return entry, offsets[0], offsets[1]


def _check_buffer(path: Path, spans: list[tuple[int, int, str]], size: int) -> None:
    """The tensors must tile the buffer: no hole, no overlap, no byte left over."""
    at = 0
    for begin, end, name in sorted(spans):
        if begin != at:
            raise _refused(path, f"{name!r} starts at byte {begin:,} of the buffer, not at {at:,}")
        at = end
    if at != size:
        raise _refused(path, f"the tensors take {at:,} bytes, the file holds {size:,}")


def write_safetensors(stream: IO[bytes], tensors: Mapping[str, Tensor], metadata: Mapping[str, str]) -> None:
    """Write tensors in the given order; the data starts at a multiple of 64 bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, tensor in tensors.items():
        size = tensor.numel() * tensor.dtype.itemsize
        header[name] = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-(8 + len(text)) % _ALIGN)
    stream.write(struct.pack("<Q", len(text)))
    stream.write(text)
    for part in buffers(tensors.values()):
        stream.write(part)


def buffers(tensors: Iterable[Tensor]) -> Iterable[memoryview]:
    """The bytes of each tensor, without a copy where it is contiguous on the CPU."""
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous().view(-1)
        if flat.numel():
            yield memoryview(flat.view(torch.uint8).numpy())  # type: ignore[arg-type]


def replace_file(path: Path, write: Any) -> None:
    """Write a file completely beside its name, flush it, then rename: never half a file."""
    path = Path(path)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(temporary, "wb") as stream:
            write(stream)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(temporary, path)
    except OSError as error:
        raise CheckpointError(f"{path}: cannot be written ({error.strerror}).", hint="check space and permissions") from None
    finally:
        temporary.unlink(missing_ok=True)
