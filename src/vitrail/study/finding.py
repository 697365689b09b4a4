"""One thing that the doctor found."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Finding"]


@dataclass(frozen=True)
class Finding:
    level: str  # "ok", "note", "problem"
    about: str
    text: str
    next: str = ""

    def __str__(self) -> str:
        mark = {"ok": " ", "note": "·", "problem": "!"}[self.level]
        return f"{mark} {self.about:<14} {self.text}" + (f"\n{'':17}next: {self.next}" if self.next else "")
