"""Building B/16 with its exact initialisation, and loading it from a checked safetensors file, beside timm where it is installed.

    python benchmarks/model_build.py [--repeats 9] [--out results.json]

Everything is imported and run once before the first measurement; ours and timm's alternate in one process.
Ours draws every parameter as the paper's code does, and a load checks the SHA-256 of the file's tensors
(timm's load checks nothing).
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import vitrail
from vitrail.study.bench_peers import with_torchvision

BOUNDS = {"build": 0.8, "load": 0.4}  # seconds on a CPU, after import


def cases(folder: Path) -> dict[str, dict[str, Callable[[], Any]]]:
    """what -> who -> a function to time."""
    ours = folder / "ours.safetensors"
    vitrail.save_model(vitrail.create_model("B/16"), ours)
    table: dict[str, dict[str, Callable[[], Any]]] = {
        "build": {"vitrail": lambda: vitrail.create_model("B/16")},
        "load": {"vitrail": lambda: vitrail.load_model(ours)},
    }
    if importlib.util.find_spec("timm"):
        with_torchvision()
        import timm
        from safetensors.torch import save_file

        name, theirs = "vit_base_patch16_224", folder / "theirs.safetensors"
        save_file(timm.create_model(name).state_dict(), theirs)
        table["build"]["timm"] = lambda: timm.create_model(name)
        table["load"]["timm"] = lambda: timm.create_model(name, checkpoint_path=str(theirs))
    return table


def measure(table: dict[str, dict[str, Callable[[], Any]]], repeats: int) -> dict[str, dict[str, list[float]]]:
    seconds: dict[str, dict[str, list[float]]] = {what: {who: [] for who in row} for what, row in table.items()}
    for turn in range(repeats + 1):
        for what, row in table.items():
            for who, run in row.items():
                begin = time.perf_counter()
                run()
                if turn:  # the first is the warm-up
                    seconds[what][who].append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=9)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        seconds = measure(cases(Path(folder)), options.repeats)
    versions = {name: importlib.import_module(name).__version__ for name in ("vitrail", "torch", "timm") if importlib.util.find_spec(name)}
    machine = {"cpu": platform.processor() or platform.machine(), "cores": os.cpu_count(), "threads": torch.get_num_threads(), **versions}
    print(json.dumps(machine))
    for what, row in seconds.items():
        for who, times in row.items():
            spread = f"median {statistics.median(times):.3f} s, {min(times):.3f} to {max(times):.3f}, n = {len(times)}"
            print(f"{what:6s} {who:8s} {spread}" + (f"   bound {BOUNDS[what]} s" if who == "vitrail" else ""))
        if "timm" in row:
            print(
                f"{what:6s} ratio timm / vitrail of the medians: {statistics.median(row['timm']) / statistics.median(row['vitrail']):.2f}"
            )
    if options.out:
        options.out.write_text(json.dumps({"machine": machine, "bounds_s": BOUNDS, "seconds": seconds}, indent=1))


if __name__ == "__main__":
    main()
