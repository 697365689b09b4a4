"""One progress line on stderr: redrawn on a terminal, printed now and then elsewhere."""

from __future__ import annotations

import sys
import time
from types import TracebackType

__all__ = ["Progress", "duration", "quantity"]


class Progress:
    """`show(text)` replaces the line; `say(text)` prints a line that stays."""

    def __init__(self, *, quiet: bool = False, every_s: float = 10.0) -> None:
        self.quiet = quiet
        self.terminal = sys.stderr.isatty()
        self.every_s = every_s
        self._width = 0
        self._next = 0.0

    def __enter__(self) -> Progress:
        return self

    def show(self, text: str) -> None:
        if self.quiet:
            return
        if self.terminal:
            print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
            self._width = len(text)
        elif time.monotonic() >= self._next:
            print(text, file=sys.stderr, flush=True)
            self._next = time.monotonic() + self.every_s

    def say(self, text: str) -> None:
        if not self.quiet:
            self._end_line()
            print(text, file=sys.stderr, flush=True)

    def _end_line(self) -> None:
        if self.terminal and self._width:
            print(file=sys.stderr)
            self._width = 0

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._end_line()


def duration(seconds: float) -> str:
    """7 s, 3 min 20 s, 2 h 05 min, 3 d 4 h."""
    total = round(max(0.0, seconds))
    minutes, hours, days = total // 60, total // 3600, total // 86400
    if minutes == 0:
        return f"{total} s"
    if hours == 0:
        return f"{minutes} min {total % 60:02d} s"
    if days == 0:
        return f"{hours} h {minutes % 60:02d} min"
    return f"{days} d {hours % 24} h"


def quantity(value: float, unit: str) -> str:
    """3 significant digits with a metric prefix: 12.3 GB, 4.56 TFLOP/s."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 1000:
            return f"{value:.3g} {prefix}{unit}"
        value /= 1000
    return f"{value:.3g} P{unit}"
