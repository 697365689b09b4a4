"""Energy of NVIDIA GPUs, from the driver's own counter (NVML); nothing to install, None where there is none.

before = joules()
…
spent = None if before is None else joules() - before
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

__all__ = ["joules"]


def joules(device: int | None = None) -> float | None:
    """Joules that a GPU (default: this rank's) has used since the driver was loaded."""
    library = _nvml()
    if library is None:
        return None
    handle, used = ctypes.c_void_p(), ctypes.c_ulonglong()
    if library.nvmlDeviceGetHandleByIndex_v2(_physical(device), ctypes.byref(handle)):
        return None
    if library.nvmlDeviceGetTotalEnergyConsumption(handle, ctypes.byref(used)):
        return None  # older than Volta
    return used.value / 1000


def _physical(device: int | None) -> int:
    """NVML does not know CUDA_VISIBLE_DEVICES: the place of a device among all of the machine's."""
    number = int(os.environ.get("LOCAL_RANK", "0")) if device is None else device
    shown = [part.strip() for part in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if part.strip()]
    return int(shown[number]) if number < len(shown) and shown[number].isdigit() else number


@cache
def _nvml() -> Any:
    try:
        library = ctypes.CDLL("libnvidia-ml.so.1")
        return library if library.nvmlInit_v2() == 0 else None
    except (OSError, AttributeError):
        return None
