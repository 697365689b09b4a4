"""Loading a whole training set onto the device as pixels: images a second and CPU microseconds an image.

    python benchmarks/resident.py [--source data/tiny-imagenet-200] [--images 20000] [--size 64] [--device cuda] [--threads 1 4 16]

Without a source: JPEGs of --size x --size in memory. Codecs let go of the interpreter and the rest of an
image's way does not, so what a set of small images gains from threads is bounded by the latter.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from photographs import jpeg

from vitrail.data.crop import TrainView
from vitrail.data.resident import ResidentStream
from vitrail.data.source import open_source
from vitrail.runtime.cores import cores


def measure(source: Any, device: str, size: int, threads: int) -> dict[str, float]:
    cpu, wall = time.process_time(), time.perf_counter()
    with ResidentStream(source, TrainView((size, size)), device=device, batch_size=256, seed=0, workers=threads):
        if device != "cpu":
            torch.cuda.synchronize()
        seconds, cpu = time.perf_counter() - wall, time.process_time() - cpu
    return {"seconds": seconds, "images_per_s": len(source) / seconds, "cpu_us_per_image": cpu / len(source) * 1e6}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source")
    parser.add_argument("--split", default="train")
    parser.add_argument("--images", type=int, default=20_000)
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--threads", type=int, nargs="+", default=sorted({1, cores()}))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.source:
        source = open_source(options.source, options.split)
    else:
        files = [jpeg(i, options.size, options.size) for i in range(256)]
        source = open_source(([files[i % 256] for i in range(options.images)], np.arange(options.images) % 10))
    print(f"{len(source):,} images onto {options.device}, the fastest of {options.rounds}")
    print(f"{'threads':>8} {'seconds':>9} {'images/s':>10} {'CPU us an image':>16}")
    found = {}
    for threads in options.threads:
        rounds = [measure(source, options.device, options.size, threads) for _ in range(options.rounds)]
        best = found[threads] = {key: (max if key == "images_per_s" else min)(r[key] for r in rounds) for key in rounds[0]}
        print(f"{threads:8} {best['seconds']:9.2f} {best['images_per_s']:10,.0f} {best['cpu_us_per_image']:16.1f}")
    if options.out:
        options.out.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
