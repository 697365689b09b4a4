"""One process a run directory: a lock file that says who holds it.

The holder is (host, boot id, pid, start time of that pid). A lock whose holder is gone
is taken over silently; one held elsewhere or by a living process is refused with its
particulars, because two writers in one directory are how runs get lost.
"""

from __future__ import annotations

import functools
import json
import os
import socket
from pathlib import Path
from types import TracebackType

from vitrail.errors import ResourceError

__all__ = ["RunLock", "boot_id", "is_alive"]


@functools.cache
def boot_id() -> str:
    """This boot of this machine, so that a pid from before a restart is not mistaken for a living one."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip().replace("-", "")
    except OSError:
        return ""


def is_alive(pid: int) -> bool:
    """Does a process with this number run (a zombie does not)?"""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return _stat(pid)[0] != "Z"


def _stat(pid: int) -> tuple[str, str]:
    """(state letter, start time in clock ticks), or ('', '') where /proc does not say."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return fields[0], fields[19]
    except (OSError, IndexError):
        return "", ""


class RunLock:
    """`with RunLock(out):` or ResourceError naming the process that holds it."""

    def __init__(self, folder: Path) -> None:
        self.path = Path(folder) / ".lock"

    def __enter__(self) -> RunLock:
        body = {"pid": os.getpid(), "host": socket.gethostname(), "boot": boot_id(), "started": _stat(os.getpid())[1]}
        for _ in range(3):  # a stale lock is removed and tried again
            try:
                handle = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            except FileExistsError:
                self._take_over_or_refuse()
                continue
            with os.fdopen(handle, "w") as file:
                json.dump(body, file)
            return self
        raise ResourceError(f"{self.path} keeps reappearing: another process is starting on this run.")

    def _take_over_or_refuse(self) -> None:
        try:
            holder = json.loads(self.path.read_text())
            pid, host = int(holder["pid"]), str(holder["host"])
        except (OSError, ValueError, KeyError, TypeError):
            self.path.unlink(missing_ok=True)  # its writer was killed between creating and filling it
            return
        elsewhere = host != socket.gethostname()
        same_boot = holder.get("boot") == boot_id()
        same_process = is_alive(pid) and holder.get("started") in ("", _stat(pid)[1])
        if elsewhere or (same_boot and same_process):
            raise ResourceError(
                f"{self.path.parent} is in use by process {pid} on {host}.",
                hint=f"wait for it, choose another --out, or, if {host} is gone for good, delete {self.path}.",
            )
        self.path.unlink(missing_ok=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.path.unlink(missing_ok=True)
