"""Reading a packed data set: CPU microseconds an image of one pass, where the images lie, through whole row groups, and from tar.

    python benchmarks/packed.py [--images 4000] [--rounds 3]

Each pass opens the data anew, as a worker that comes to row groups it has not seen: that is what every worker
does all the time with a set that is larger than its memory. The files are in the page cache.
"""

from __future__ import annotations

import argparse
import os
import tempfile
import time
from pathlib import Path

import numpy as np
from photographs import jpeg

from vitrail.data.pack import pack
from vitrail.data.source import open_source


def one_pass(where: Path, directly: bool, order: np.ndarray) -> float:
    source = open_source(where, "train")
    if not directly:
        source.groups._find = lambda _group: None  # type: ignore[attr-defined]
    source.read(0)
    begin = time.process_time()
    for i in order.tolist():
        source.read(i)
    return (time.process_time() - begin) / len(order) * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=int, default=4000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    files = [jpeg(i, 341, 256) for i in range(64)]
    data = [files[i % 64] for i in range(options.images)], np.arange(options.images) % 10
    with tempfile.TemporaryDirectory() as folder:
        os.environ["VITRAIL_CACHE"] = folder
        for kind in ("parquet", "tar"):
            pack(data, Path(folder) / kind, to=kind, shard_mb=64, progress=False)
        order = np.random.default_rng(0).permutation(options.images)
        cases = {
            "parquet, where they lie": ("parquet", True, order),
            "parquet, whole row groups": ("parquet", False, order),
            "tar": ("tar", True, order),
        }
        found: dict[str, list[float]] = {name: [] for name in cases}
        for _ in range(options.rounds):
            for name, (kind, directly, places) in cases.items():
                found[name].append(one_pass(Path(folder) / kind, directly, places))
    print(f"{options.images:,} images of {np.mean(list(map(len, files))) / 1000:.1f} kB, random order, CPU us an image")
    for name, values in found.items():
        print(f"{name:28} {min(values):8.1f}   ({min(values):.1f} to {max(values):.1f})")


if __name__ == "__main__":
    main()
