"""Energy of NVIDIA GPUs, from the driver's own counter (NVML); nothing to install, None where there is none.

    before = joules(device)
    …
    spent = None if before is None else joules(device) - before

Under torchrun it is that of all ranks' GPUs, as long as they are in one machine.
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

__all__ = ["joules"]


def joules(device: torch.device) -> float | None:
    """Joules that the GPUs of this job have used since the driver was loaded."""
    ranks, here = (int(os.environ.get(name, "1")) for name in ("WORLD_SIZE", "LOCAL_WORLD_SIZE"))
    library = _nvml() if device.type == "cuda" and ranks == here else None
    if library is None:
        return None
    used = [_of(library, place) for place in (range(ranks) if ranks > 1 else [device.index or 0])]
    return None if None in used else sum(filter(None, used))


def _of(library: Any, device: int) -> float | None:
    handle, used = ctypes.c_void_p(), ctypes.c_ulonglong()
    if library.nvmlDeviceGetHandleByIndex_v2(_physical(device), ctypes.byref(handle)):
        return None
    if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(used)):
        return None  # older than Volta
    return used.value / 1000


def _physical(device: int) -> int:
    """NVML does not know CUDA_VISIBLE_DEVICES: the place of a device among all of the machine's."""
    shown = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return int(shown[device]) if device < len(shown) and shown[device].isdigit() else device


@cache
def _nvml() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None
