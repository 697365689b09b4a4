"""Which path a model takes: fused kernels where they were made for, plain torch everywhere else.

    reason = why_plain(device)           # None: the kernels run here
    dtype = product_dtype(z)             # the precision that products of z have right now, or None where kernels have no part

Fused kernels are written in Triton, which comes with CUDA builds of torch. They are laid out for
Hopper's registers and shared memory (compute capability 9); other GPUs take them on request.
With TRITON_INTERPRET=1 they run on the CPU, slowly, for tests.
"""

from __future__ import annotations

import contextlib
import importlib.metadata
import importlib.util
import os
from typing import Any, Literal

import torch
from torch import Tensor

from vitrail.errors import UsageError, nearest

__all__ = ["CHOICES", "Choice", "interpreted", "on", "product_dtype", "triton_version", "why_plain"]

Choice = Literal["auto", "plain", "fused"]
CHOICES: tuple[Choice, ...] = ("auto", "plain", "fused")
_HALF = (torch.bfloat16, torch.float16)


def interpreted() -> bool:
    """Whether Triton's interpreter runs the kernels on the CPU."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def why_plain(device: torch.device, choice: Choice = "auto") -> str | None:
    """Why the kernels have no part on this device; None: they have."""
    if choice not in CHOICES:
        raise UsageError(f"kernels: {choice!r} is none of {', '.join(CHOICES)}{nearest(choice, CHOICES)}.")
    if choice == "plain":
        return "asked for"
    if importlib.util.find_spec("triton") is None:
        return "no triton in this environment"
    if device.type != "cuda":
        return None if interpreted() else f"{device.type} device"
    major, minor = torch.cuda.get_device_capability(device)
    if choice == "auto" and major != 9:
        return f"compute capability {major}.{minor}; the kernels are laid out for 9.0"
    return "compute capability below 8" if major < 8 else None


def triton_version() -> str:
    return importlib.metadata.version("triton")


def product_dtype(z: Tensor) -> torch.dtype | None:
    """The precision of matrix products of `z` here and now, where the kernels serve it; None where plain torch does."""
    kind = z.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else z.dtype
    if kind == "cuda":
        return dtype if dtype in _HALF else None
    return dtype if interpreted() and dtype in (torch.float32, torch.float16) else None


def on(x: Tensor) -> contextlib.AbstractContextManager[Any]:
    """The GPU of `x`, for a launch; the interpreter's tensors have none."""
    return torch.cuda.device(x.device) if x.is_cuda else contextlib.nullcontext()
