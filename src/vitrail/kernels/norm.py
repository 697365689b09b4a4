# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"
"""The residual sum and the LayerNorm after it in one pass over the tokens, forward and backward.

    z, n = residual_norm(z, branch, bias, scale, keep, weight, shift, eps, dtype)

    z' = z + keep * scale * branch          keep: one number a sample (stochastic depth); scale: LayerScale
    n  = LayerNorm(z') in `dtype`

Without a branch z' is z itself. z is float32 or the precision of the products, and z' is rounded to
it before it is normalised, so that the backward pass, which normalises z' again, sees the same.
Backward adds the two gradients of z' (through n and past it), and makes the gradient of the branch
and the sums over tokens (weight, shift, scale, and `bias`, which the branch already contains) while
it holds the row: each program adds up its own rows, one small sum in a fixed order adds up programs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitrail.kernels.paths import on

__all__ = ["BACKWARD", "FORWARD", "PROGRAMS", "Rows", "residual_norm"]


@dataclass(frozen=True)
class Rows:
    """Tokens a program holds at once, and its warps."""

    rows: int
    warps: int


FORWARD = Rows(rows=4, warps=4)
BACKWARD = Rows(rows=2, warps=4)
PROGRAMS = 528  # of the backward pass, four a multiprocessor of an H200; fixed, so that sums have one order


@triton.jit
def forward_kernel(
    z, branch, scale, keep, weight, shift, total, out, mean, rstd, tokens, eps,
    T: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr,
    BRANCH: tl.constexpr, SCALE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    row = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    column = tl.arange(0, BLOCK)
    there = row < tokens
    mask = there[:, None] & (column < D)[None, :]
    place = row.to(tl.int64)[:, None] * D + column[None, :]
    x = tl.load(z + place, mask=mask, other=0.0).to(tl.float32)
    if BRANCH:
        y = tl.load(branch + place, mask=mask, other=0.0).to(tl.float32)
        if SCALE:
            y = y * tl.load(scale + column, mask=column < D, other=0.0).to(tl.float32)[None, :]
        if KEEP:
            y = y * tl.load(keep + row // T, mask=there, other=0.0).to(tl.float32)[:, None]
        rounded = (x + y).to(z.dtype.element_ty)
        tl.store(total + place, rounded, mask=mask)
        x = rounded.to(tl.float32)
    average = tl.sum(x, 1) / D
    centred = tl.where(mask, x - average[:, None], 0.0)
    inverse = tl.rsqrt(tl.sum(centred * centred, 1) / D + eps)
    gain = tl.load(weight + column, mask=column < D, other=0.0).to(tl.float32)
    offset = tl.load(shift + column, mask=column < D, other=0.0).to(tl.float32)
    n = centred * inverse[:, None] * gain[None, :] + offset[None, :]
    tl.store(out + place, n.to(out.dtype.element_ty), mask=mask)
    tl.store(mean + row, average, mask=there)
    tl.store(rstd + row, inverse, mask=there)


@triton.jit
def backward_kernel(
    dn, dz, total, branch, scale, keep, weight, mean, rstd, dtotal, dbranch, sums, tokens,
    T: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, ROWS: tl.constexpr, TURNS: tl.constexpr, PROGRAMS: tl.constexpr,
    SCALE: tl.constexpr, KEEP: tl.constexpr, APART: tl.constexpr, BIAS: tl.constexpr,
):  # fmt: skip
    """APART: the branch's gradient is not that of z', and is written too. `sums` (program, 4, D): weight, shift, bias, scale."""
    column = tl.arange(0, BLOCK)
    inside = column < D
    gain = tl.load(weight + column, mask=inside, other=0.0).to(tl.float32)
    layer_scale = tl.load(scale + column, mask=inside, other=0.0).to(tl.float32) if SCALE else gain
    sum_weight = tl.zeros((BLOCK,), tl.float32)
    sum_shift = tl.zeros((BLOCK,), tl.float32)
    sum_bias = tl.zeros((BLOCK,), tl.float32)
    sum_scale = tl.zeros((BLOCK,), tl.float32)
    for turn in range(TURNS):
        row = (turn * PROGRAMS + tl.program_id(0)) * ROWS + tl.arange(0, ROWS)
        there = row < tokens
        mask = there[:, None] & inside[None, :]
        place = row.to(tl.int64)[:, None] * D + column[None, :]
        x = tl.load(total + place, mask=mask, other=0.0).to(tl.float32)
        g = tl.load(dn + place, mask=mask, other=0.0).to(tl.float32)
        past = tl.load(dz + place, mask=mask, other=0.0).to(tl.float32)
        average = tl.load(mean + row, mask=there, other=0.0)
        inverse = tl.load(rstd + row, mask=there, other=0.0)
        unit = tl.where(mask, (x - average[:, None]) * inverse[:, None], 0.0)
        slope = g * gain[None, :]
        along = tl.sum(unit * slope, 1) / D
        level = tl.sum(slope, 1) / D
        dx = (slope - level[:, None] - unit * along[:, None]) * inverse[:, None] + past
        dx = tl.where(mask, dx, 0.0)
        tl.store(dtotal + place, dx.to(dtotal.dtype.element_ty), mask=mask)
        sum_weight += tl.sum(g * unit, 0)
        sum_shift += tl.sum(g, 0)
        dy = dx
        if KEEP:
            dy = dy * tl.load(keep + row // T, mask=there, other=0.0).to(tl.float32)[:, None]
        if SCALE:
            y = tl.load(branch + place, mask=mask, other=0.0).to(tl.float32)
            sum_scale += tl.sum(dy * y, 0)
            dy = dy * layer_scale[None, :]
        if APART:
            tl.store(dbranch + place, dy.to(dbranch.dtype.element_ty), mask=mask)
        if BIAS:
            sum_bias += tl.sum(dy, 0)
    mine = sums + tl.program_id(0) * 4 * D + column
    tl.store(mine, sum_weight, mask=inside)
    tl.store(mine + D, sum_shift, mask=inside)
    if BIAS:
        tl.store(mine + 2 * D, sum_bias, mask=inside)
    if SCALE:
        tl.store(mine + 3 * D, sum_scale, mask=inside)


# ---------------------------------------------------------------- the operations


@torch.library.custom_op("vitrail::norm_forward", mutates_args=())
def norm_forward(
    z: Tensor,
    branch: Tensor | None,
    scale: Tensor | None,
    keep: Tensor | None,
    weight: Tensor,
    shift: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """z' (empty without a branch), LayerNorm(z'), and every token's mean and inverse deviation."""
    z = z.contiguous()
    tokens, width = z.numel() // z.shape[-1], z.shape[-1]
    total = torch.empty_like(z) if branch is not None else z.new_empty(0)
    out = torch.empty_like(z, dtype=dtype)
    mean, rstd = (z.new_empty(z.shape[:-1], dtype=torch.float32) for _ in range(2))
    with on(z):
        forward_kernel[(triton.cdiv(tokens, FORWARD.rows),)](
            z, z if branch is None else branch.contiguous(), weight if scale is None else scale, mean if keep is None else keep,
            weight, shift, total, out, mean, rstd, tokens, eps,
            T=z.shape[1], D=width, BLOCK=triton.next_power_of_2(width), ROWS=FORWARD.rows,
            BRANCH=branch is not None, SCALE=scale is not None, KEEP=keep is not None, num_warps=FORWARD.warps,
        )  # fmt: skip
    return total, out, mean, rstd


