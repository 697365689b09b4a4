"""Bad samples: named, counted, bounded; a bad one never moves its neighbours.

A sample that cannot be read or decoded is replaced by a deterministic draw from the same
epoch's order (training) or marked invalid (evaluation). It is listed once an epoch. When
more than `max_bad` of the samples seen are bad (and at least `AT_LEAST`), or `IN_A_ROW`
in sequence, the stream stops and names the first twenty.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass, field
from typing import Any

from vitrail.errors import DataError

__all__ = ["AT_LEAST", "IN_A_ROW", "Bad", "Quarantine"]

AT_LEAST = 4  # a handful of bad files in a small folder is a warning, not the end
IN_A_ROW = 100


@dataclass(frozen=True)
class Bad:
    """One sample that could not be used, and the slot of the stream it was meant for."""

    index: int
    id: str
    reason: str  # one of DecodeError.REASONS
    detail: str
    position: int


@dataclass
class Quarantine:
    length: int  # samples in the source
    max_bad: float = 0.01
    entries: list[dict[str, Any]] = field(default_factory=list)  # what `stream.quarantine` shows
    seen: int = 0
    run: int = 0  # bad ones in sequence
    _listed: set[tuple[int, int]] = field(default_factory=set, repr=False)
    _bad: dict[int, Bad] = field(default_factory=dict, repr=False)

    def take(self, count: int, bad: list[Bad]) -> None:
        """One batch's share: `count` slots, filled in order, and what was found bad on the way."""
        broken = {entry.position for entry in bad}
        first_bad = bad[0].position if bad else None
        for entry in bad:
            self._list(entry)
        # the slots of a batch are consecutive: what matters is the longest tail of bad ones
        self.run = self.run + len(bad) if len(broken) == count and first_bad is not None else len(bad)
        self.seen += count
        self._refuse()

    def _list(self, entry: Bad) -> None:
        epoch = entry.position // max(self.length, 1)
        if (entry.index, epoch) not in self._listed:
            self._listed.add((entry.index, epoch))
            self._bad.setdefault(entry.index, entry)
            self.entries.append({**asdict(entry), "epoch": epoch})

    def _refuse(self) -> None:
        # a small set is judged as a whole: its first bad file is not "1 of 8"
        base = max(min(self.seen, self.length), min(self.length, 1000))
        bad = len(self._bad)
        if self.run >= IN_A_ROW:
            raise DataError(f"{self.run} samples in a row could not be read.\n{self._first()}", hint=_HINT)
        if bad >= AT_LEAST and bad > self.max_bad * base:
            raise DataError(f"{bad} of {base:,} samples could not be read, more than {self.max_bad:.1%}.\n{self._first()}", hint=_HINT)

    def _first(self) -> str:
        lines = [f"  {b.id!r}: {b.reason}{f' ({b.detail})' if b.detail else ''}" for b in list(self._bad.values())[:20]]
        more = len(self._bad) - len(lines)
        return "\n".join([*lines, f"  … and {more} more"] if more > 0 else lines)

    def summary(self) -> str:
        """'3 samples could not be read (2 truncated, 1 corrupt)', or '' when all is well."""
        if not self._bad:
            return ""
        kinds = Counter(b.reason for b in self._bad.values())
        text = ", ".join(f"{count} {reason}" for reason, count in kinds.most_common())
        return f"{len(self._bad)} sample{'s' if len(self._bad) > 1 else ''} could not be read ({text})"


_HINT = "`vitrail data check SOURCE` lists every bad file; remove or repair them"
