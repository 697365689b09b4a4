# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator"
"""One pass over a matrix on its way to fp8: cast, transposed copy, greatest magnitude, and the sum of every column.

The three products of a linear layer's training want their operands both as they are and turned
(tensor cores read fp8 along the summed axis only), the next step's scale wants the greatest
magnitude, and the bias gradient is the column sum: all of it while the tile is in registers. Tiles
write partial results of their own, summed afterwards in a fixed order, so the bits repeat.
The plain twin is `fp8.quantise_plain`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

__all__ = ["quantise_tiles"]

ROWS, COLUMNS, WARPS = 128, 64, 8  # of a tile


@triton.jit
def quantise_kernel(
    x, scale, rows, columns, greatest, sums, M, K, stride, pitch,
    MOST: tl.constexpr, SUMS: tl.constexpr, BM: tl.constexpr, BK: tl.constexpr,
):  # fmt: skip
    i, j = tl.program_id(0), tl.program_id(1)
    m = (i * BM + tl.arange(0, BM)).to(tl.int64)
    k = (j * BK + tl.arange(0, BK)).to(tl.int64)
    inside = (m < M)[:, None] & (k < K)[None, :]
    v = tl.load(x + m[:, None] * stride + k[None, :], mask=inside, other=0.0).to(tl.float32)
    q = v * tl.load(scale)
    q = tl.where(q > MOST, MOST, tl.where(q < -MOST, -MOST, q))
    q = tl.where(tl.abs(v) < float("inf"), q, float("nan"))  # infinite must not become merely large
    q8 = q.to(rows.dtype.element_ty)
    tl.store(rows + m[:, None] * K + k[None, :], q8, mask=inside)
    tl.store(columns + k[:, None] * pitch + m[None, :], tl.trans(q8), mask=(k < K)[:, None] & (m < pitch)[None, :])
    tl.store(greatest + i * tl.num_programs(1) + j, tl.max(tl.max(tl.abs(v), 1), 0))
    if SUMS:
        tl.store(sums + i * K + k, tl.sum(v, 0), mask=k < K)


def quantise_tiles(
    x: Tensor, scale: Tensor, dtype: torch.dtype, pitch: int, sums: bool, stored: torch.dtype | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """(M, K) -> fp8 (M, K), fp8 (K, pitch) with zeros from column M on, greatest |x| (0-d), column sums (K, or none of them).

    stored: another type to keep the numbers in, unrounded (Triton's interpreter rounds to fp8 wrongly).
    """
    x = x if x.stride(1) == 1 else x.contiguous()
    size, width = x.shape
    grid = (triton.cdiv(pitch, ROWS), triton.cdiv(width, COLUMNS))
    rows = torch.empty(size, width, dtype=stored or dtype, device=x.device)
    columns = torch.empty(width, pitch, dtype=stored or dtype, device=x.device)
    greatest = torch.empty(grid, dtype=torch.float32, device=x.device)
    partial = torch.empty(grid[0] if sums else 0, width, dtype=torch.float32, device=x.device)
    most = torch.finfo(dtype).max
    with torch.cuda.device(x.device) if x.is_cuda else torch.cuda.device(-1):
        quantise_kernel[grid](
            x, scale, rows, columns, greatest, partial, size, width, x.stride(0), pitch,
            MOST=most, SUMS=sums, BM=ROWS, BK=COLUMNS, num_warps=WARPS,
        )  # fmt: skip
    return rows, columns, greatest.amax(), partial.sum(0) if sums else partial.sum(0)[:0]
