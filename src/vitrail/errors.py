"""Every error Vitrail raises on purpose, drawn as a tree.

    VitrailError            exit 1   a bug of ours, or a base to catch them all
    ├── UsageError          exit 2   the command, recipe or argument is wrong
    ├── DataError           exit 3   images, labels, splits
    │   └── DecodeError              one file that is no image (a closed set of reasons)
    ├── NumericsError       exit 4   NaN, Inf, a parity check that failed
    ├── CheckpointError     exit 5   weights and run checkpoints
    ├── ResourceError       exit 6   disk, memory, a dead or stalled worker, a missing extra
    ├── Preempted           exit 75  saved and stopped; the same command resumes
    └── Interrupted         exit 130 stopped at once

A message says what is wrong and where; `hint` says what to do next. Nothing is
raised for control flow, and no error of this tree leaves half-written files.
"""

from __future__ import annotations

import difflib
import sys
from collections.abc import Iterable

__all__ = [
    "CheckpointError",
    "DataError",
    "DecodeError",
    "Interrupted",
    "NumericsError",
    "Preempted",
    "ResourceError",
    "UsageError",
    "VitrailError",
    "missing_extra",
    "nearest",
    "refuse_windows",
]


class VitrailError(Exception):
    """What went wrong and where; `hint` is the next step for whoever reads it."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message}\n  next: {self.hint}" if self.hint else self.message


class UsageError(VitrailError):
    exit_code = 2


class DataError(VitrailError):
    exit_code = 3


class DecodeError(DataError):
    """One image that cannot be used. `reason` is one of `REASONS`, `where` names the image."""

    REASONS = (
        "empty",
        "unrecognised",
        "format_refused",
        "too_many_bytes",
        "too_many_pixels",
        "bad_dimensions",
        "truncated",
        "corrupt",
        "io",
    )

    def __init__(self, reason: str, detail: str = "", *, where: str = "", hint: str | None = None) -> None:
        assert reason in self.REASONS, reason
        text = f"{where or 'image'}: {reason}" + (f" ({detail})" if detail else "")
        super().__init__(text, hint=hint)
        self.reason = reason
        self.detail = detail
        self.where = where

    def __reduce__(self) -> tuple[object, ...]:  # survives the trip from a worker process
        return (_rebuild_decode_error, (self.reason, self.detail, self.where, self.hint))


def _rebuild_decode_error(reason: str, detail: str, where: str, hint: str | None) -> DecodeError:
    return DecodeError(reason, detail, where=where, hint=hint)


class NumericsError(VitrailError):
    exit_code = 4


class CheckpointError(VitrailError):
    exit_code = 5


class ResourceError(VitrailError):
    exit_code = 6


class Preempted(VitrailError):
    exit_code = 75


class Interrupted(VitrailError):
    exit_code = 130


def nearest(name: str, choices: Iterable[str]) -> str:
    """' (did you mean X?)' for the closest choice, or the whole list when it is short."""
    known = sorted(set(choices))
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    if close:
        return f" (did you mean {close[0]!r}?)"
    return f" (known: {', '.join(known)})" if len(known) <= 24 else ""


def missing_extra(package: str, extra: str, why: str) -> ResourceError:
    """The one sentence for an optional dependency that is not installed."""
    return ResourceError(f"{why} needs the package {package!r}, which is not installed.", hint=f"pip install 'vitrail[{extra}]'")


def refuse_windows() -> None:
    """File locks, fork and signals of POSIX are what the promises stand on."""
    if sys.platform == "win32":
        raise ResourceError("Vitrail does not run on Windows itself.", hint="use WSL 2, where it runs as on Linux (docs/platforms.md)")
