"""What worker processes cost: images a CPU second of the whole stream, in this process and with workers, on JPEGs of 500x375.

    python benchmarks/loader.py [--batches 30] [--batch 64] [--workers 2] [--rounds 3] [--out results.json]

CPU time is that of this process and of all its workers, start and imports left out (ten batches are
drawn first). The stream is the training stream: inception crop, 224x224, antialiased bilinear.

Cores that work side by side share caches, memory and clock, so each is slower than one that works alone,
whoever hands out the work. What the workers themselves cost shows beside as many processes that know
nothing of each other, each with a stream of its own, made in line, at the same time.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing as mp
import os
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from photographs import jpeg

from vitrail.data.crop import TrainView
from vitrail.data.loader import TrainStream
from vitrail.data.source import open_source

WARM = 10  # batches: every page of every slot has been touched
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
        for _ in range(WARM):
            next(stream)
        pids = stream.worker_pids
        made, cpu, wall = begun(stream), cpu_seconds(pids), time.perf_counter()
        for _ in range(batches):
            next(stream)
        seconds, cpu = time.perf_counter() - wall, cpu_seconds(pids) - cpu
        made = begun(stream) - made if workers else batches * batch
        return made / cpu, made / seconds


def begun(stream: TrainStream) -> int:
    """Images that workers have begun since they started, those of batches made ahead included."""
    feeder = stream._pipeline.feeder
    return 0 if feeder is None else int(feeder.shared.progress[:, 1].sum())


def alone(files: list[bytes], batch: int, batches: int, go: Any, answers: Any) -> None:
    torch.set_num_threads(1)
    go.wait()
    answers.put(measure(files, batch, batches, 0, False))


def apart(files: list[bytes], batch: int, batches: int, count: int) -> tuple[float, float]:
    """As `measure`, of `count` processes side by side, each making a whole stream by itself."""
    context = mp.get_context("spawn")
    go, answers = context.Barrier(count), context.Queue()
    everybody = [context.Process(target=alone, args=(files, batch, batches, go, answers)) for _ in range(count)]
    for process in everybody:
        process.start()
    found = [answers.get() for _ in everybody]
    for process in everybody:
        process.join()
    return count / sum(1 / each for each, _ in found), sum(rate for _, rate in found)


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
    workers, size, batches = options.workers, options.batch, options.batches
    cases = {
        "in this process": lambda: measure(files, size, batches, 0, False),
        f"{workers} processes apart": lambda: apart(files, size, batches, workers),
        f"{workers} worker processes": lambda: measure(files, size, batches, workers, False),
        f"{workers} threads": lambda: measure(files, size, batches, workers, True),
    }
    rounds: dict[str, list[tuple[float, float]]] = {name: [] for name in cases}
    for _ in range(options.rounds):
        for name, run in cases.items():
            rounds[name].append(run())
    best = {name: tuple(max(values) for values in zip(*found)) for name, found in rounds.items()}
    single, side_by_side = best["in this process"][0], best[f"{workers} processes apart"][0]
    print(f"{'':24} images / CPU second  (rounds)             images / second   of one process   of processes apart")
    for name, (each, rate) in best.items():
        spread = f"{min(a for a, _ in rounds[name]):.0f} to {each:.0f}"
        print(f"{name:24} {each:19.0f}  ({spread:14}) {rate:22.0f} {each / single:16.1%} {each / side_by_side:20.1%}")
    if options.out:
        options.out.write_text(json.dumps({name: {"per_cpu_second": a, "per_second": b} for name, (a, b) in best.items()}, indent=1))


if __name__ == "__main__":
    main()
