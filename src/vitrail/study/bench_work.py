"""What is timed: a forward pass, or a whole training step, of one system on images that lie on the device.

A training step is forward, cross entropy, backward, gradients clipped at norm 1 and fused AdamW, on
a fixed batch of noise. Ours is the very step that `vitrail train` takes (`train/step.py`); a peer's
is the usual loop, in either of the two usual ways to train in bfloat16:

    bf16           autocast over float32 weights
    bf16-masters   bfloat16 weights, with a float32 copy that the optimizer updates

All of them begin from the same weights and see the same images, so their losses must agree.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import ObjectiveSpec, OptimSpec
from vitrail.data.batch import Batch
from vitrail.errors import UsageError, nearest
from vitrail.evaluate.score import precision_for
from vitrail.model.variants import build
from vitrail.runtime.graph import Graphed
from vitrail.study.bench_peers import build_peer
from vitrail.train.objective import Supervised
from vitrail.train.optim import build_optimizer
from vitrail.train.scale import LossScale
from vitrail.train.step import TrainStep

__all__ = ["ADDITIONS", "COMPILER", "Case", "Prepared", "parts_of", "prepare"]

HALF = (0.5, 0.5, 0.5)
RATE, DECAY, CLIP = 1e-4, 0.1, 1.0
OPTIMIZER = OptimSpec(name="adamw", lr=RATE, weight_decay=DECAY, decay="all", clip_norm=CLIP)
OURS = "vitrail"

# how a model is run: a first word, with our own additions after a plus
COMPILER = {"eager": None, "compile": "default", "max-autotune": "max-autotune", "reduce-overhead": "reduce-overhead"}
ADDITIONS = {
    "infer": ("graph", "plain"),  # recorded as a CUDA graph by `runtime/graph.py`; without our fused kernels
    "train": ("bf16-residual", "save-memory", "plain"),  # `train.residual`, `train.save_memory`
}
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp8": torch.bfloat16}


@dataclass(frozen=True)
class Case:
    """One thing to time."""

    work: str  # "infer" or "train"
    system: str  # "vitrail" or a peer
    model: str  # as a name: "B/16", "B/16@384"
    batch: int
    mode: str = "eager"
    precision: str = "fp32"

    def with_batch(self, batch: int) -> Case:
        return replace(self, batch=batch)

    def __str__(self) -> str:
        return f"{self.work} {self.model} batch {self.batch} {self.system} {self.mode} {self.precision}"


@dataclass
class Prepared:
    """A case, ready: `once()` is one pass. `losses` are those of the first steps; `logits` of the first images."""

    once: Callable[[], object]
    losses: list[float] = field(default_factory=list)
    logits: Tensor | None = None
    path: str = ""  # which of our kernels it takes


def prepare(case: Case, config: Any, weights: dict[str, Tensor], device: torch.device, *, steps_compared: int = 0) -> Prepared:
    """Build the system of a case and its closure. steps_compared: training steps taken now, for their losses."""
    if case.work == "infer":
        return inference(case, config, weights, device)
    if case.system == OURS:
        step, path = our_step(case, config, weights, device)
    else:
        step, path = their_step(case, config, weights, device), ""
    return Prepared(step, losses=[float(step()) for _ in range(steps_compared)], path=path)


def parts_of(mode: str, work: str) -> tuple[str | None, frozenset[str]]:
    """A mode as torch.compile's (None: not compiled) and our additions: "compile+graph", "eager+plain", "graph"."""
    first, *rest = mode.split("+")
    if first in ADDITIONS[work]:  # "graph" alone is eager+graph
        first, rest = "eager", [first, *rest]
    known = ADDITIONS[work]
    if first not in COMPILER or any(word not in known for word in rest):
        said = [*COMPILER, *(f"compile+{word}" for word in known)]
        raise UsageError(f"There is no mode {mode!r} for {work}{nearest(mode, said)}.")
    compiler = COMPILER[first]
    # a graph of our own, or a step long enough to hide its launches: the compiler's graphs would only take memory
    if compiler == "max-autotune" and (work == "train" or "graph" in rest):
        compiler = "max-autotune-no-cudagraphs"
    return compiler, frozenset(rest)


def system_of(case: Case, config: Any, weights: dict[str, Tensor]) -> nn.Module:
    if case.system != OURS:
        return build_peer(case.system, config, weights)
    model: Any = build(config)
    model.load_state_dict(weights)
    return model


def fused(model: nn.Module, device: torch.device, additions: frozenset[str], precision: str) -> str:
    """Our kernels, as a run takes them; says which."""
    from vitrail.model.fused import fuse

    residual = "bfloat16" if "bf16-residual" in additions else "float32"
    return fuse(model, device, "plain" if "plain" in additions else "auto", residual, precision)  # type: ignore[arg-type]


# ---------------------------------------------------------------- inference


