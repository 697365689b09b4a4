"""What a figure was measured on: the device, its software, and the rate of a large matrix product there.

The rate of a large product is the honest ceiling of a transformer on a machine: the data sheet's
peak is reached by nothing. It is measured on random numbers (zeros run faster than real data).
"""

from __future__ import annotations

import platform
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from vitrail.runtime.device import describe_device
from vitrail.runtime.stopwatch import Timing, passes

__all__ = ["Machine", "look", "product_rate"]

SIDES = {"cuda": 8192, "cpu": 2048}  # of the square matrices
CPU_FLAGS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16", "amx_int8")


@dataclass(frozen=True)
class Machine:
    device: str  # "NVIDIA H200", "AMD EPYC, 2 threads"
    kind: str  # "cuda", "cpu"
    torch: str
    python: str
    system: str
    memory_gib: float | None  # of the GPU
    products: dict[str, float]  # precision -> TFLOP/s of a large square product, measured

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        rates = ", ".join(f"{rate:.3g} TFLOP/s {name}" for name, rate in self.products.items())
        return f"{self.device}; torch {self.torch}, Python {self.python}, {self.system}; a large matrix product: {rates}"


def look(device: torch.device, precisions: tuple[str, ...], clock: Callable[[], float] = time.perf_counter) -> Machine:
    """The machine that `device` belongs to, with the rate of its products in these precisions."""
    memory = torch.cuda.get_device_properties(device).total_memory / 2**30 if device.type == "cuda" else None
    name = describe_device(device) if device.type == "cuda" else f"{processor()}, {torch.get_num_threads()} threads"
    return Machine(
        device=name,
        kind=device.type,
        torch=torch.__version__,
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        memory_gib=memory,
        products={name: product_rate(device, name, clock) for name in precisions},
    )


def product_rate(device: torch.device, precision: str, clock: Callable[[], float] = time.perf_counter) -> float:
    """TFLOP/s of a large square product of random matrices; "fp8": tensor-wise scales, fast accumulation."""
    side = SIDES.get(device.type, 2048)
    generator = torch.Generator(device).manual_seed(0) if device.type in ("cpu", "cuda") else None
    kind = torch.float32 if precision in ("fp32", "tf32", "fp64") else torch.float16 if precision == "fp16" else torch.bfloat16
    a, b = (torch.randn(side, side, device=device, generator=generator).to(kind) for _ in range(2))
    if precision == "fp8":
        one, a8, b8 = torch.ones((), device=device), a.to(torch.float8_e4m3fn), b.to(torch.float8_e4m3fn)
        once = lambda: torch._scaled_mm(a8, b8.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=True)
    else:
        once = lambda: a @ b
    timing = Timing.of(passes(once, device, runs=20, budget_s=1.0, clock=clock))
    return 2 * side**3 / timing.median / 1e12


def processor() -> str:
    """The CPU by name, with the instructions that matter to products."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor() or platform.machine()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine())
    flags = next((line for line in lines if line.startswith("flags")), "").split()
    return " ".join([name, *(flag for flag in CPU_FLAGS if flag in flags)])
