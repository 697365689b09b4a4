"""Which sample comes when: order = f(seed, epoch), computed, never stored.

A permutation of n things is a Feistel network over the smallest even number of bits
that holds n, walked along its cycle until it lands below n (format-preserving
encryption's trick). Position -> index costs a few integer operations and no memory,
so the order of 300 million samples starts at once.

    Permutation(n, key)      one shuffle of 0 .. n-1
    EpochOrder               samples by one Permutation an epoch; or, for a source of shards,
                             the shards by one Permutation, then the samples of each window of
                             shards by another: a reader holds `window` shards open, not all
    BalancedOrder            every class equally often
    BatchLayout              which positions a rank has at a step

The global batch of step s is positions s*B .. s*B+B-1 of one endless stream (epoch after
epoch, no gap, no remainder). Each rank takes one contiguous run of the batch; so the
stream, read rank after rank, is the same for any number of ranks, and a resume needs
one integer. All ranks walk the same window of shards, so none can run dry.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from vitrail.errors import UsageError
from vitrail.kernels import draws

__all__ = ["BalancedOrder", "BatchLayout", "EpochOrder", "Permutation"]

_ROUNDS = 8
_MASK = 0xFFFFFFFF


class Permutation:
    """A keyed shuffle of 0 .. length-1, evaluated at any positions in any order."""

    def __init__(self, length: int, words: tuple[int, int]) -> None:
        if length < 1:
            raise UsageError(f"cannot order {length} samples", hint="give a source with at least one image")
        self.length = length
        self.half = max(1, ((length - 1).bit_length() + 1) // 2)
        rounds = draws.bits_numpy(words, np.arange(_ROUNDS), 2)
        self.round_keys = [(int(a), int(b)) for a, b in rounds]

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        """int64 positions below `length` -> int64 indices; a bijection."""
        out = self._encrypt(np.asarray(positions, dtype=np.int64))
        outside = np.flatnonzero(out >= self.length)
        while outside.size:  # at most 3 of 4 values lie outside, so few laps suffice
            walked = self._encrypt(out[outside])
            out[outside] = walked
            outside = outside[walked >= self.length]
        return out

    def _encrypt(self, x: np.ndarray) -> np.ndarray:
        mask = np.uint32((1 << self.half) - 1)
        left = (x >> self.half).astype(np.uint32)
        right = x.astype(np.uint32) & mask
        for a, b in self.round_keys:
            left, right = right, left ^ (_mix(right ^ np.uint32(a), b) & mask)
        return (left.astype(np.int64) << self.half) | right.astype(np.int64)


def _mix(x: np.ndarray, word: int) -> np.ndarray:
    """A round function: murmur3's finaliser with the round's second word folded in."""
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(0x85EBCA6B) + np.uint32(word)
    x = x ^ (x >> np.uint32(13))
    x = x * np.uint32(0xC2B2AE35)
    return x ^ (x >> np.uint32(16))


@dataclass(frozen=True)
class EpochOrder:
    """position in the endless stream -> sample index.

    `shards` are the lengths of contiguous runs that are cheap to read together (None: any
    sample is as cheap as any other). `repeats` > 1 gives repeated augmentation (DeiT): an
    epoch still has `length` slots but shows length / repeats images, each `repeats` times
    in a row, with different draws.
    """

    length: int
    seed: int
    shards: Sequence[int] | None = None
    window: int = 16
    repeats: int = 1
    _epochs: dict[int, _Shuffle | Permutation] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.shards is not None and int(np.sum(np.asarray(self.shards))) != self.length:
            raise UsageError(
                f"the shards hold {int(np.sum(np.asarray(self.shards)))} samples, the source {self.length}",
                hint="build the source's index again",
            )

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_epochs": {}}

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        positions = np.asarray(positions, dtype=np.int64)
        epoch, slot = np.divmod(positions, self.length)
        out = np.empty_like(slot)
        for e in np.unique(epoch):
            here = epoch == e
            out[here] = self._epoch(int(e))(slot[here] // self.repeats)
        return out

    def replacement(self, position: int, attempt: int) -> int:
        """The sample that takes a bad one's slot: a draw from the same epoch's order.

        A function of (seed, position, attempt) alone, so every worker and rank agrees, and no
        other slot moves.
        """
        epoch, _ = divmod(position, self.length)
        words = draws.key(self.seed, "replacement", attempt)
        slot = draws.Stream(words, position).integer(self.length)
        return int(self(np.array([epoch * self.length + slot]))[0])

    def _epoch(self, epoch: int) -> _Shuffle | Permutation:
        if epoch not in self._epochs:
            for old in list(self._epochs)[:-1]:  # a batch touches at most two neighbours
                self._epochs.pop(old, None)
            self._epochs[epoch] = self._shuffle(epoch)
        return self._epochs[epoch]

    def _shuffle(self, epoch: int) -> _Shuffle | Permutation:
        if self.shards is None or len(self.shards) <= 1:
            return Permutation(self.length, draws.key(self.seed, "order", epoch))
        return _Shuffle(self._lengths, self._starts, self.seed, epoch, self.window)

    @cached_property
    def _lengths(self) -> np.ndarray:
        return np.asarray(self.shards, dtype=np.int64)

    @cached_property
    def _starts(self) -> np.ndarray:
        return np.concatenate([[0], np.cumsum(self._lengths)[:-1]])


class _Shuffle:
    """Shards in shuffled order, samples shuffled inside each window of `window` shards.

    Memory: three integers a shard. At any moment the stream draws on one window.
    """

    def __init__(self, lengths: np.ndarray, starts: np.ndarray, seed: int, epoch: int, window: int) -> None:
        count = len(lengths)
        self.seed, self.epoch, self.window = seed, epoch, max(1, window)
        self.shards = Permutation(count, draws.key(seed, "shard order", epoch))(np.arange(count))
        self.starts = starts[self.shards]
        self.ends = np.cumsum(lengths[self.shards])  # in stream order
        last = np.minimum(np.arange(0, count, self.window) + self.window, count) - 1
        self.window_ends = self.ends[last]

    def __call__(self, slots: np.ndarray) -> np.ndarray:
        out = np.empty_like(slots)
        windows = np.searchsorted(self.window_ends, slots, side="right")
        for w in np.unique(windows):
            here = windows == w
            out[here] = self._inside(int(w), slots[here])
        return out

    def _inside(self, w: int, slots: np.ndarray) -> np.ndarray:
        begin = int(self.window_ends[w - 1]) if w else 0
        words = draws.key(self.seed, f"window {w}", self.epoch)
        place = begin + Permutation(int(self.window_ends[w]) - begin, words)(slots - begin)
        shard = np.searchsorted(self.ends, place, side="right")
        first = np.where(shard > 0, self.ends[shard - 1], 0)
        return self.starts[shard] + place - first


@dataclass(frozen=True)
class BatchLayout:
    """Rank `rank` of `world` takes a contiguous run of every global batch."""

    batch_size: int
    rank: int = 0
    world: int = 1

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.world < 1 or not 0 <= self.rank < self.world:
            raise UsageError(f"batch size {self.batch_size}, rank {self.rank} of {self.world} is no layout")
        if self.batch_size % self.world:
            lower = self.batch_size - self.batch_size % self.world
            raise UsageError(
                f"a global batch of {self.batch_size} does not divide among {self.world} ranks",
                hint=f"use a batch size of {lower or self.world} or {lower + self.world}",
            )

    @property
    def share(self) -> int:
        return self.batch_size // self.world

    def positions(self, step: int) -> np.ndarray:
        first = step * self.batch_size + self.rank * self.share
        return np.arange(first, first + self.share, dtype=np.int64)


@dataclass(frozen=True)
class BalancedOrder:
    """position in the endless stream -> sample index, every class equally often.

    The stream goes in rounds: each shows every class once, in an order of its own. The r-th
    round shows the r-th sample of each class's own shuffle, which is new each time the class
    has been gone through. Samples without a label (-1) are left out.
    """

    labels: np.ndarray
    seed: int
    repeats: int = 1
    _shuffles: dict[tuple[int, int], Permutation] = field(default_factory=dict, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not (np.asarray(self.labels) >= 0).any():
            raise UsageError("balanced sampling needs labels, and no sample has one", hint="data.sampling='shuffle'")

    def __getstate__(self) -> dict[str, object]:
        state = {key: value for key, value in self.__dict__.items() if key not in ("_members", "length")}
        return {**state, "_shuffles": {}}

    @cached_property
    def length(self) -> int:
        """Slots of an epoch: as many as there are labelled samples."""
        return int((np.asarray(self.labels) >= 0).sum())

    @cached_property
    def _members(self) -> list[np.ndarray]:
        """Sample indices of each class that has any."""
        labels = np.asarray(self.labels)
        by_class = np.argsort(labels, kind="stable")
        by_class = by_class[len(labels) - self.length :]
        return np.split(by_class, np.flatnonzero(np.diff(labels[by_class])) + 1)

    def __call__(self, positions: np.ndarray) -> np.ndarray:
        slots = np.asarray(positions, dtype=np.int64) // self.repeats
        rounds, places = np.divmod(slots, len(self._members))
        out = np.empty_like(slots)
        for r in np.unique(rounds):
            here = rounds == r
            classes = Permutation(len(self._members), draws.key(self.seed, "classes", int(r)))(places[here])
            out[here] = [self._sample(int(c), int(r)) for c in classes]
        return out

    def _sample(self, c: int, visit: int) -> int:
        members = self._members[c]
        lap, place = divmod(visit, len(members))
        if (c, lap) not in self._shuffles:
            if len(self._shuffles) > 4 * len(self._members):
                self._shuffles.clear()
            self._shuffles[c, lap] = Permutation(len(members), draws.key(self.seed, f"class {c}", lap))
        return int(members[self._shuffles[c, lap](np.array([place]))[0]])

    def replacement(self, position: int, attempt: int) -> int:
        """The sample that takes a bad one's slot: a draw from the stream, as `EpochOrder.replacement`."""
        epoch, _ = divmod(position, self.length)
        slot = draws.Stream(draws.key(self.seed, "replacement", attempt), position).integer(self.length)
        return int(self(np.array([epoch * self.length + slot]))[0])