def inference(case: Case, config: Any, weights: dict[str, Tensor], device: torch.device) -> Prepared:
    """The whole model in the case's precision, as one deploys it."""
    precision_for("tf32" if case.precision == "tf32" else "fp32", device)
    dtype = DTYPES.get(case.precision, torch.float32)
    compiled, additions = parts_of(case.mode, "infer")
    model = system_of(case, config, weights).eval().requires_grad_(False).to(device, dtype)
    path = fused(model, device, additions, case.precision) if case.system == OURS else ""
    if case.precision == "fp8":
        from vitrail.kernels.fp8 import freeze_fp8

        freeze_fp8(model)
    images = noise(case.batch, config, device).to(dtype)
    run: Callable[[Tensor], Tensor] = model if compiled is None else torch.compile(model, mode=compiled)
    if "graph" in additions:
        run = Graphed(run, largest=case.batch, eager=True)

    def once() -> Tensor:
        with torch.inference_mode():
            return run(images)

    return Prepared(once, logits=once()[:4].float().cpu(), path=path)


def noise(batch: int, config: Any, device: torch.device) -> Tensor:
    """Images of normal noise; the first ones are the same at every batch size."""
    generator = torch.Generator().manual_seed(0)
    distinct = min(batch, 32)  # drawn on the host: more would take longer than what is measured
    images = torch.randn(distinct, config.channels, *config.image_size, generator=generator)
    return images.repeat(-(-batch // distinct), 1, 1, 1)[:batch].to(device)


# ---------------------------------------------------------------- training


def a_batch(case: Case, config: Any, device: torch.device) -> tuple[Tensor, Tensor]:
    """Pixels 0 .. 255 (whole numbers, as decoded images) and labels."""
    generator = torch.Generator().manual_seed(1)
    pixels = (noise(case.batch, config, device) * 64 + 127.5).round().clamp(0, 255).to(torch.uint8)
    return pixels, torch.randint(config.classes, (case.batch,), generator=generator).to(device)


def our_step(case: Case, config: Any, weights: dict[str, Tensor], device: torch.device) -> tuple[Callable[[], Tensor], str]:
    """`TrainStep` over the supervised objective, as `train.run.open_run` puts them together; and the kernels it takes."""
    compiler, additions = parts_of(case.mode, "train")
    pixels, labels = a_batch(case, config, device)
    precision = precision_for(case.precision, device)
    model = system_of(case, config, weights).to(device, precision.weights)
    path = fused(model, device, additions, precision.name)
    model.recompute = "parts" if "save-memory" in additions else False  # type: ignore[assignment]
    objective = Supervised(model, ObjectiveSpec(), precision, HALF, HALF, classes=config.classes).to(device)
    scales = None
    if case.precision == "fp8":
        from vitrail.kernels.fp8 import train_fp8

        scales = train_fp8(model)
    step = TrainStep(
        objective, build_optimizer(objective.named(), OPTIMIZER), None, LossScale(device, on=precision.scaled),
        lambda batch: (batch.images, batch.labels), device=device, micro=case.batch, chunk=case.batch, seed=0, draws_inside=False,
    )  # fmt: skip
    if scales is not None:
        step.scales = scales
    if compiler is not None:
        objective.compile(mode=compiler)
    objective.train()
    order = torch.arange(case.batch, device=device)
    batch = Batch(pixels, labels, order, order, torch.ones(case.batch, dtype=torch.bool, device=device))
    return (lambda: step(batch, RATE).loss), path


def their_step(case: Case, config: Any, weights: dict[str, Tensor], device: torch.device) -> Callable[[], Tensor]:
    """The usual loop."""
    pixels, labels = a_batch(case, config, device)
    precision_for("fp32" if case.precision == "fp32" else "tf32", device)
    images = (pixels.float() - 127.5) / 127.5
    model = system_of(case, config, weights).to(device).train()
    keeps_masters = case.precision == "bf16-masters"
    masters = [p.detach().clone().requires_grad_() for p in model.parameters()] if keeps_masters else []
    if keeps_masters:
        model, images = model.to(torch.bfloat16), images.to(torch.bfloat16)
    params: list[Tensor] = list(model.parameters())
    learned = masters if keeps_masters else params
    optimizer = torch.optim.AdamW(learned, RATE, weight_decay=DECAY, fused=True)
    mode, _ = parts_of(case.mode, "train")
    run: Callable[[Tensor], Tensor] = model if mode is None else torch.compile(model, mode=mode)
    half = DTYPES.get(case.precision)
    autocast = lambda: torch.autocast(device.type, half) if half is not None else contextlib.nullcontext()

    def once() -> Tensor:
        with autocast():
            loss = F.cross_entropy(run(images).float(), labels)
        loss.backward()
        if keeps_masters:
            for master, p in zip(masters, params):
                assert p.grad is not None
                master.grad = p.grad.float()
                p.grad = None
        torch.nn.utils.clip_grad_norm_(learned, CLIP, foreach=True)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if keeps_masters:
            with torch.no_grad():
                torch._foreach_copy_(params, masters)
        return loss.detach()

    return once
