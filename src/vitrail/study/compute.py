"""Table 6's column of pre-training compute, from the analytic count: images x 3 passes x 2 FLOP x MACs.

Most rows agree to the printed digit. Those that do not are known one by one, with the range
in which they miss (`above` in the target) and the reason; a row outside its range is a fault
of ours, and `ok` is False.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from vitrail.model.cost import cost_of, exaflops
from vitrail.model.names import config_for
from vitrail.study.targets import Row, Target

__all__ = ["Counted", "counted"]

CLOSE = 0.5  # per cent, or one unit of the printed digit


@dataclass(frozen=True)
class Counted:
    """One row: printed and counted exaFLOPs."""

    row: Row
    gmacs: float
    ours: float

    @property
    def difference(self) -> float:
        """Per cent above the printed number."""
        assert self.row.exaflops is not None
        return 100 * (self.ours / self.row.exaflops - 1)

    @property
    def close(self) -> bool:
        assert self.row.exaflops is not None
        return abs(self.difference) <= CLOSE or abs(self.ours - self.row.exaflops) <= 1.0

    @property
    def ok(self) -> bool:
        """Agrees, or misses exactly as it is known to (in whole and half per cents, as the ranges are given)."""
        if self.row.above is None:
            return self.close
        low, high = self.row.above
        return low <= round(2 * self.difference) / 2 <= high

    def to_dict(self) -> dict[str, Any]:
        return {
            "model": self.row.printed_as or self.row.model,
            "epochs": self.row.epochs,
            "images": self.row.images,
            "gmacs": round(self.gmacs, 3),
            "printed": self.row.exaflops,
            "ours": round(self.ours, 2),
            "difference_percent": round(self.difference, 2),
            "ok": self.ok,
            "why": self.row.why,
        }


def counted(target: Target) -> tuple[Counted, ...]:
    """Every row with a printed compute."""
    found = []
    for row in target.rows:
        if row.exaflops is not None and row.images is not None:
            config = config_for(row.create or row.model)
            found.append(Counted(row, cost_of(config).macs / 1e9, exaflops(config, row.images)))
    return tuple(found)
