"""Filling a run of slots: read, decode, view; the same function inline, in a thread and in a process.

What comes out depends on the positions alone: the order says which sample a position shows,
the stream of draws is keyed by the position, and a sample that cannot be used is replaced
by the next draw for that position. So it does not matter who fills a slot, or how often.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from vitrail.data.quarantine import IN_A_ROW, Bad
from vitrail.data.source import Source
from vitrail.errors import DataError, DecodeError
from vitrail.kernels import draws

__all__ = ["EvalMaker", "Filled", "Maker", "TrainMaker"]

RETRIES_S = (0.05, 0.25, 1.0)  # waits before a file that could not be read is given up


@dataclass
class Filled:
    """What became of a run of slots."""

    index: np.ndarray  # int64: the sample in each slot
    valid: np.ndarray  # bool
    bad: list[Bad]

    def packed(self) -> tuple[bytes, bytes, list[Bad]]:
        """For a pipe: pickling two small arrays costs ten times as much as pickling their bytes."""
        return self.index.astype(np.int64, copy=False).tobytes(), self.valid.tobytes(), self.bad

    @classmethod
    def unpacked(cls, packed: tuple[bytes, bytes, list[Bad]]) -> Filled:
        index, valid, bad = packed
        return cls(np.frombuffer(index, np.int64), np.frombuffer(valid, bool), bad)


class Maker(Protocol):
    shape: tuple[int, int, int]  # of one slot: rows, columns, channels
    dtype: Any

    def fill(self, positions: np.ndarray, out: np.ndarray, progress: Callable[[int], None]) -> Filled: ...


@dataclass
class TrainMaker:
    """Slots of the endless training stream."""

    source: Source
    view: Any  # crop.TrainView
    order: Any  # order.EpochOrder, order.BalancedOrder
    seed: int
    purpose: str = "crop"

    def __post_init__(self) -> None:
        self.shape = (*self.view.image_size, self.view.channels)
        self.dtype = np.uint8

    def fill(self, positions: np.ndarray, out: np.ndarray, progress: Callable[[int], None]) -> Filled:
        index = self.order(positions)
        bad: list[Bad] = []
        for slot, position in enumerate(positions.tolist()):
            progress(position)
            index[slot] = self._fill_one(position, int(index[slot]), out[slot], bad)
        return Filled(index, np.ones(len(positions), bool), bad)

    def _fill_one(self, position: int, index: int, out: np.ndarray, bad: list[Bad]) -> int:
        words = draws.key(self.seed, self.purpose)
        for attempt in range(IN_A_ROW):
            try:
                data, where = read(self.source, index)
                out[...] = self.view.pixels(data, draws.Stream(words, position), where)
                return index
            except DecodeError as error:
                bad.append(Bad(index, _name(self.source, index), error.reason, error.detail, position))
                index = self.order.replacement(position, attempt)
        names = "\n".join(f"  {b.id!r}: {b.reason}" for b in bad[-20:])
        raise DataError(f"{IN_A_ROW} samples in a row could not be read.\n{names}", hint="`vitrail data check SOURCE` lists every bad file")


@dataclass
class EvalMaker:
    """Slots of an evaluation: position = index; past the end, and where a file is bad, the slot is invalid."""

    source: Source
    view: Any  # transform.Preprocess
    length: int

    def __post_init__(self) -> None:
        self.shape = (*self.view.image_size, self.view.channels)
        self.dtype = np.dtype(self.view.dtype)

    def fill(self, positions: np.ndarray, out: np.ndarray, progress: Callable[[int], None]) -> Filled:
        valid = positions < self.length
        bad: list[Bad] = []
        for slot in range(len(positions)):
            index = int(positions[slot])
            progress(index)
            valid[slot] = valid[slot] and self._fill_one(index, out[slot], bad)
            if not valid[slot]:
                out[slot] = 0
        return Filled(np.where(positions < self.length, positions, -1), valid, bad)

    def _fill_one(self, index: int, out: np.ndarray, bad: list[Bad]) -> bool:
        try:
            data, where = read(self.source, index)
            out[...] = self.view.pixels(data, where)
        except DecodeError as error:
            bad.append(Bad(index, _name(self.source, index), error.reason, error.detail, index))
            return False
        return True


def read(source: Source, index: int) -> tuple[bytes | np.ndarray, str]:
    """(bytes or pixels, name) of a sample; storage that fails is tried again a few times, then it is a bad sample."""
    for wait in (*RETRIES_S, None):
        try:
            record = source.read(index)
            return record.data, record.id
        except DecodeError as error:
            if error.reason != "io" or wait is None:
                raise
        except OSError as error:
            if wait is None:
                raise DecodeError("io", error.strerror or str(error), where=_name(source, index)) from None
        assert wait is not None
        time.sleep(wait)
    raise AssertionError("unreachable")


def _name(source: Source, index: int) -> str:
    try:
        return source.id(index)
    except (OSError, DataError):
        return f"sample {index}"
