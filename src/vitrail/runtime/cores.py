"""How many cores this process may use."""

from __future__ import annotations

import os

__all__ = ["cores"]


def cores() -> int:
    """Its affinity, and its container's quota where that is smaller."""
    try:
        count = len(os.sched_getaffinity(0))
    except AttributeError:  # not on macOS
        count = os.cpu_count() or 1
    try:
        with open("/sys/fs/cgroup/cpu.max") as file:
            quota, period = file.read().split()
        return count if quota == "max" else max(1, min(count, round(int(quota) / int(period))))
    except (OSError, ValueError):
        return count
