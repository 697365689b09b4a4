"""`doctor`: what this machine can do, and whether weights and images fit each other.

Every finding is one line with a level (ok, note, problem) and, where something can be done, what.
With a model and data it measures instead of guessing: how fast the model runs and the images
decode (which of the two will be waited for), which input range the weights were trained with,
and whether the classes are the same.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from vitrail.data.source import Source, list_splits, open_source
from vitrail.errors import DecodeError, VitrailError
from vitrail.runtime.device import describe_device, peak_flops, pick_device
from vitrail.study.finding import Finding
from vitrail.study.fit import fits

__all__ = ["Diagnosis", "Finding", "doctor"]

# extra -> the packages whose presence decides it
EXTRAS = {
    "fast": ("simplejpeg",),
    "data": ("pyarrow",),
    "cloud": ("fsspec",),
    "plots": ("matplotlib",),
    "serve": ("starlette", "uvicorn"),
    "export": ("onnx", "onnxscript", "onnxruntime", "openvino"),
    "tracking": ("tensorboardX",),
    "ray": ("ray",),
}
SAMPLE = 64  # images looked at


@dataclass(frozen=True)
class Diagnosis:
    findings: tuple[Finding, ...] = field(default_factory=tuple)

    @property
    def problems(self) -> tuple[Finding, ...]:
        return tuple(finding for finding in self.findings if finding.level == "problem")

    def to_dict(self) -> dict[str, Any]:
        return {"problems": len(self.problems), "findings": [vars(finding) for finding in self.findings]}

    def __str__(self) -> str:
        count = len(self.problems)
        end = "nothing wrong was found" if not count else f"{count} problem{'s' if count > 1 else ''}, marked !"
        return "\n".join([*map(str, self.findings), end])


def doctor(model: str | None = None, data: str | None = None, *, device: str | None = None) -> Diagnosis:
    """Look at the machine; with weights, at them; with images, at these; with both, at how they fit."""
    place = pick_device(device)
    findings = [*_machine(place), *_codecs(), *_extras()]
    if model is not None:
        findings += _guarded("weights", lambda: _weights(model, data, place))
    elif data is not None:
        findings += _guarded("images", lambda: _images(_open(data)))
    return Diagnosis(tuple(findings))


def _guarded(about: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    """An error of ours is a finding here."""
    try:
        yield from look()
    except VitrailError as error:
        yield Finding("problem", about, error.message, error.hint or "")


# ---------------------------------------------------------------- the machine


def _machine(place: torch.device) -> Iterator[Finding]:
    from vitrail import __version__

    yield Finding("ok", "vitrail", f"{__version__}, Python {platform.python_version()}, torch {torch.__version__}, {platform.platform()}")
    if sys.platform not in ("linux", "darwin"):
        yield Finding(
            "note", "system", f"{sys.platform}: training, evaluation and prediction; the server's process signals need Linux or macOS"
        )
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    free = shutil.disk_usage(".").free / 2**30
    disk = Finding(
        "ok" if free > 5 else "note", "disk", f"{free:.0f} GiB free here", "" if free > 5 else "a run keeps two checkpoints and two models"
    )
    yield Finding("ok", "processor", f"{cores} cores, torch uses {torch.get_num_threads()} threads")
    yield disk
    yield from _accelerator(place)


def _accelerator(place: torch.device) -> Iterator[Finding]:
    if place.type != "cuda":
        yield Finding("note", "device", f"{describe_device(place)}; torch {'sees no GPU' if torch.version.cuda else 'has no CUDA'}",
                      "training from scratch wants a GPU; fine-tuning and everything else work here")  # fmt: skip
        yield Finding("ok", "products", f"{_products(place, torch.float32):.2f} TFLOP/s fp32, {_products(place, torch.bfloat16):.2f} bf16")
        return
    memory = torch.cuda.get_device_properties(place).total_memory / 2**30
    yield Finding(
        "ok", "device", f"{describe_device(place)}, {memory:.0f} GiB, compute capability {torch.cuda.get_device_capability(place)}"
    )
    reached = _products(place, torch.bfloat16)
    peak = peak_flops(place)
    share = f", {100 * reached * 1e12 / peak:.0f} % of the data sheet" if peak else ""
    yield Finding("ok", "products", f"{reached:.0f} TFLOP/s bf16{share}")
    bf16 = torch.cuda.is_bf16_supported()
    yield Finding("ok" if bf16 else "note", "precision", "bf16 and fp16" if bf16 else "fp16 (this GPU has no bf16)")
    triton = importlib.util.find_spec("triton") is not None
    yield Finding("ok" if triton else "note", "kernels", "torch.compile, Triton" if triton else "no Triton: torch.compile cannot fuse",
                  "" if triton else "pip install triton")  # fmt: skip


def _products(place: torch.device, dtype: torch.dtype) -> float:
    """TFLOP/s of a square matrix product, the best of a few."""
    side, rounds = (8192, 20) if place.type == "cuda" else (1024, 4)
    a = torch.randn(side, side, device=place).to(dtype)
    best = 0.0
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(rounds):
            b = a @ a
        _ = float(b[0, 0])  # waits for the device
        best = max(best, 2 * side**3 * rounds / (time.perf_counter() - start) / 1e12)
    return best


def _codecs() -> Iterator[Finding]:
    from PIL import features

    fast = importlib.util.find_spec("simplejpeg") is not None
    formats = "JPEG, PNG, GIF, BMP, TIFF" + "".join(
        f", {name}" for key, name in (("webp", "WebP"), ("avif", "AVIF")) if features.check(key)
    )
    yield Finding("ok", "images", f"{formats}; JPEG through {'libjpeg-turbo directly' if fast else 'Pillow'}",
                  "" if fast else "pip install 'vitrail[fast]' decodes JPEG about twice as fast")  # fmt: skip


def _extras() -> Iterator[Finding]:
    here = {extra: [_version(package) for package in packages] for extra, packages in EXTRAS.items()}
    there = [extra for extra, found in here.items() if all(found)]
    missing = [extra for extra, found in here.items() if not all(found)]
    yield Finding(
        "ok",
        "extras",
        "installed: " + (", ".join(there) or "none"),
        f"pip install 'vitrail[{','.join(missing)}]' for the rest" if missing else "",
    )


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


# ---------------------------------------------------------------- images and weights


def _open(data: str) -> Source:
    splits = list_splits(data)
    held = next((name for name in ("val", "test", "train") if name in splits), splits[0] if splits else None)
    return open_source(data, split=held)


def _images(source: Source, some: list[tuple[np.ndarray, int]] | None = None, broken: list[str] | None = None) -> Iterator[Finding]:
    if some is None or broken is None:
        some, broken = _sample(source)
    counts = f"{len(source):,} images, {len(source.classes)} classes"
    yield Finding("ok", "data", f"{source.name}{f' {source.split}' if source.split else ''}: {counts}")
    if broken:
        yield Finding("problem", "data", f"{len(broken)} of {len(some) + len(broken)} images looked at cannot be read: {broken[0]}",
                      f"vitrail data check {source.name}")  # fmt: skip


def _sample(source: Source) -> tuple[list[tuple[np.ndarray, int]], list[str]]:
    """(pixels, label) of up to SAMPLE images spread over the set, and what is wrong with the others."""
    from vitrail.data import decode

    some, broken = [], []
    for i in np.unique(np.linspace(0, len(source) - 1, SAMPLE).astype(int)):
        record = source.read(int(i))
        try:
            some.append((decode.pixels(record.data, where=record.id), record.label if isinstance(record.label, int) else -1))
        except DecodeError as error:
            broken.append(error.message)
    return some, broken


@torch.no_grad()
def _weights(name: str, data: str | None, place: torch.device) -> Iterator[Finding]:
    from vitrail.weights.load import load_model

    model: Any = load_model(name).to(place)
    count = sum(p.numel() for p in model.parameters())
    size = "x".join(map(str, model.config.image_size))
    yield Finding(
        "ok", "weights", f"{name}: {count / 1e6:.1f} M parameters, {size} pixels, {model.config.classes} classes, from {model.card.origin}"
    )
    speed = _forward_speed(model, place)
    yield Finding("ok", "speed", f"{speed:,.0f} images/s forward on {place.type}")
    if data is None:
        return
    source = _open(data)
    some, broken = _sample(source)
    yield from _images(source, some, broken)
    yield from _bound(model, source, speed)
    yield from fits(model, some, source.classes, place)


def _forward_speed(model: Any, place: torch.device) -> float:
    """Images a second, the best of a few batches."""
    batch = 256 if place.type == "cuda" else 8
    x = torch.zeros(batch, model.config.channels, *model.config.image_size, device=place)
    best = float("inf")
    for _ in range(4):
        start = time.perf_counter()
        _ = float(model(x).float().sum())
        best = min(best, time.perf_counter() - start)
    return batch / best


def _bound(model: Any, source: Source, speed: float) -> Iterator[Finding]:
    """Which of decoding and computing will be waited for in evaluation."""
    view = model.card.transform()
    records = [source.read(int(i)) for i in np.unique(np.linspace(0, len(source) - 1, SAMPLE).astype(int))]
    done, start = 0, time.perf_counter()
    for record in records:
        try:
            view.pixels(record.data)
            done += 1
        except DecodeError:
            continue
    rate = done / max(1e-9, time.perf_counter() - start)
    need = speed / max(1.0, rate)
    text = f"one core prepares {rate:,.0f} images/s, the model takes {speed:,.0f}"
    cores = os.cpu_count() or 1
    if need > cores:
        yield Finding("note", "bound by", f"the data: {text}; that needs {need:.0f} cores, and there are {cores}",
                      "vitrail data pack SRC DST --size N shrinks the images once; vitrail[fast] decodes JPEG faster")  # fmt: skip
    else:
        yield Finding("ok", "bound by", f"the model: {text}")
