"""The same picture more than once: within a split, across splits, and under two labels.

Every image belongs to a group of images with the same bytes; groups that look alike are
compared once, by one image of each. A leak is counted by the images of the later split.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.data.likeness import near_pairs
from vitrail.data.names import shown
from vitrail.data.source import Source

__all__ = ["Copies", "Leak", "Seen"]

EXAMPLES = 20


@dataclass
class Seen:
    """What is kept of every image of a split."""

    source: Source
    digest: np.ndarray  # (N, 2) uint64 of SHA-256
    bits: np.ndarray
    thumbs: np.ndarray
    good: np.ndarray  # it decoded
    size: np.ndarray  # (N, 2) width, height


@dataclass
class Leak:
    """Images of `inside` that `of` holds too."""

    of: str
    inside: str
    exact: int
    near: int
    examples: list[list[str]]


class Copies:
    """All decoded images of all splits, laid end to end, and which of them are the same."""

    def __init__(self, seen: Sequence[Seen], near: bool) -> None:
        self.seen = seen
        self.split = np.concatenate([np.full(int(s.good.sum()), k) for k, s in enumerate(seen)])
        self.place = np.concatenate([np.flatnonzero(s.good) for s in seen])
        digest = np.concatenate([s.digest[s.good] for s in seen])
        _, first, group = np.unique(digest, axis=0, return_index=True, return_inverse=True)
        self.group = group.ravel()
        self.order = np.argsort(self.group, kind="stable")  # groups one after another, splits in order within
        self.starts = np.searchsorted(self.group[self.order], np.arange(len(first) + 1))
        same = self.group[self.order[1:]] == self.group[self.order[:-1]]
        self.exact = np.stack([self.order[:-1][same], self.order[1:][same]], 1)  # neighbours name every copy
        self.alike = np.empty((0, 2), np.int64)
        if near:
            bits = np.concatenate([s.bits[s.good] for s in seen])
            thumbs = np.concatenate([s.thumbs[s.good] for s in seen])
            self.alike = np.sort(first[near_pairs(bits[first], thumbs[first])], axis=1)

    def _members(self, at: int) -> np.ndarray:
        """Every copy of one image, itself among them."""
        group = self.group[at]
        return self.order[self.starts[group] : self.starts[group + 1]]

    def _name(self, at: int) -> str:
        return shown(self.seen[self.split[at]].source.id(int(self.place[at])))

    def _named(self, pairs: Iterable[Any]) -> list[list[str]]:
        return [[self._name(int(i)), self._name(int(j))] for i, j in pairs]

    def within(self, k: int) -> tuple[int, int, list[list[str]], list[list[str]]]:
        """(images of split k that repeat one before, images that look like one before, examples of each)."""
        inside = self.split == k
        _, times = np.unique(self.group[inside], return_counts=True)
        exact = self.exact[inside[self.exact].all(1)]
        alike = self.alike[inside[self.alike].all(1)]
        return int((times - 1).sum()), len(np.unique(alike[:, 1])), self._named(exact[:EXAMPLES]), self._named(alike[:EXAMPLES])

    def across(self, a: int, b: int) -> Leak | None:
        """Images of split b that split a holds: by their bytes, or else by their looks."""
        shared, near = self.held(a, b)
        if not len(shared) and not near:
            return None
        exact = [(i, j) for i, j in self.exact if self.split[i] == a and self.split[j] == b]
        examples = self._named([*exact, *((i, j) for j, i in near.items())][:EXAMPLES])
        of, inside = (str(self.seen[k].source.split) for k in (a, b))
        return Leak(of, inside, len(shared), len(near), examples)

    def held(self, a: int, b: int) -> tuple[np.ndarray, dict[int, int]]:
        """Of split b: (images whose bytes split a holds, {image that only looks like one: that one})."""
        held = np.zeros(int(self.group.max(initial=-1)) + 1, bool)
        held[self.group[self.split == a]] = True
        shared = held[self.group] & (self.split == b)
        return np.flatnonzero(shared), {j: i for i, j in self._crossing(a, b) if not held[self.group[j]]}

    def twin(self, a: int, j: int) -> int:
        """The first image of split a with the bytes of image j."""
        members = self._members(j)
        return int(members[self.split[members] == a][0])

    def _crossing(self, a: int, b: int) -> list[tuple[int, int]]:
        """(image of split a, image of split b that looks like it), every copy of the latter."""
        pairs = []
        for i, j in self.alike:
            for one, other in ((i, j), (j, i)):
                left = [k for k in self._members(one) if self.split[k] == a][:1]
                pairs += [(k, int(m)) for k in left for m in self._members(other) if self.split[m] == b]
        return pairs

    def conflicts(self) -> tuple[int, list[list[str]]]:
        """Pictures with the same bytes and not the same label."""
        differ = []
        for i, j in self.exact:
            one, other = self._label(i), self._label(j)
            if one != other and None not in (one, other):
                differ.append([f"{self._name(i)} ({one})", f"{self._name(j)} ({other})"])
        return len(differ), differ[:EXAMPLES]

    def _label(self, at: int) -> str | None:
        source = self.seen[self.split[at]].source
        label = source.labels[int(self.place[at])]
        if isinstance(label, tuple):
            return " and ".join(source.classes[k] for k in label)
        return source.classes[int(label)] if label >= 0 else None
