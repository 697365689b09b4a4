"""PyTorch .pth/.pt/.bin files, without running anything they contain.

A PyTorch file is a pickle, and a pickle is a program. Its opcodes are listed first
(which executes nothing): a name outside the allow-list below refuses the file and is
reported with all others. Then `torch.load(weights_only=True)` builds the tensors, on a
mapping of the file. `argparse.Namespace`, which old training scripts left in, is inert.
"""

from __future__ import annotations

import argparse
import io
import pickle
import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.weights.archive import Archive, Entry, check_total
from vitrail.weights.npz import UNREADABLE

__all__ = ["open_pickle"]

_NESTS = ("model", "state_dict", "teacher", "model_state", "module", "net", "student", "model_ema", "state_dict_ema")
_PREFIXES = ("module.", "backbone.", "model.", "_orig_mod.", "encoder_q.")
_MAX_PICKLE = 16 << 20
_UNREADABLE: tuple[type[Exception], ...] = (*UNREADABLE, TypeError, AttributeError, AssertionError)

_ALLOWED = {
    "collections OrderedDict",
    "collections Counter",
    "argparse Namespace",
    "_codecs encode",
    "torch Size",
    "torch device",
    "torch._utils _rebuild_tensor",
    "torch._utils _rebuild_tensor_v2",
    "torch._utils _rebuild_tensor_v3",
    "torch._utils _rebuild_parameter",
    "torch._tensor _rebuild_from_type_v2",
    "torch.serialization _get_layout",
    "torch Tensor",
    "torch.nn.parameter Parameter",
    "torch.storage UntypedStorage",
    "torch.storage _load_from_bytes_never",
}
_ALLOWED |= {
    f"torch {kind}Storage" for kind in ("Float", "Half", "BFloat16", "Double", "Long", "Int", "Short", "Char", "Byte", "Bool", "Untyped")
}
_ALLOWED |= {f"torch {name}" for name in ("float16", "float32", "float64", "bfloat16", "int64", "int32", "uint8", "bool")}


def open_pickle(path: Path, max_weight_bytes: int | None = None) -> Archive:
    """The tensors of a PyTorch file, found inside the usual nesting, or a refusal."""
    with open(path, "rb") as stream:
        zipped = stream.read(4) == b"PK\x03\x04"  # as torch.load decides
    if zipped:
        _check_zip(path, max_weight_bytes)
    content = _load(path, mapped=zipped)
    tensors, notes = _state_dict(path, content)
    entries = {name: Entry(tuple(value.shape), value.dtype) for name, value in tensors.items()}
    check_total(path, (entry.nbytes for entry in entries.values()), max_weight_bytes)
    return Archive(path, "pickle", entries, lambda name: tensors[name].detach(), {}, tuple(notes))


def _refused(path: Path, why: str) -> CheckpointError:
    return CheckpointError(
        f"{path}: {why}. Nothing was loaded and nothing was run.",
        hint="ask for a .safetensors file, or convert it where you trust it: torch.save(torch.load(FILE)['model'].state_dict(), OUT)",
    )


def _check_zip(path: Path, limit: int | None) -> None:
    """The zip's directory: stored members only (PyTorch never compresses), and a pickle with known names."""
    try:
        with zipfile.ZipFile(path) as archive:
            infos = archive.infolist()
            squeezed = [i.filename for i in infos if i.compress_type != zipfile.ZIP_STORED or i.file_size > i.compress_size]
            if squeezed:
                raise _refused(path, f"compressed members in a PyTorch file ({squeezed[0]}): a zip bomb")
            check_total(path, (info.file_size for info in infos), limit)
            programs = [info for info in infos if info.filename.endswith(".pkl")]
            if not programs:
                raise _refused(path, "a zip that is neither npz nor PyTorch")
            if any("/code/" in info.filename or info.filename.endswith("constants.pkl") for info in infos):
                raise _refused(path, "a TorchScript program, not weights")
            for info in programs:
                if info.file_size > _MAX_PICKLE:
                    raise _refused(path, f"{info.filename} is {info.file_size:,} bytes of pickle")
                _check_names(path, io.BytesIO(archive.read(info)))
    except UNREADABLE as error:
        raise _refused(path, f"not a readable zip ({error})") from None


