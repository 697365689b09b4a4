"""What worker processes cost: images a CPU second of the whole stream, in this process and with workers, on JPEGs of 500x375.

    python benchmarks/loader.py [--batches 30] [--batch 64] [--workers 2] [--rounds 3] [--out results.json]

CPU time is that of this process and of all its workers, start and imports left out (two batches are
drawn first). The stream is the training stream: inception crop, 224x224, antialiased bilinear.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import numpy as np
import torch
from photographs import jpeg

from vitrail.data.crop import TrainView
from vitrail.data.loader import TrainStream
from vitrail.data.source import open_source

TICK = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pids: list[int]) -> float:
    """User and system time of this process and of these."""
    total = sum(os.times()[:2])
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        total += (int(fields[11]) + int(fields[12])) / TICK
    return total


def measure(files: list[bytes], batch: int, batches: int, workers: int, threads: bool) -> tuple[float, float]:
    """(images a CPU second, images a second)."""
    source = open_source((files, np.arange(len(files)) % 10))
    view = TrainView((224, 224), antialias=True)
    with TrainStream(source, view, batch_size=batch, seed=0, workers=workers, threads=threads, pin=False) as stream:
        for _ in range(2):
            next(stream)
        pids = stream.worker_pids
        cpu, wall = cpu_seconds(pids), time.perf_counter()
        for _ in range(batches):
            next(stream)
        made = batches * batch  # as many are made ahead at the end as were at the beginning
        return made / (cpu_seconds(pids) - cpu), made / (time.perf_counter() - wall)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batches", type=int, default=30)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    files = [jpeg(i) for i in range(64)]
    cases = {
        "in this process": (0, False),
        f"{options.workers} worker processes": (options.workers, False),
        f"{options.workers} threads": (options.workers, True),
    }
    best = dict.fromkeys(cases, (0.0, 0.0))
    for _ in range(options.rounds):
        for name, (workers, threads) in cases.items():
            found = measure(files, options.batch, options.batches, workers, threads)
            best[name] = (max(best[name][0], found[0]), max(best[name][1], found[1]))
    alone = best["in this process"][0]
    print(f"{'':24} images / CPU second   images / second   of one process")
    for name, (each, rate) in best.items():
        print(f"{name:24} {each:19.0f} {rate:17.0f} {each / alone:16.1%}")
    if options.out:
        options.out.write_text(json.dumps({name: {"per_cpu_second": a, "per_second": b} for name, (a, b) in best.items()}, indent=1))


if __name__ == "__main__":
    main()
