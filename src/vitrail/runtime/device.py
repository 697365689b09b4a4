"""Which device, which precision, how fast it could be, how much memory it has."""

from __future__ import annotations

import contextlib
import os
import resource
import sys
from dataclasses import dataclass
from typing import Any

import torch

from vitrail.errors import ResourceError, UsageError, nearest

__all__ = ["PRECISIONS", "Precision", "describe_device", "deterministic", "memory_in_use", "peak_flops", "pick_device"]

PRECISIONS = {"fp32": None, "tf32": None, "bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16, "fp64": None}

# dense bf16 tensor-core peaks of the data sheets, FLOP/s
_PEAK_BF16 = {"H200": 989e12, "H100": 989e12, "B200": 2250e12, "A100": 312e12, "L40S": 362e12, "A10": 125e12, "V100": 125e12}


def pick_device(name: str | None = None) -> torch.device:
    """`name`, or the GPU of this rank when there is one, otherwise the CPU."""
    if name is None or name == "auto":
        if not torch.cuda.is_available():
            return torch.device("cpu")
        name = f"cuda:{os.environ.get('LOCAL_RANK', '0')}"
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UsageError(f"{name!r} is no device{nearest(name, ('cpu', 'cuda', 'cuda:0', 'mps'))}.") from None
    if device.type == "cuda":
        if not torch.cuda.is_available():
            raise ResourceError(
                f"{name} was asked for, and torch {torch.__version__} sees no CUDA device.",
                hint="leave the device out to run on the CPU; `vitrail doctor` shows what torch sees.",
            )
        device = torch.device("cuda", device.index or 0)
        torch.cuda.set_device(device)
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise ResourceError("mps was asked for, and this torch sees no GPU of Apple's.", hint="leave the device out to run on the CPU")
    return device


@dataclass(frozen=True)
class Precision:
    """`fp32`, `tf32`, `bf16`, `fp16` (autocast; weights stay fp32), `fp8` (bf16, but for the products of
    `kernels.fp8`) or `fp64` (weights too; for tests)."""

    name: str

    def __post_init__(self) -> None:
        if self.name not in PRECISIONS:
            raise UsageError(f"no precision {self.name!r}{nearest(self.name, PRECISIONS)}.")

    @property
    def weights(self) -> torch.dtype:
        return torch.float64 if self.name == "fp64" else torch.float32

    @property
    def scaled(self) -> bool:
        """fp16's range is too small for gradients: the loss is scaled up before backward."""
        return self.name == "fp16"

    def autocast(self, device: torch.device) -> contextlib.AbstractContextManager[Any]:
        half = PRECISIONS[self.name]
        return torch.autocast(device.type, dtype=half) if half is not None else contextlib.nullcontext()

    @staticmethod
    def full(device: torch.device) -> contextlib.AbstractContextManager[Any]:
        """Inside, nothing is rounded to half precision, whatever surrounds it."""
        return torch.autocast(device.type, enabled=False)

    def prepare(self) -> None:
        """Matrix products of fp32 tensors: TF32 for everything but strict fp32 and fp64."""
        torch.backends.cuda.matmul.allow_tf32 = self.name not in ("fp32", "fp64")
        torch.backends.cudnn.allow_tf32 = self.name not in ("fp32", "fp64")


def deterministic(on: bool) -> None:
    """Ask torch for the same bits on every run of this machine (slower on a GPU)."""
    if on:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    if on != torch.are_deterministic_algorithms_enabled():  # the call itself imports torch's compiler: a second or two
        torch.use_deterministic_algorithms(on)
    torch.backends.cudnn.benchmark = not on


def describe_device(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else f"{device.type}, {torch.get_num_threads()} threads"


def memory_in_use(device: torch.device) -> int:
    """Peak bytes so far: of the GPU's allocator, or of this process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def peak_flops(device: torch.device) -> float | None:
    """The data sheet's dense bf16 peak when we know the GPU, for MFU; None otherwise."""
    if device.type != "cuda":
        return None
    name = torch.cuda.get_device_name(device)
    return next((peak for key, peak in _PEAK_BF16.items() if key in name), None)
