"""Random draws as a function of a key: no generator, no state, nothing to save.

A draw is `hash(seed, purpose, step, sample index, lane)`. Two words k0, k1 stand for
(seed, purpose, step); a sample's index folds them into that sample's own two words;
lanes number the draws of one sample. The hash is murmur3's 32-bit finaliser, applied
twice a lane, in wrapping 32-bit arithmetic: the same bits from torch on any device,
from numpy, and from plain Python (tests hold the three together).

    keys = sample_keys(key(seed, "flip", epoch), index)   # (N, 2) int32
    coin = uniform(keys, 1)[:, 0] < 0.5                   # the same for any batch split
"""

from __future__ import annotations

import hashlib

import numpy as np
import torch
from torch import Tensor

__all__ = ["Stream", "Streams", "bits", "bits_numpy", "key", "sample_keys", "uniform", "uniform_numpy"]

_GOLDEN = 0x9E3779B9
_M1, _M2 = 0x85EBCA6B, 0xC2B2AE35
_MASK = 0xFFFFFFFF


def key(seed: int, purpose: str, step: int = 0) -> tuple[int, int]:
    """The two 32-bit words that stand for (seed, purpose, step)."""
    digest = hashlib.blake2b(f"{seed}\x00{purpose}\x00{step}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def _signed(word: int) -> int:
    """The int32 with the same bits as a 32-bit word."""
    word &= _MASK
    return word - (1 << 32) if word >= (1 << 31) else word


def _mix(x: Tensor) -> Tensor:
    """murmur3's fmix32 on int32; `& mask` makes the arithmetic shift a logical one."""
    x = x ^ ((x >> 16) & 0xFFFF)
    x = x * _signed(_M1)
    x = x ^ ((x >> 13) & 0x7FFFF)
    x = x * _signed(_M2)
    return x ^ ((x >> 16) & 0xFFFF)


def sample_keys(words: tuple[int, int], index: Tensor) -> Tensor:
    """(N,) int64 sample indices -> (N, 2) int32 keys, one pair a sample."""
    low = _to_int32(index & _MASK)
    high = _to_int32((index >> 32) & _MASK)
    a = _mix(_mix(low ^ _signed(words[0])) ^ high ^ _signed(words[1]))
    b = _mix(a + _signed(_GOLDEN) ^ low)
    return torch.stack([a, b], dim=-1)


def _to_int32(word: Tensor) -> Tensor:
    """An int64 tensor of values below 2**32 -> int32 with the same bits."""
    return torch.where(word >= 1 << 31, word - (1 << 32), word).to(torch.int32)


def bits(keys: Tensor, count: int, start: int = 0) -> Tensor:
    """(N, 2) keys -> (N, count) int32 of 32 random bits each; lanes start .. start+count-1."""
    # the first lane's constant is wrapped here: a compiler that folds start * golden would leave the 32 bits
    lane = torch.arange(count, device=keys.device, dtype=torch.int32) * _signed(_GOLDEN) + _signed(start * _GOLDEN)
    return _mix(_mix(keys[:, :1] + lane) ^ keys[:, 1:])


def uniform(keys: Tensor, count: int, start: int = 0) -> Tensor:
    """(N, 2) keys -> (N, count) float32 in [0, 1), 24 bits each (exact on every device)."""
    return ((bits(keys, count, start) >> 8) & 0xFFFFFF).to(torch.float32) * 2.0**-24


def _mix_numpy(x: np.ndarray) -> np.ndarray:
    x = x ^ (x >> np.uint32(16))
    x = x * np.uint32(_M1)
    x = x ^ (x >> np.uint32(13))
    x = x * np.uint32(_M2)
    return x ^ (x >> np.uint32(16))


def bits_numpy(words: tuple[int, int], index: np.ndarray, count: int, start: int = 0) -> np.ndarray:
    """The numpy twin of `bits(sample_keys(words, index), count, start)`, as uint32."""
    index = np.asarray(index, dtype=np.uint64)
    low = (index & np.uint64(_MASK)).astype(np.uint32)
    high = (index >> np.uint64(32)).astype(np.uint32)
    with np.errstate(over="ignore"):
        a = _mix_numpy(_mix_numpy(low ^ np.uint32(words[0])) ^ high ^ np.uint32(words[1]))
        b = _mix_numpy((a + np.uint32(_GOLDEN)) ^ low)
        lane = np.arange(start, start + count, dtype=np.uint32) * np.uint32(_GOLDEN)
        return _mix_numpy(_mix_numpy(a[..., None] + lane) ^ b[..., None])


def uniform_numpy(words: tuple[int, int], index: np.ndarray, count: int, start: int = 0) -> np.ndarray:
    """The numpy twin of `uniform`: float64 holding the same 24-bit values."""
    return (bits_numpy(words, index, count, start) >> np.uint32(8)).astype(np.float64) * 2.0**-24


class Stream:
    """The draws of one sample, one after another, as plain Python numbers (for decode workers)."""

    def __init__(self, words: tuple[int, int], index: int) -> None:
        low, high = index & _MASK, (index >> 32) & _MASK
        self.a = _mix_int(_mix_int(low ^ words[0]) ^ high ^ words[1])
        self.b = _mix_int((self.a + _GOLDEN & _MASK) ^ low)
        self.lane = 0

    def bits(self) -> int:
        word = _mix_int(_mix_int(self.a + self.lane * _GOLDEN & _MASK) ^ self.b)
        self.lane += 1
        return word

    def uniform(self, low: float = 0.0, high: float = 1.0) -> float:
        """[low, high) with 53 random bits (two lanes)."""
        value = ((self.bits() >> 5) * 67108864 + (self.bits() >> 6)) * 2.0**-53
        return low + (high - low) * value

    def integer(self, n: int) -> int:
        """0 .. n-1; the bias of the multiply-shift is below n / 2**32."""
        return self.bits() * n >> 32


class Streams:
    """Many samples' `Stream`s at once: the same draws, each sample at its own place among them.

    `rows` says which samples draw (an index array); the others stay where they are.
    """

    def __init__(self, words: tuple[int, int], index: np.ndarray) -> None:
        index = np.asarray(index, dtype=np.uint64)
        low, high = (index & np.uint64(_MASK)).astype(np.uint32), (index >> np.uint64(32)).astype(np.uint32)
        with np.errstate(over="ignore"):
            self.a = _mix_numpy(_mix_numpy(low ^ np.uint32(words[0])) ^ high ^ np.uint32(words[1]))
            self.b = _mix_numpy((self.a + np.uint32(_GOLDEN)) ^ low)
        self.lane = np.zeros(len(index), np.uint32)

    def bits(self, rows: np.ndarray) -> np.ndarray:
        with np.errstate(over="ignore"):
            word = _mix_numpy(_mix_numpy(self.a[rows] + self.lane[rows] * np.uint32(_GOLDEN)) ^ self.b[rows])
        self.lane[rows] += np.uint32(1)
        return word

    def uniform(self, rows: np.ndarray, low: float = 0.0, high: float = 1.0) -> np.ndarray:
        first, second = self.bits(rows) >> np.uint32(5), self.bits(rows) >> np.uint32(6)
        value = (first.astype(np.float64) * 67108864 + second) * 2.0**-53
        return low + (high - low) * value

    def integer(self, rows: np.ndarray, n: np.ndarray | int) -> np.ndarray:
        """0 .. n-1, n for all or one a row."""
        wide = self.bits(rows).astype(np.uint64) * np.asarray(n, dtype=np.uint64)
        return (wide >> np.uint64(32)).astype(np.int64)


def _mix_int(x: int) -> int:
    x ^= x >> 16
    x = x * _M1 & _MASK
    x ^= x >> 13
    x = x * _M2 & _MASK
    return x ^ x >> 16