@norm_forward.register_fake
def _(
    z: Tensor,
    branch: Tensor | None,
    scale: Tensor | None,
    keep: Tensor | None,
    weight: Tensor,
    shift: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = z.new_empty(z.shape) if branch is not None else z.new_empty(0)
    mean, rstd = (z.new_empty(z.shape[:-1], dtype=torch.float32) for _ in range(2))
    return total, z.new_empty(z.shape, dtype=dtype), mean, rstd


@torch.library.custom_op("vitrail::norm_backward", mutates_args=())
def norm_backward(
    dn: Tensor,
    dz: Tensor,
    total: Tensor,
    branch: Tensor | None,
    scale: Tensor | None,
    keep: Tensor | None,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
    apart: torch.dtype | None,
    bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """d z', the branch's gradient in dtype `apart` (empty: it is d z'), and sums (4, D): weight, shift, bias, scale."""
    dn, dz, total = dn.contiguous(), dz.contiguous(), total.contiguous()  # without a branch, total is what the caller gave
    tokens, width = dn.numel() // dn.shape[-1], dn.shape[-1]
    dtotal = torch.empty_like(total)
    dbranch = torch.empty_like(total, dtype=apart) if apart is not None else total.new_empty(0)
    programs = min(PROGRAMS, triton.cdiv(tokens, BACKWARD.rows))
    sums = total.new_empty(programs, 4, width, dtype=torch.float32)
    with on(total):
        backward_kernel[(programs,)](
            dn, dz, total, total if branch is None else branch.contiguous(), weight if scale is None else scale,
            mean if keep is None else keep, weight, mean, rstd, dtotal, dbranch, sums, tokens,
            T=total.shape[1], D=width, BLOCK=triton.next_power_of_2(width), ROWS=BACKWARD.rows,
            TURNS=triton.cdiv(tokens, programs * BACKWARD.rows), PROGRAMS=programs,
            SCALE=scale is not None, KEEP=keep is not None, APART=apart is not None, BIAS=bias, num_warps=BACKWARD.warps,
        )  # fmt: skip
    return dtotal, dbranch, sums[:, : 4 if scale is not None else 3 if bias else 2].sum(0)


@norm_backward.register_fake
def _(
    dn: Tensor,
    dz: Tensor,
    total: Tensor,
    branch: Tensor | None,
    scale: Tensor | None,
    keep: Tensor | None,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
    apart: torch.dtype | None,
    bias: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    dbranch = total.new_empty(total.shape, dtype=apart) if apart is not None else total.new_empty(0)
    kinds = 4 if scale is not None else 3 if bias else 2
    return total.new_empty(total.shape), dbranch, total.new_empty(kinds, total.shape[-1], dtype=torch.float32)


class ResidualNorm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        z: Tensor,
        branch: Tensor | None,
        bias: Tensor | None,
        scale: Tensor | None,
        keep: Tensor | None,
        weight: Tensor,
        shift: Tensor,
        eps: float,
        dtype: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        total, out, mean, rstd = torch.ops.vitrail.norm_forward(z, branch, scale, keep, weight, shift, eps, dtype)
        total = z.view_as(z) if branch is None else total
        kept = branch if scale is not None else None
        ctx.save_for_backward(total, kept, scale, keep, weight, mean, rstd)
        ctx.dtypes = [None if t is None else t.dtype for t in (branch, bias, scale, weight, shift)]
        return total, out

    @staticmethod
    def backward(ctx: Any, dz: Tensor, dn: Tensor) -> tuple[Tensor | None, ...]:
        total, branch, scale, keep, weight, mean, rstd = ctx.saved_tensors
        of_branch, of_bias, of_scale, of_weight, of_shift = ctx.dtypes
        same = scale is None and keep is None and of_branch == total.dtype
        apart = None if of_branch is None or same else of_branch
        dtotal, dbranch, sums = torch.ops.vitrail.norm_backward(
            dn, dz, total, branch, scale, keep, weight, mean, rstd, apart, of_bias is not None
        )
        if of_branch is not None and same:
            dbranch = dtotal
        return (
            dtotal,
            None if of_branch is None else dbranch,
            None if of_bias is None else sums[2].to(of_bias),
            None if of_scale is None else sums[3].to(of_scale),
            None,
            sums[0].to(of_weight),
            sums[1].to(of_shift),
            None,
            None,
        )


def residual_norm(
    z: Tensor,
    branch: Tensor | None,
    bias: Tensor | None,
    scale: Tensor | None,
    keep: Tensor | None,
    weight: Tensor,
    shift: Tensor,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor]:
    """(z + keep * scale * branch, its LayerNorm in `dtype`); `bias`, which the branch already contains, gets its gradient here."""
    return ResidualNorm.apply(z, branch, bias, scale, keep, weight, shift, eps, dtype)
