"""NumPy .npz files, read without pickle and never beyond what their headers declare, and written.

An npz is a zip of .npy members. The zip's directory and each member's own header are
compared first: they must agree on the number of bytes, and their sum must fit. Deflated
members are legal (Google's are); one array is inflated at a time, into its final memory.
"""

from __future__ import annotations

import io
import lzma
import math
import struct
import tokenize
import zipfile
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import IO

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.weights.archive import Archive, Entry, check_total

__all__ = ["is_npz", "open_npz", "write_npz"]

_MAX_HEADER = 10_000  # of one .npy; numpy's own limit for untrusted files
_MAX_MEMBERS = 100_000
_CHUNK = 1 << 20
# what zipfile, zlib and numpy's header parser raise on damaged input
UNREADABLE: tuple[type[Exception], ...] = (
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    tokenize.TokenError,
    SyntaxError,
    EOFError,
    OSError,
    RuntimeError,
    ValueError,
    LookupError,
    ArithmeticError,
    MemoryError,
)
_TORCH_DTYPES = {
    "float16": torch.float16,
    "float32": torch.float32,
    "float64": torch.float64,
    "int8": torch.int8,
    "int16": torch.int16,
    "int32": torch.int32,
    "int64": torch.int64,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "bfloat16": torch.bfloat16,
}


def is_npz(path: Path) -> bool:
    """A zip whose members are arrays (a PyTorch file is a zip with a data.pkl)."""
    try:
        with zipfile.ZipFile(path) as archive:
            names = archive.namelist()
    except UNREADABLE:
        return path.suffix == ".npz"
    return path.suffix == ".npz" or any(name.endswith(".npy") for name in names)


def open_npz(path: Path, max_weight_bytes: int | None = None) -> Archive:
    """The declaration of an npz; refuses objects, lies about sizes, and more than fits in memory."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = _members(path, archive)
            check_total(path, (info.file_size for info in members.values()), max_weight_bytes)
            headers = {name: _header(path, archive, info) for name, info in members.items()}
    except UNREADABLE as error:
        raise _refused(path, f"not a readable npz ({error})") from None
    entries = {name: Entry(shape, _torch_dtype(dtype)) for name, (shape, dtype, _, _) in headers.items()}

    def read(name: str) -> Tensor:
        with zipfile.ZipFile(path) as archive:
            return _read(path, archive, members[name], headers[name])

    return Archive(path, "npz", entries, read)


def _refused(path: Path, why: str) -> CheckpointError:
    return CheckpointError(f"{path}: {why}.", hint="get the file again from its origin and compare its checksum")


def _members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    infos = archive.infolist()
    if len(infos) > _MAX_MEMBERS:
        raise _refused(path, f"{len(infos):,} members; no model has that many arrays")
    strange = [info.filename for info in infos if not info.filename.endswith(".npy") or info.flag_bits & 1]
    if strange:
        raise _refused(path, f"members that are no plain arrays: {', '.join(strange[:8])}")
    members = {info.filename[: -len(".npy")]: info for info in infos}
    if len(members) != len(infos):
        raise _refused(path, "two members have the same name")
    return members


Header = tuple[tuple[int, ...], np.dtype, bool, int]  # shape, dtype, Fortran order, bytes of the header


def _header(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo) -> Header:
    """Parse one member's .npy header from its first bytes, and hold it against the zip directory."""
    with archive.open(info) as member:
        stream = io.BytesIO(member.read(_MAX_HEADER + 128))
    version = np.lib.format.read_magic(stream)
    if version not in ((1, 0), (2, 0)):
        raise _refused(path, f"{info.filename}: unknown .npy version {version}")
    parse = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, fortran, dtype = parse(stream, max_header_size=_MAX_HEADER)
    if dtype.hasobject:
        raise _refused(path, f"{info.filename}: holds Python objects (a pickle), which are never read")
    declared = math.prod(shape) * dtype.itemsize + stream.tell()
    if min(shape, default=0) < 0 or declared != info.file_size:
        raise _refused(path, f"{info.filename}: declares {declared:,} bytes, the zip holds {info.file_size:,}")
    return tuple(int(n) for n in shape), dtype, fortran, stream.tell()


def _torch_dtype(dtype: np.dtype) -> torch.dtype | str:
    if dtype.kind == "V" and dtype.itemsize == 2:  # how JAX's bfloat16 is stored by numpy
        return torch.bfloat16
    return _TORCH_DTYPES.get(dtype.name, dtype.str)


def _read(path: Path, archive: zipfile.ZipFile, info: zipfile.ZipInfo, header: Header) -> Tensor:
    shape, dtype, fortran, start = header
    flat = np.empty(math.prod(shape), dtype)
    view = memoryview(flat.view(np.uint8)) if flat.size else memoryview(b"")  # type: ignore[arg-type]
    try:
        with archive.open(info) as member:
            member.read(start)
            done = 0
            while done < len(view) and (got := member.readinto(view[done : done + _CHUNK])):  # type: ignore[attr-defined]
                done += got
            rest = member.read(1)  # reaching the end makes zipfile compare the CRC
    except UNREADABLE as error:
        raise _refused(path, f"{info.filename}: damaged ({error})") from None
    if done != flat.nbytes or rest:
        raise _refused(path, f"{info.filename}: {done:,} bytes of {flat.nbytes:,}")
    if dtype.kind == "V":
        array = flat.view(np.int16).reshape(shape, order="F" if fortran else "C")
        return torch.from_numpy(np.ascontiguousarray(array)).view(torch.bfloat16)
    array = flat.reshape(shape, order="F" if fortran else "C")
    return torch.from_numpy(np.array(array, dtype=dtype.newbyteorder("="), order="C", copy=fortran or not dtype.isnative))


def write_npz(stream: IO[bytes], arrays: Iterable[tuple[str, Tensor]]) -> None:
    """Write an uncompressed npz with fixed dates, so that equal weights are equal bytes."""
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_STORED, allowZip64=True) as archive:
        for name, tensor in sorted(arrays):
            info = zipfile.ZipInfo(f"{name}.npy", date_time=(1980, 1, 1, 0, 0, 0))
            with archive.open(info, "w", force_zip64=True) as member:
                for part in _npy(tensor):
                    member.write(part)


def _npy(tensor: Tensor) -> Iterator[bytes]:
    tensor = tensor.detach().cpu().contiguous()
    bf16 = tensor.dtype == torch.bfloat16
    array = tensor.view(torch.int16).numpy() if bf16 else tensor.numpy()
    header = io.BytesIO()
    descr = "|V2" if bf16 else array.dtype.str
    np.lib.format.write_array_header_1_0(header, {"descr": descr, "fortran_order": False, "shape": tuple(array.shape)})
    yield header.getvalue()
    yield array.tobytes()
