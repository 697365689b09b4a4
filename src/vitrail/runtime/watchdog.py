"""A run that stands still says where, and ends: never a silent freeze.

One daemon thread. If `beat` is not called for `timeout_s`, the Python stacks of all
threads go to stderr and the process exits 6 (os._exit: the main thread cannot be asked).
"""

from __future__ import annotations

import faulthandler
import os
import sys
import threading
import time
from types import TracebackType

from vitrail.errors import ResourceError

__all__ = ["Watchdog"]


class Watchdog:
    """`with Watchdog(600) as dog:` and `dog.beat("step 17")` whenever something finished; 0 turns it off."""

    def __init__(self, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        self._last = time.monotonic()
        self._what = "start"
        self._end = threading.Event()

    def __enter__(self) -> Watchdog:
        if self.timeout_s > 0:
            self.beat(self._what)
            threading.Thread(target=self._watch, name="vitrail-watchdog", daemon=True).start()
        return self

    def beat(self, what: str) -> None:
        self._last, self._what = time.monotonic(), what

    def _watch(self) -> None:
        while not self._end.wait(min(1.0, self.timeout_s / 4)):
            still = time.monotonic() - self._last
            if still > self.timeout_s:
                print(
                    f"vitrail: nothing finished for {still:.0f} s after {self._what} (limit {self.timeout_s:.0f} s). "
                    "Stacks of all threads follow; the same command resumes.",
                    file=sys.stderr,
                    flush=True,
                )
                faulthandler.dump_traceback(all_threads=True)
                os._exit(ResourceError.exit_code)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end.set()
