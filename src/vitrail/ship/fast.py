"""`--fast`: the quickest way to a model's logits on this CPU that stays within its bound.

Candidates: torch in bf16, ONNX Runtime, OpenVINO in fp32 and (where the CPU has it) bf16. Each
is compared with the exact fp32 model on the same images, and timed; one that is out of bounds
is passed over, and when none is faster the exact model stays. Exact fp32 is the default
everywhere else.
"""

from __future__ import annotations

import contextlib
import copy
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.errors import VitrailError
from vitrail.ship.export import example, metadata, trace, write
from vitrail.ship.predictor import Predictor
from vitrail.ship.runtimes import OnnxRuntime, OpenVino

__all__ = ["BOUND", "Candidate", "Choice", "Runtime", "choose", "make_fast"]

BOUND = 0.02  # mean total variation between the two distributions over classes
AGREE = 0.97  # of the images whose exact answer leads by more than BOUND keep it
GATE_IMAGES = 32


@dataclass
class Runtime:
    """Another way to the logits: normalised images in, float32 logits out."""

    name: str
    run: Callable[[np.ndarray], np.ndarray]

    def __call__(self, images: Tensor) -> np.ndarray:
        return self.run(images.cpu().numpy())


@dataclass
class Candidate:
    """What one runtime measured. `passed` says whether it keeps the bound."""

    name: str
    images_per_s: float = 0.0
    total_variation: float = float("inf")
    agreement: float = 0.0
    passed: bool = False
    error: str = ""


@dataclass
class Choice:
    """The runtime that was taken (None: the exact model), and all that were tried."""

    runtime: Runtime | None
    candidates: list[Candidate] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.runtime.name if self.runtime else "torch fp32"

    def to_dict(self) -> dict[str, Any]:
        return {"chosen": self.name, "candidates": [vars(candidate) for candidate in self.candidates]}

    def __str__(self) -> str:
        lines = [f"{'runtime':16} {'images/s':>9} {'TV':>9} {'agree':>7}"]
        for c in self.candidates:
            said = f"{c.images_per_s:9.1f} {c.total_variation:9.1e} {100 * c.agreement:6.1f}%" if not c.error else f"  {c.error}"
            lines.append(f"{c.name:16} {said}{'  <- taken' if c.name == self.name else ''}{'' if c.passed else '  out of bounds'}")
        return "\n".join(lines)


def make_fast(predictor: Predictor, **options: Any) -> Choice:
    """Give a predictor the best runtime of this machine; on a GPU there is nothing to choose."""
    if predictor.device.type != "cpu":
        return Choice(None)
    choice = choose(predictor, **options)
    predictor.runtime = choice.runtime
    return choice


def choose(
    predictor: Predictor, images: Tensor | None = None, *, batch_size: int = 8, seconds: float = 1.0, bound: float = BOUND, names: str = ""
) -> Choice:
    """Time and check every runtime. images: normalised ones to check on (default: structured noise); names: only these."""
    if images is None:
        config: Any = predictor.model.config
        images = torch.from_numpy(example(GATE_IMAGES, tuple(config.image_size), config.channels, False))
    given = images.numpy()
    exact = exact_runtime(predictor)
    expected = np.concatenate([exact.run(given[i : i + batch_size]) for i in range(0, len(given), batch_size)])
    choice = Choice(None)
    best = 0.0
    for name, make in ((exact.name, lambda: exact), *candidates(predictor)):
        if names and name not in names.split(",") and name != exact.name:
            continue
        candidate = Candidate(name)
        choice.candidates.append(candidate)
        try:
            runtime = make()
            got = np.concatenate([runtime.run(given[i : i + batch_size]) for i in range(0, len(given), batch_size)])
        except (VitrailError, RuntimeError) as error:
            candidate.error = " ".join(str(error).split())[:120]
            continue
        candidate.total_variation, candidate.agreement = distance(expected, got)
        candidate.passed = candidate.total_variation <= bound and candidate.agreement >= AGREE
        candidate.images_per_s = speed(runtime, given[:batch_size], seconds)
        if candidate.passed and candidate.images_per_s > best:
            best, choice.runtime = candidate.images_per_s, None if runtime is exact else runtime
    return choice


def distance(expected: np.ndarray, got: np.ndarray) -> tuple[float, float]:
    """(mean total variation, share of clear answers that stay the same) of two sets of logits."""
    if not np.isfinite(got).all():
        return float("inf"), 0.0
    p, q = softmax(expected), softmax(got)
    ordered = np.sort(p, axis=1)
    clear = ordered[:, -1] - ordered[:, -2] > BOUND if p.shape[1] > 1 else np.ones(len(p), bool)
    same = (p.argmax(1) == q.argmax(1))[clear]
    return float(np.abs(p - q).sum(1).mean() / 2), float(same.mean()) if len(same) else 1.0


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64) - logits.max(axis=1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=1, keepdims=True))


def speed(runtime: Runtime, images: np.ndarray, seconds: float) -> float:
    """Images a second, the best of several short windows."""
    runtime.run(images)
    best, until = float("inf"), time.perf_counter() + seconds
    while time.perf_counter() < until:
        began = time.perf_counter()
        runtime.run(images)
        best = min(best, time.perf_counter() - began)
    return len(images) / best


# ---------------------------------------------------------------- the candidates


def exact_runtime(predictor: Predictor) -> Runtime:
    def run(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return predictor.model(torch.from_numpy(images)).float().numpy()

    return Runtime("torch fp32", run)


def candidates(predictor: Predictor) -> Iterator[tuple[str, Callable[[], Runtime]]]:
    """Name and maker of each; what is not installed answers with its one sentence."""
    with contextlib.ExitStack() as files:
        graph: list[Path] = []

        def onnx() -> Path:
            """Written once for all that read it."""
            if not graph:
                folder = Path(files.enter_context(tempfile.TemporaryDirectory(prefix="vitrail-fast-")))
                draft = folder / "model.onnx"
                write(trace(predictor, dynamic=False, preprocess=False), draft, "onnx", metadata(predictor, False))
                graph.append(draft)
            return graph[0]

        yield "torch bf16", lambda: bf16_runtime(predictor)
        yield "openvino bf16", lambda: Runtime("openvino bf16", OpenVino(onnx(), "bf16"))
        yield "openvino f32", lambda: Runtime("openvino f32", OpenVino(onnx(), "f32"))
        yield "onnxruntime", lambda: Runtime("onnxruntime", OnnxRuntime(onnx()))


def bf16_runtime(predictor: Predictor) -> Runtime:
    """Weights and activations in bf16; the logits come back in float32."""
    from vitrail.ship.portable import freeze

    model = freeze(copy.deepcopy(predictor.model)).to(torch.bfloat16)

    def run(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.from_numpy(images).to(torch.bfloat16)).float().numpy()

    return Runtime("torch bf16", run)
