"""Order and index at the scale of JFT: 300 million entries in thousands of shards, start-up, memory, time a batch.

    python benchmarks/index_scale.py [--entries 300e6] [--shards 4096] [--batch 4096] [--world 64] [--out results.json]

The index is synthetic: shards of unequal lengths, ids as ranges, labels as one array mapped
from a file (8 bytes an entry; pages are read when they are asked for). What is measured is
what a training process does: open, order, and the indices of its share of each batch.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitrail.data.names import Numbered
from vitrail.data.order import BatchLayout, EpochOrder
from vitrail.data.source import Listing


@dataclass(eq=False)
class Index(Listing):
    """A source that knows everything but the pixels."""

    def read(self, i: int) -> Any:
        raise NotImplementedError("a synthetic index holds no images")

    def sizes(self) -> np.ndarray:
        return np.asarray(self.shards)


def resident_mb() -> float:
    """Memory of this process now, mapped file pages left out."""
    fields = Path("/proc/self/status").read_text().split("\n")
    return int(next(line for line in fields if line.startswith("RssAnon")).split()[1]) / 1024


def lengths_of(entries: int, shards: int) -> np.ndarray:
    """Unequal shards that add up: between half and one and a half of the mean."""
    share = np.random.default_rng(0).uniform(0.5, 1.5, shards)
    ends = np.round(np.cumsum(share) / share.sum() * entries).astype(np.int64)
    return np.diff(ends, prepend=0)


def open_index(lengths: np.ndarray, labels: Path) -> Index:
    names = Numbered([f"train-{k:05d}-of-{len(lengths):05d}.tar" for k in range(len(lengths))], lengths)
    mapped = np.memmap(labels, np.int64, "r", shape=(int(lengths.sum()),))
    return Index("synthetic", "train", tuple(map(str, range(18_291))), mapped, names, shards=tuple(lengths.tolist()))


def best(repeats: int, function: Any) -> float:
    """Milliseconds, the best of several."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        function()
        times.append(time.perf_counter() - start)
    return min(times) * 1e3


def measure(entries: int, shards: int, batch: int, world: int, folder: Path) -> dict[str, Any]:
    lengths = lengths_of(entries, shards)
    with open(folder / "labels", "wb") as file:
        file.truncate(8 * entries)
    before = resident_mb()
    start = time.perf_counter()
    source = open_index(lengths, folder / "labels")
    order = EpochOrder(len(source), seed=0, shards=source.shards)
    first = order(BatchLayout(batch).positions(0))
    started = time.perf_counter() - start
    steps = np.random.default_rng(1).integers(0, entries // batch, 200)
    layout, share = BatchLayout(batch), BatchLayout(batch, 0, world)
    table = {
        "entries": len(source), "shards": shards, "batch": batch, "world": world,
        "start_s": round(started, 3),
        "memory_mb": round(resident_mb() - before, 1),
        "whole_batch_ms": round(best(50, lambda: order(layout.positions(1000))), 3),
        "one_rank_ms": round(best(50, lambda: order(share.positions(1000))), 3),
        "random_step_ms": round(float(np.median([best(1, lambda s=s: order(layout.positions(int(s)))) for s in steps])), 3),
        "name_us": round(best(5, lambda: [source.id(int(i)) for i in first]) * 1e3 / batch, 2),
        "label_us": round(best(5, lambda: source.labels[first]) * 1e3 / batch, 3),
    }  # fmt: skip
    table["memory_after_mb"] = round(resident_mb() - before, 1)
    table["peak_rss_mb"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, 1)
    return table | check(order, lengths, batch, world)


def check(order: EpochOrder, lengths: np.ndarray, batch: int, world: int) -> dict[str, Any]:
    """What has to hold: ranks together are the batch, each with the same share; a window is a bijection; few shards open."""
    ends = np.cumsum(lengths)
    open_shards, balanced = [], True
    for step in (0, 1, 7919, order.length // batch - 1, order.length // batch):  # the last crosses an epoch
        whole = order(BatchLayout(batch).positions(step))
        parts = [order(BatchLayout(batch, r, world).positions(step)) for r in range(world)]
        balanced &= bool(np.array_equal(np.concatenate(parts), whole)) and {len(p) for p in parts} == {batch // world}
        open_shards.append(len(np.unique(np.searchsorted(ends, whole, side="right"))))
    shuffle = order._epoch(0)
    window = order(np.arange(int(shuffle.window_ends[0])))  # type: ignore[union-attr]
    touched = np.unique(np.searchsorted(ends, window, side="right"))
    whole_shards = len(window) == int(lengths[touched].sum()) and len(np.unique(window)) == len(window)
    return {"ranks_balanced": balanced, "shards_open": max(open_shards), "window_samples": len(window), "window_is_bijection": whole_shards}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--entries", type=float, default=300e6)
    parser.add_argument("--shards", type=int, default=4096)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--world", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        table = measure(int(options.entries), options.shards, options.batch, options.world, Path(folder))
    table |= {"machine": platform.processor() or platform.machine(), "cores": os.cpu_count(), "numpy": np.__version__}
    text = json.dumps(table, indent=1)
    print(text)
    if options.out:
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
