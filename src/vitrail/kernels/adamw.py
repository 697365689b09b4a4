# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"
"""Clip, AdamW and the running average in one pass over everything that learns.

    p, m, v, e  <-  the step of train/optim.py's AdamW and train/ema.py's average, the plain twins

Apart they read the weights three times and write differences that are read again: 60 bytes a weight,
of which this pass needs 40 (32 without an average). One launch serves all tensors: programs find
theirs through a table of addresses: weight, gradient, m, v, average. Each element is computed by itself, so the bits repeat; a step
that was passed over (`applied` 0) returns before it has read anything.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["AdamWTables", "adamw_step"]

CHUNK = 4096  # elements of a program
WARPS = 8


@triton.jit
def address(table, which: tl.constexpr, ALIGNED: tl.constexpr):
    found = tl.load(table + which)
    if ALIGNED:
        found = tl.multiple_of(found, 16)
    place = found.to(tl.pointer_type(tl.float32))
    return tl.multiple_of(place, 16) if ALIGNED else place


@triton.jit
def get(place, at, size, WHOLE: tl.constexpr):
    return tl.load(place + at) if WHOLE else tl.load(place + at, mask=at < size)


@triton.jit
def put(place, at, value, size, WHOLE: tl.constexpr):
    if WHOLE:
        tl.store(place + at, value)
    else:
        tl.store(place + at, value, mask=at < size)


@triton.jit
def chunk(
    table, start, size, numbers, rate, decay, beta1, gap1, beta2, gap2, eps,
    AVERAGE: tl.constexpr, ALIGNED: tl.constexpr, CHUNK: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    divisor, correct1, correct2 = tl.load(numbers + 1), tl.load(numbers + 2), tl.load(numbers + 3)
    at = start + tl.arange(0, CHUNK)
    p_at, g_at = address(table, 0, ALIGNED), address(table, 1, ALIGNED)
    m_at, v_at = address(table, 2, ALIGNED), address(table, 3, ALIGNED)
    p, g = get(p_at, at, size, WHOLE), get(g_at, at, size, WHOLE) / divisor
    m = beta1 * get(m_at, at, size, WHOLE) + gap1 * g
    v = beta2 * get(v_at, at, size, WHOLE) + gap2 * g * g
    p -= rate * ((m / correct1) / (tl.sqrt(v / correct2) + eps) + decay * p)
    put(m_at, at, m, size, WHOLE)
    put(v_at, at, v, size, WHOLE)
    put(p_at, at, p, size, WHOLE)
    if AVERAGE:
        e_at = address(table, 4, ALIGNED)
        e = get(e_at, at, size, WHOLE)
        put(e_at, at, e + (p - e) * tl.load(numbers + 4), size, WHOLE)


@triton.jit
def adamw_kernel(
    addresses, sizes, chunks, rates, decays, numbers, lr, beta1, gap1, beta2, gap2, eps,
    AVERAGE: tl.constexpr, ALIGNED: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    if tl.load(numbers) != 0:  # applied
        tensor = tl.load(chunks + 2 * tl.program_id(0))
        start = tl.load(chunks + 2 * tl.program_id(0) + 1) * CHUNK
        size, table = tl.load(sizes + tensor), addresses + tensor * 5
        rate, decay = lr * tl.load(rates + tensor), tl.load(decays + tensor)
        if start + CHUNK <= size:
            chunk(table, start, size, numbers, rate, decay, beta1, gap1, beta2, gap2, eps, AVERAGE, ALIGNED, CHUNK, True)
        else:
            chunk(table, start, size, numbers, rate, decay, beta1, gap1, beta2, gap2, eps, AVERAGE, ALIGNED, CHUNK, False)


class AdamWTables:
    """Where everything lies: built once, but for the gradients, which move from step to step."""

    def __init__(
        self, params: Sequence[Tensor], m: Sequence[Tensor], v: Sequence[Tensor], averages: Sequence[Tensor],
        rates: Sequence[float], decays: Sequence[float],
    ) -> None:  # fmt: skip
        device = params[0].device
        self.kept = (params, m, v, averages)  # the addresses below are theirs
        self.average = bool(averages)
        columns = [params, params, m, v, averages or params]  # the second is filled in by each step
        self.host = torch.tensor([[t.data_ptr() for t in row] for row in zip(*columns)], dtype=torch.int64)
        pieces = [(number, piece) for number, p in enumerate(params) for piece in range(-(-p.numel() // CHUNK))]
        self.chunks = torch.tensor(pieces, dtype=torch.int32, device=device)
        self.sizes = torch.tensor([p.numel() for p in params], dtype=torch.int32, device=device)
        self.rates = torch.tensor(rates, dtype=torch.float32, device=device)
        self.decays = torch.tensor(decays, dtype=torch.float32, device=device)

    def still(self, params: Sequence[Tensor]) -> bool:
        """Whether the weights lie where they lay."""
        return self.host[:, 0].tolist() == [p.data_ptr() for p in params]

    def addresses(self, gradients: Sequence[Tensor]) -> tuple[Tensor, bool]:
        """The table with this step's gradients, on the device; and whether everything begins at a multiple of 16 bytes."""
        self.host[:, 1] = torch.tensor([g.data_ptr() for g in gradients], dtype=torch.int64)
        device = self.sizes.device
        table = self.host.pin_memory() if device.type == "cuda" else self.host.clone()
        return table.to(device, non_blocking=True), not bool((self.host % 16).any())


@torch.no_grad()
def adamw_step(
    tables: AdamWTables, gradients: Sequence[Tensor], numbers: Tensor, lr: float, betas: tuple[float, float], eps: float
) -> None:
    """One step of everything in the tables.

    numbers: float32 on the device: applied (0 or 1), what gradients are divided by, 1 - beta1^t, 1 - beta2^t, 1 - the
    average's decay
    """
    gradients = [g.contiguous() for g in gradients]
    addresses, aligned = tables.addresses(gradients)
    with on(addresses):
        adamw_kernel[(len(tables.chunks),)](
            addresses, tables.sizes, tables.chunks, tables.rates, tables.decays, numbers, lr,
            betas[0], 1 - betas[0], betas[1], 1 - betas[1], eps,
            AVERAGE=tables.average, ALIGNED=aligned, CHUNK=CHUNK, num_warps=WARPS,
        )  # fmt: skip


def on(x: Tensor) -> Any:
    """The GPU of `x`, for a launch (the interpreter's tensors are on the CPU)."""
    return torch.cuda.device(x.device) if x.is_cuda else torch.cuda.device(-1)
