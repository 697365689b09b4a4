"""metrics.jsonl: one JSON object a line, appended in one write, cut back at resume.

A line has `step` and deterministic numbers, and under `time` everything that depends on
the machine's speed; so two equal runs differ in `time` only. A log that cannot be
written costs one warning and is counted; it never stops a run.
"""

from __future__ import annotations

import json
import math
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitrail.runtime.disk import write_atomic
from vitrail.runtime.faults import fault

__all__ = ["MetricsLog", "read_metrics"]


class MetricsLog:
    """Appends to one file; `failures` counts the lines a full disk cost us."""

    def __init__(self, path: Path, failures: int = 0) -> None:
        self.path = Path(path)
        self.failures = failures
        self._warned = False

    def append(self, line: dict[str, Any]) -> None:
        """One line, one write: a crash leaves whole lines, or a torn last one that `read_metrics` passes over."""
        text = (json.dumps(_finite(line), separators=(", ", ": ")) + "\n").encode()
        try:
            fault("log.before")
            handle = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
            try:
                os.write(handle, text)
            finally:
                os.close(handle)
            fault("log.after")
        except OSError as error:
            self.failures += 1
            if not self._warned:
                self._warned = True
                warnings.warn(f"{self.path} cannot be written ({error}); training goes on without these lines.", stacklevel=2)

    def cut_after(self, step: int) -> None:
        """Drop lines beyond `step` (work that the checkpoint we resume from does not hold), and torn lines."""
        if self.path.exists():
            kept = [line for line in read_metrics(self.path) if line.get("step", 0) <= step]
            write_atomic(self.path, "".join(json.dumps(line, separators=(", ", ": ")) + "\n" for line in kept).encode())


def read_metrics(path: Path) -> Iterator[dict[str, Any]]:
    """The lines of a metrics file, torn ones left out."""
    with open(path, encoding="utf-8", errors="replace") as file:
        for text in file:
            try:
                line = json.loads(text)
            except ValueError:
                continue
            if isinstance(line, dict):
                yield line


def _finite(value: Any) -> Any:
    """JSON has no NaN: write it as a string, which every reader survives."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {key: _finite(item) for key, item in value.items()}
    return value