def _check_names(path: Path, program: IO[bytes], pickles: int = 1) -> None:
    """Every global the pickles would look up, without executing them."""
    found: set[str] = set()
    try:
        for _ in range(pickles):
            found.update(_globals(program))
    except Exception as error:  # pickletools raises many kinds on damaged input
        if pickles == 1:
            raise _refused(path, f"a damaged pickle ({error})") from None
    if strange := sorted(found - _ALLOWED):
        shown = ", ".join(name.replace(" ", ".") for name in strange[:12])
        raise _refused(path, f"the pickle calls {shown}{' and more' if len(strange) > 12 else ''}")


def _globals(program: IO[bytes]) -> Iterator[str]:
    strings: list[str] = []
    memo: dict[int, str] = {}
    last = ""
    for opcode, argument, _ in pickletools.genops(program):
        if opcode.name in ("GLOBAL", "INST"):
            yield str(argument)
        elif opcode.name == "STACK_GLOBAL":
            yield " ".join(strings[-2:]) if len(strings) >= 2 else "an unnamed global"
        elif opcode.name in ("EXT1", "EXT2", "EXT4"):
            yield "copyreg extension"
        if "UNICODE" in opcode.name or "STRING" in opcode.name:
            last = str(argument)
            strings.append(last)
        elif opcode.name == "MEMOIZE":
            memo[len(memo)] = last
        elif opcode.name in ("BINPUT", "LONG_BINPUT", "PUT") and argument is not None:
            memo[int(argument)] = last
        elif opcode.name in ("BINGET", "LONG_BINGET", "GET") and argument is not None and int(argument) in memo:
            strings.append(memo[int(argument)])


def _load(path: Path, *, mapped: bool) -> Any:
    if not mapped:  # before PyTorch 1.6: magic number, protocol, machine, the object, names of storages; raw bytes follow
        with open(path, "rb") as stream:
            _check_names(path, io.BytesIO(stream.read(_MAX_PICKLE)), pickles=5)
    try:
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(path, map_location="cpu", weights_only=True, mmap=mapped or None)
    except pickle.UnpicklingError as error:
        lines = str(error).strip().splitlines() or ["damaged"]
        raise _refused(path, next((line for line in lines if "Unsupported" in line or "GLOBAL" in line), lines[0])) from None
    except _UNREADABLE as error:
        raise _refused(path, f"not a readable PyTorch file ({(str(error).splitlines() or [repr(error)])[0]})") from None


def _state_dict(path: Path, content: Any) -> tuple[dict[str, Tensor], list[str]]:
    """The mapping of tensors inside the usual nesting ({"model": …}, {"teacher": …}), prefixes removed."""
    notes: list[str] = []
    while isinstance(content, Mapping) and not any(isinstance(value, Tensor) for value in content.values()):
        inner = next((name for name in _NESTS if isinstance(content.get(name), Mapping)), None)
        if inner is None:
            break
        notes.append(f"read from the entry {inner!r}; left out: {', '.join(str(k) for k in content if k != inner) or 'none'}")
        content = content[inner]
    if not isinstance(content, Mapping):
        raise _refused(path, f"a {type(content).__name__}, not a mapping of tensors")
    tensors = {str(name): value for name, value in content.items() if isinstance(value, Tensor)}
    if not tensors:
        raise _refused(path, "no tensors inside")
    while prefix := next((p for p in _PREFIXES if any(name.startswith(p) for name in tensors)), None):
        chosen = {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(prefix)}
        left = [name for name in tensors if not name.startswith(prefix)]
        notes.append(f"prefix {prefix!r} removed" + (f"; left out: {', '.join(left[:6])}" if left else ""))
        tensors = chosen
    return tensors, notes
