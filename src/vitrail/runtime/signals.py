"""SIGTERM, SIGUSR1 and Ctrl-C become a wish to stop, read at the next step boundary.

The first signal only sets a flag: the loop commits a checkpoint and exits 75. A second
Ctrl-C raises Interrupted at once (exit 130); the last checkpoint is intact, because
commits are renames. Handlers are installed only in the main thread, and put back.
"""

from __future__ import annotations

import signal
import sys
import threading
from types import FrameType, TracebackType
from typing import Any

from vitrail.errors import Interrupted

__all__ = ["StopRequest"]


class StopRequest:
    """`with StopRequest() as stop:` then read `stop.reason` between steps."""

    SIGNALS = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)

    def __init__(self) -> None:
        self.reason: str | None = None
        self._interrupts = 0
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> StopRequest:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in self.SIGNALS}
        return self

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if number == signal.SIGINT:
            self._interrupts += 1
            if self._interrupts > 1:
                raise Interrupted("stopped at once by the second Ctrl-C.", hint="the same command resumes from the last checkpoint.")
        self.reason = name
        extra = " (Ctrl-C again stops at once)" if number == signal.SIGINT else ""
        print(f"vitrail: {name}: saving at the end of this step{extra}", file=sys.stderr, flush=True)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
