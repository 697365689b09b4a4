# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"
"""GELU, in both forms, and its backward pass with the sum over tokens that is the gradient of the bias before it.

    h = gelu(u, bias, tanh=True)        # u already contains the bias of fc1

Only u is kept. Backward reads u and the gradient once, writes the gradient of u, and each program
adds up the columns it passes; one small sum in a fixed order adds up programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitrail.kernels.paths import on

__all__ = ["BACKWARD", "FORWARD", "Tile", "gelu", "linear_gelu"]


@dataclass(frozen=True)
class Tile:
    """Tokens and columns of one tile, warps, and how many programs share a column of tiles (backward)."""

    rows: int
    columns: int
    warps: int
    programs: int = 0


FORWARD = Tile(rows=16, columns=256, warps=4)
BACKWARD = Tile(rows=16, columns=256, warps=4, programs=88)  # 88 x 12 columns of B/16: eight programs a multiprocessor of an H200


@triton.jit
def passed(x, TANH: tl.constexpr):
    """The part of x that passes: Phi(x), or its tanh form, which is a sigmoid of 2 sqrt(2 / pi) (x + 0.044715 x^3)."""
    if TANH:
        return 1.0 / (1.0 + tl.exp2((x + x * x * x * 0.044715) * -2.302208198144325))  # -2 sqrt(2 / pi) log2(e)
    else:
        return (tl.erf(x * 0.7071067811865476) + 1.0) * 0.5


@triton.jit
def derivative(x, TANH: tl.constexpr):
    """d gelu / d x."""
    part = passed(x, TANH)
    if TANH:
        return part + x * part * (1.0 - part) * (x * x * 0.21406444881780076 + 1.5957691216057308)  # 2 sqrt(2 / pi) (1 + 3 * 0.044715 x^2)
    else:
        return part + x * tl.exp2(x * x * -0.7213475204444817) * 0.3989422804014327  # the density, exp(-x^2 / 2) / sqrt(2 pi)


@triton.jit
def forward_kernel(u, h, tokens, M: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TANH: tl.constexpr):
    row = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    mask = (row < tokens)[:, None] & (column < M)[None, :]
    place = row.to(tl.int64)[:, None] * M + column[None, :]
    x = tl.load(u + place, mask=mask, other=0.0).to(tl.float32)
    tl.store(h + place, (x * passed(x, TANH)).to(h.dtype.element_ty), mask=mask)


@triton.jit
def backward_kernel(
    dh, u, du, sums, tokens,
    M: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr, TURNS: tl.constexpr, PROGRAMS: tl.constexpr, TANH: tl.constexpr,
):  # fmt: skip
    column = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    total = tl.zeros((ROWS, COLUMNS), tl.float32)
    for turn in range(TURNS):
        row = (turn * PROGRAMS + tl.program_id(1)) * ROWS + tl.arange(0, ROWS)
        mask = (row < tokens)[:, None] & (column < M)[None, :]
        place = row.to(tl.int64)[:, None] * M + column[None, :]
        x = tl.load(u + place, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dh + place, mask=mask, other=0.0).to(tl.float32) * derivative(x, TANH)
        tl.store(du + place, g.to(du.dtype.element_ty), mask=mask)
        total += g
    tl.store(sums + tl.program_id(1) * M + column, tl.sum(total, 0), mask=column < M)


# ---------------------------------------------------------------- the operations


@torch.library.custom_op("vitrail::gelu_forward", mutates_args=())
def gelu_forward(u: Tensor, tanh: bool) -> Tensor:
    u = u.contiguous()
    tokens, width = u.numel() // u.shape[-1], u.shape[-1]
    h = torch.empty_like(u)
    with on(u):
        forward_kernel[(triton.cdiv(width, FORWARD.columns), triton.cdiv(tokens, FORWARD.rows))](
            u, h, tokens, M=width, ROWS=FORWARD.rows, COLUMNS=FORWARD.columns, TANH=tanh, num_warps=FORWARD.warps
        )
    return h


@gelu_forward.register_fake
def _(u: Tensor, tanh: bool) -> Tensor:
    return u.new_empty(u.shape)


@torch.library.custom_op("vitrail::gelu_backward", mutates_args=())
def gelu_backward(dh: Tensor, u: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    """d u, and its sum over tokens in float32."""
    u, dh = u.contiguous(), dh.contiguous()
    tokens, width = u.numel() // u.shape[-1], u.shape[-1]
    du = torch.empty_like(u)
    programs = min(BACKWARD.programs, triton.cdiv(tokens, BACKWARD.rows))
    sums = u.new_empty(programs, width, dtype=torch.float32)
    with on(u):
        backward_kernel[(triton.cdiv(width, BACKWARD.columns), programs)](
            dh, u, du, sums, tokens, M=width, ROWS=BACKWARD.rows, COLUMNS=BACKWARD.columns,
            TURNS=triton.cdiv(tokens, programs * BACKWARD.rows), PROGRAMS=programs, TANH=tanh, num_warps=BACKWARD.warps,
        )  # fmt: skip
    return du, sums.sum(0)


@gelu_backward.register_fake
def _(dh: Tensor, u: Tensor, tanh: bool) -> tuple[Tensor, Tensor]:
    return u.new_empty(u.shape), u.new_empty(u.shape[-1], dtype=torch.float32)


class Gelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, u: Tensor, bias: Tensor | None, tanh: bool) -> Tensor:
        ctx.save_for_backward(u)
        ctx.tanh, ctx.bias = tanh, None if bias is None else bias.dtype
        return torch.ops.vitrail.gelu_forward(u, tanh)

    @staticmethod
    def backward(ctx: Any, dh: Tensor) -> tuple[Tensor, Tensor | None, None]:
        (u,) = ctx.saved_tensors
        du, sums = torch.ops.vitrail.gelu_backward(dh, u, ctx.tanh)
        return du, None if ctx.bias is None else sums.to(ctx.bias), None


def gelu(u: Tensor, bias: Tensor | None, *, tanh: bool) -> Tensor:
    """GELU of u, which already contains `bias`; the bias gets its gradient here."""
    return Gelu.apply(u, bias, tanh)


@torch.library.custom_op("vitrail::linear_gelu", mutates_args=())
def linear_gelu(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """GELU (tanh) of a linear layer in the product's own last step, for inference on CUDA; opaque, so that a compiler keeps it one."""
    flat = torch._addmm_activation(bias.to(x.dtype), x.reshape(-1, x.shape[-1]), weight.t(), use_gelu=True)
    return flat.view(*x.shape[:-1], weight.shape[0])


@linear_gelu.register_fake
def _(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])
