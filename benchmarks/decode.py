"""JPEG of 500x375, quality 90 -> inception crop -> 224x224 uint8: images a CPU second, ours beside Pillow's and OpenCV's code.

    python benchmarks/decode.py [--rounds 30] [--files 64] [--out results.json]

One thread, one process; everybody gets the same files and the same boxes, in turns; of each picture the
fastest round counts, because other work on the machine only slows. OpenCV is measured where it is
installed. Each is written as its own manual does it: Pillow crops and resizes in one call.
"""

from __future__ import annotations

import argparse
import io
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from photographs import jpeg, photograph
from PIL import Image

from vitrail.data import decode
from vitrail.data.crop import TrainView, inception_box
from vitrail.kernels import draws

SIZE = (224, 224)
WORDS = draws.key(0, "crop")
GOALS = {  # ours / theirs, at least
    ("vitrail bicubic", "Pillow bicubic"): 2.0,
    ("vitrail bilinear", "Pillow bilinear"): 1.6,
    ("vitrail bilinear", "OpenCV area"): 1.25,
}
Contender = Callable[[bytes, int], np.ndarray]


def view(filter: str, antialias: bool, **options) -> Contender:
    made = TrainView(SIZE, "inception", interpolation=filter, antialias=antialias, **options)
    return lambda data, i: made.pixels(data, draws.Stream(WORDS, i))


def pillow(filter: Image.Resampling) -> Contender:
    def run(data: bytes, i: int) -> np.ndarray:
        image = Image.open(io.BytesIO(data)).convert("RGB")
        top, left, height, width = inception_box(image.height, image.width, draws.Stream(WORDS, i))
        return np.asarray(image.resize(SIZE[::-1], filter, box=(left, top, left + width, top + height)))

    return run


def opencv(flag: str) -> Contender | None:
    try:
        import cv2
    except ImportError:
        return None
    cv2.setNumThreads(1)
    how = getattr(cv2, flag)

    def run(data: bytes, i: int) -> np.ndarray:
        image = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_COLOR)
        top, left, height, width = inception_box(image.shape[0], image.shape[1], draws.Stream(WORDS, i))
        image = cv2.resize(image[top : top + height, left : left + width], SIZE[::-1], interpolation=how)
        return cv2.cvtColor(image, cv2.COLOR_BGR2RGB)

    return run


def contenders() -> dict[str, Contender]:
    table: dict[str, Contender | None] = {
        "vitrail bicubic": view("bicubic", True),
        "vitrail bilinear": view("bilinear", True),
        "vitrail, the paper's (bilinear, no antialias)": view("bilinear", False),
        "vitrail area": view("area", False),
        "Pillow bicubic": pillow(Image.Resampling.BICUBIC),
        "Pillow bilinear": pillow(Image.Resampling.BILINEAR),
        "OpenCV area": opencv("INTER_AREA"),
        "OpenCV linear (aliases)": opencv("INTER_LINEAR"),
        "decode only: vitrail": lambda data, i: decode.decode(data),
        "decode only: Pillow": lambda data, i: np.asarray(Image.open(io.BytesIO(data)).convert("RGB")),
    }
    return {name: run for name, run in table.items() if run is not None}


def packed(files: list[bytes]) -> dict[str, tuple[Contender, list[bytes]]]:
    """The same photographs packed with their shorter side at 256 pixels."""
    small = []
    for i in range(len(files)):
        image = Image.fromarray(photograph(i)).resize((341, 256), Image.Resampling.BICUBIC)
        file = io.BytesIO()
        image.save(file, "JPEG", quality=90)
        small.append(file.getvalue())
    return {
        "packed at 256: vitrail bicubic": (view("bicubic", True), small),
        "packed at 256: vitrail, the paper's": (view("bilinear", False), small),
    }


def large(count: int) -> dict[str, tuple[Contender, list[bytes]]]:
    """Photographs of 1600x1200, decoded whole, and at the scale that the crop needs."""
    files = [jpeg(i, 1600, 1200) for i in range(count)]
    return {
        "1600x1200: vitrail bicubic": (view("bicubic", True), files),
        "1600x1200: vitrail bicubic, scaled decoding": (view("bicubic", True, dct_scale=True), files),
        "1600x1200: Pillow bicubic": (pillow(Image.Resampling.BICUBIC), files),
    }


def measure(rounds: int, count: int) -> list[dict[str, float]]:
    """Images a CPU second, of each third of the rounds: of each picture its fastest round there, so that other
    work on the machine matters little."""
    files = [jpeg(i) for i in range(count)]
    table = {name: (run, files) for name, run in contenders().items()} | packed(files) | large(max(4, count // 8))
    print(f"{count} files of {statistics.mean(map(len, files)) / 1000:.1f} kB on average, 3 x {rounds // 3} rounds")
    return [one_third(table, rounds // 3) for _ in range(3)]


def one_third(table: dict[str, tuple[Contender, list[bytes]]], rounds: int) -> dict[str, float]:
    best = {name: [float("inf")] * len(pictures) for name, (_, pictures) in table.items()}
    for _ in range(rounds):
        for name, (run, pictures) in table.items():
            for i, data in enumerate(pictures):
                begin = time.thread_time()
                run(data, i)
                best[name][i] = min(best[name][i], time.thread_time() - begin)
    return {name: len(times) / sum(times) for name, times in best.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--files", type=int, default=64)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    torch.set_num_threads(1)
    thirds = measure(max(3, options.rounds), options.files)
    found = {name: [third[name] for third in thirds] for name in thirds[0]}
    print(f"{'':48} images / CPU second (median, and least to most of the thirds)")
    for name, values in found.items():
        print(f"{name:48} {statistics.median(values):8.0f}   {min(values):.0f} to {max(values):.0f}")
    ratios = {}
    for (ours, theirs), goal in GOALS.items():
        if theirs in found:
            name = f"{ours} / {theirs}"
            ratios[name] = [a / b for a, b in zip(found[ours], found[theirs])]
            print(f"{name:48} {statistics.median(ratios[name]):8.2f}   {min(ratios[name]):.2f} to {max(ratios[name]):.2f}   (goal {goal})")
    if options.out:
        machine = {"machine": platform.processor() or platform.machine(), "torch": torch.__version__}
        options.out.write_text(json.dumps({**machine, "images_per_cpu_second": found, "ratios": ratios}, indent=1))


if __name__ == "__main__":
    main()
