"""Runs of samples that are cheap to read together, and whether reading by them still mixes the classes.

A training order that goes through shards window by window reads each once, and shuffles only
within a window. A set small enough to be anywhere in memory needs no such order. A large one
that is stored class by class would be learnt class by class: that is said.
"""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["runs", "say_if_sorted"]

WINDOW = 16  # shards that EpochOrder mixes


def runs(counts: np.ndarray, total_bytes: int, small: int) -> tuple[int, ...] | None:
    """The lengths of the runs, or None where any sample is as cheap as any other."""
    lengths = tuple(int(n) for n in counts if n)
    return None if total_bytes <= small or len(lengths) <= 1 else lengths


def say_if_sorted(labels: Any, lengths: tuple[int, ...] | None) -> tuple[str, ...]:
    """A note when a window of runs holds far fewer classes than as many random samples would."""
    if lengths is None or len(lengths) <= WINDOW or not isinstance(labels, np.ndarray) or labels.min(initial=0) < 0:
        return ()
    share = np.bincount(labels) / len(labels)
    ends = np.cumsum(lengths)
    starts = ends - np.asarray(lengths)
    looked = np.unique(np.linspace(0, len(lengths) - 1, 64).astype(np.int64))
    found = np.mean([len(np.unique(labels[starts[k] : ends[k]])) for k in looked])
    expected = np.mean([(1 - (1 - share) ** lengths[k]).sum() for k in looked])
    if found > expected / 2:
        return ()
    return (
        f"stored class by class ({found:.3g} classes in a run of {np.mean(lengths):.0f} images, {expected:.3g} if they were mixed): "
        "a training order that reads it run by run mixes too little; 'vitrail data pack' writes it mixed",
    )
