"""Augmentation of a batch on its device: milliseconds a batch, for the published recipes.

    python benchmarks/augment.py [--batch 256] [--size 224] [--device cuda] [--rounds 50] [--out results.json]

On a GPU the time is between CUDA events around the call, so it holds the launches as well as the
kernels; and beside it the time the host needs to say what is to be done. Goal: strong2 on
256 images of 224x224 in under 5 ms on an H200. On a CPU it is wall time, with fewer images.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import torch

from vitrail.config import AugmentSpec
from vitrail.data.augment import Augment, level
from vitrail.data.batch import Batch

RECIPES = {
    "flip alone": AugmentSpec(),
    "light1": AugmentSpec(**level("light1")),
    "medium2": AugmentSpec(**level("medium2")),
    "strong2": AugmentSpec(**level("strong2")),
    "DeiT": AugmentSpec(
        randaugment="timm", randaugment_magnitude=9.0, randaugment_std=0.5, erasing=0.25, mixup=0.8, cutmix=1.0, colour_jitter=0.0
    ),
    "DeiT III": AugmentSpec(three_augment=True, colour_jitter=0.3, mixup=0.8, cutmix=1.0),
}
GOAL = ("strong2", 5.0)


def batch_of(count: int, size: int, device: torch.device) -> Batch:
    generator = torch.Generator().manual_seed(0)
    coarse = torch.randint(0, 256, (count, 3, 12, 12), generator=generator).float()
    images = torch.nn.functional.interpolate(coarse, (size, size), mode="bicubic").clamp(0, 255).to(torch.uint8)
    images = images.contiguous(memory_format=torch.channels_last).to(device)  # as the loader gives them
    position = torch.arange(count)
    index, valid = position.to(device), torch.ones(count, dtype=torch.bool, device=device)
    return Batch(images, (position % 1000).to(device), index, index, valid, position.numpy())


def measure(augment: Augment, batch: Batch, rounds: int) -> dict[str, float]:
    """Median and fastest milliseconds of a call, and of its host part."""
    cuda = batch.images.is_cuda
    for _ in range(3):
        augment(batch)
    device, host = [], []
    for _ in range(rounds):
        if cuda:
            torch.cuda.synchronize()
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
        begin = time.perf_counter()
        augment(batch)
        host.append((time.perf_counter() - begin) * 1000)
        if cuda:
            end.record()
            torch.cuda.synchronize()
            device.append(start.elapsed_time(end))
        else:
            device.append(host[-1])
    return {"median_ms": statistics.median(device), "fastest_ms": min(device), "host_median_ms": statistics.median(host)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    device = torch.device(options.device)
    count = options.batch or (256 if device.type == "cuda" else 32)
    rounds = options.rounds or (50 if device.type == "cuda" else 3)
    batch = batch_of(count, options.size, device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"{count} images of {options.size}x{options.size} on {name}, torch {torch.__version__}")
    print(f"{'':12} {'median ms':>10} {'fastest':>10} {'host':>10} {'images/s':>12}")
    found = {}
    for recipe, spec in RECIPES.items():
        found[recipe] = measure(Augment(spec, seed=0, classes=1000, group=8), batch, rounds)
        m = found[recipe]
        print(
            f"{recipe:12} {m['median_ms']:10.2f} {m['fastest_ms']:10.2f} {m['host_median_ms']:10.2f} {count / m['median_ms'] * 1000:12.0f}"
        )
    if device.type == "cuda" and count == 256:
        print(f"goal: {GOAL[0]} under {GOAL[1]} ms: {'met' if found[GOAL[0]]['median_ms'] < GOAL[1] else 'missed'}")
    if options.out:
        options.out.write_text(json.dumps({"device": name, "batch": count, "size": options.size, "recipes": found}, indent=1))


if __name__ == "__main__":
    main()
