"""Name tables that read and write: what a parameter is called elsewhere, and how its numbers lie there.

A `Rule` ties some of our parameters to some of a file's arrays by two pure functions,
`read` (theirs -> ours) and its inverse `write`. One table therefore reads a file, writes
it, and (run on tensors without memory) says which names and shapes the file must have.

    rule("norm.weight", "encoder/scale")                       the same numbers under another name
    rule("head.weight", "head/kernel", TRANSPOSED)             turned
    joined("blocks.{i}.attention.qkv.weight", ("q", "k", "v")) ours is theirs, one below the other
    per_block(depth, rules)                                    every {i} becomes 0 .. depth - 1
    stacked(depth, rules)                                      theirs holds all blocks along a leading axis

A table lists every parameter its origin can have; rules whose parameters a model lacks
(no LayerScale, no bias) fall away by themselves, see `active`.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

__all__ = [
    "BATCHED",
    "HWIO",
    "KERNEL_1X1",
    "SAME",
    "TRANSPOSED",
    "Change",
    "Rule",
    "active",
    "joined",
    "per_block",
    "rule",
    "split",
    "stacked",
    "their_tensors",
]

Turn = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Change:
    """How one array lies in the file: there (`write`) and back (`read`); exact inverses, views where possible."""

    read: Turn
    write: Turn


SAME = Change(lambda t: t, lambda t: t)
TRANSPOSED = Change(lambda t: t.T, lambda t: t.T)  # dense kernels (in, out)
HWIO = Change(lambda t: t.permute(3, 2, 0, 1), lambda t: t.permute(2, 3, 1, 0))  # convolutions (h, w, in, out)
BATCHED = Change(lambda t: t[0], lambda t: t[None])  # tables with a leading axis of 1
KERNEL_1X1 = Change(lambda t: t[:, :, 0, 0], lambda t: t[:, :, None, None])  # a dense layer stored as a 1x1 convolution


@dataclass(frozen=True)
class Rule:
    """Our parameters `ours` <-> the file's arrays `theirs`."""

    ours: tuple[str, ...]
    theirs: tuple[str, ...]
    read: Callable[[Sequence[Tensor]], Sequence[Tensor]]
    write: Callable[[Sequence[Tensor]], Sequence[Tensor]]


def rule(ours: str, theirs: str, change: Change = SAME) -> Rule:
    """One parameter, one array."""
    return Rule((ours,), (theirs,), lambda ts: [change.read(ts[0])], lambda ts: [change.write(ts[0])])


def joined(ours: str, theirs: Sequence[str], change: Change = SAME) -> Rule:
    """One parameter of ours holds several arrays of theirs, equal in shape, one below the other (q, k, v)."""
    return Rule(
        (ours,),
        tuple(theirs),
        lambda ts: [below([change.read(t) for t in ts])],
        lambda ts: [change.write(t) for t in ts[0].chunk(len(theirs))],
    )


def below(tensors: Sequence[Tensor]) -> Tensor:
    """One below the other. Without memory only the shape counts, and torch.cat would import 3 s of Python for it."""
    if tensors[0].is_meta:
        return tensors[0].new_empty((sum(t.shape[0] for t in tensors), *tensors[0].shape[1:]))
    return torch.cat(list(tensors))


def split(ours: Sequence[str], theirs: str, rows: Sequence[int], change: Change = SAME) -> Rule:
    """One array of theirs holds several parameters of ours, of so many rows (or in the proportion of `rows`)."""

    def read(ts: Sequence[Tensor]) -> Sequence[Tensor]:
        whole = change.read(ts[0])
        unit = whole.shape[0] // sum(rows)
        return list(whole.split([n * unit for n in rows]))

    return Rule(tuple(ours), (theirs,), read, lambda ts: [change.write(below(ts))])


def per_block(depth: int, rules: Iterable[Rule]) -> list[Rule]:
    """Each rule once a block, {i} filled in on both sides."""
    fill = lambda names, i: tuple(name.replace("{i}", str(i)) for name in names)
    templates = list(rules)
    return [Rule(fill(r.ours, i), fill(r.theirs, i), r.read, r.write) for i in range(depth) for r in templates]


def stacked(depth: int, rules: Iterable[Rule]) -> list[Rule]:
    """Each rule once, for all blocks: the arrays of theirs carry the block as their first axis (flax scan)."""
    return [_stacked(depth, r) for r in rules]


def _stacked(depth: int, r: Rule) -> Rule:
    ours = tuple(name.replace("{i}", str(i)) for i in range(depth) for name in r.ours)

    def read(ts: Sequence[Tensor]) -> Sequence[Tensor]:
        return [t for i in range(depth) for t in r.read([whole[i] for whole in ts])]

    def write(ts: Sequence[Tensor]) -> Sequence[Tensor]:
        step = len(r.ours)
        blocks = [r.write(ts[i * step : (i + 1) * step]) for i in range(depth)]
        return [below([block[k][None] for block in blocks]) for k in range(len(r.theirs))]

    return Rule(ours, r.theirs, read, write)


def active(rules: Iterable[Rule], ours: Container[str]) -> list[Rule]:
    """The rules whose parameters the model has, all of them."""
    return [r for r in rules if all(name in ours for name in r.ours)]


def their_tensors(rules: Iterable[Rule], state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Everything a file of this origin holds for this state, under its names (on the meta device: its declaration)."""
    out: dict[str, Tensor] = {}
    for r in active(rules, state):
        out.update(zip(r.theirs, r.write([state[name] for name in r.ours]), strict=True))
    return out
