# mypy: disable-error-code="no-untyped-def,no-untyped-call,misc,untyped-decorator,assignment"
# ruff: noqa: RUF005 (Triton adds tuples, it does not unpack them)
"""Self-attention for the short sequences of an image: one program a head, forward and backward.

    heads = attention(qkv, bias, heads=12)      # (B, T, 3 D) -> (B, T, D): softmax(q k^T / sqrt(d)) v

The tokens of one head (197 of them, 64 wide: 25 KB) fit on one multiprocessor, so nothing is
streamed twice: the forward program keeps all keys and values, the backward program all queries
and their gradients. Both read q, k, v where the projection left them, (B, T, 3, H, d), and write
(B, T, H, d) and (B, T, 3, H, d): no permuted copies. The backward program owns its head's dq, dk
and dv: nothing is added to by two programs, so the same inputs give the same bits.

`bias` is the projection's bias, already added to qkv; only its gradient is made here, the sum of
dq, dk, dv over tokens, while they are in registers.

A sequence is cut into pieces of powers of two, 197 = 128 + 64 + 5 of 16: few padded products
where one power of two would pad 197 to 256. The kept sequence is up to three such pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from vitrail.kernels.paths import on

__all__ = ["BACKWARD", "FORWARD", "MOST_TOKENS", "WIDTHS", "Tiles", "attention", "pieces"]

MOST_TOKENS = 272  # 16 x 16 patches, a class token and some registers; longer sequences leave the registers of a program
WIDTHS = (16, 32, 64)  # widths of a head
_LOG2E = 1.4426950408889634


@dataclass(frozen=True)
class Tiles:
    """How a kernel is laid out: rows that pass by at once, the fewest in the last turn, the largest kept piece, warps, stages."""

    rows: int
    tail: int
    piece: int
    warps: int
    stages: int = 2


# chosen by benchmarks/kernels_compile.py (registers, no spills); benchmarks/kernel_times.py times the alternatives
FORWARD = Tiles(rows=64, tail=64, piece=128, warps=4)
BACKWARD = Tiles(rows=64, tail=64, piece=64, warps=4, stages=1)


def pieces(tokens: int, largest: int) -> tuple[int, ...]:
    """Powers of two, from `largest` down to 16, that hold `tokens` with at most 15 to spare: 197 -> 128, 64, 16."""
    sizes: list[int] = []
    left = -(-tokens // 16) * 16
    while left > 0:
        sizes.append(min(largest, 1 << (left.bit_length() - 1)))
        left -= sizes[-1]
    return tuple(sizes)


def turns(tokens: int, rows: int, tail: int) -> tuple[int, int]:
    """(tokens that pass in equal turns, rows of a last, smaller one or 0): 197 in turns of 64 -> (192, 16), or (256, 0)."""
    full = tokens // rows * rows
    last = 0 if tokens == full else max(tail, 1 << (tokens - full - 1).bit_length())
    return (full + rows, 0) if last == rows else (full, last)


# ---------------------------------------------------------------- the kernels; T tokens, D width of a head


@triton.jit
def tile(head, start, stride, T: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr):
    """(ROWS, D) of one head from token `start`; tokens that do not exist are zero. WHOLE: all of them exist."""
    rows = start + tl.arange(0, ROWS)
    place = head + rows[:, None] * stride + tl.arange(0, D)[None, :]
    if WHOLE:
        return tl.load(place)
    return tl.load(place, mask=rows[:, None] < T, other=0.0)


@triton.jit
def put(head, start, stride, value, T: tl.constexpr, ROWS: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr):
    """`tile`, written."""
    rows = start + tl.arange(0, ROWS)
    place = head + rows[:, None] * stride + tl.arange(0, D)[None, :]
    if WHOLE:
        tl.store(place, value.to(head.dtype.element_ty))
    else:
        tl.store(place, value.to(head.dtype.element_ty), mask=rows[:, None] < T)


@triton.jit
def scores(q, kt, START: tl.constexpr, SIZE: tl.constexpr, T: tl.constexpr, EXACT: tl.constexpr):
    """q k^T of one piece of the keys; keys that do not exist weigh nothing."""
    s = tl.dot(q, kt, input_precision=EXACT)
    if START + SIZE > T:
        s = tl.where((START + tl.arange(0, SIZE))[None, :] < T, s, float("-inf"))
    return s


@triton.jit
def forward_rows(
    q_head, out_head, lse_head, start, stride_t, width, scale, kts, vs,
    T: tl.constexpr, D: tl.constexpr, SIZES: tl.constexpr, STARTS: tl.constexpr,
    ROWS: tl.constexpr, WHOLE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Some queries against all keys: their output, and log2(sum of 2^(score * scale)) / scale."""
    q = tile(q_head, start, stride_t, T, ROWS, D, WHOLE)
    s = ()
    top = tl.full((ROWS,), float("-inf"), tl.float32)
    for i in tl.static_range(len(SIZES)):
        s = s + (scores(q, kts[i], STARTS[i], SIZES[i], T, EXACT),)
        top = tl.maximum(top, tl.max(s[i], 1))
    total = tl.zeros((ROWS,), tl.float32)
    out = tl.zeros((ROWS, D), tl.float32)
    for i in tl.static_range(len(SIZES)):
        weights = tl.exp2(s[i] * scale - (top * scale)[:, None])
        total += tl.sum(weights, 1)
        out = tl.dot(weights.to(q.dtype), vs[i], out, input_precision=EXACT)
    put(out_head, start, width, out / total[:, None], T, ROWS, D, WHOLE)
    rows = start + tl.arange(0, ROWS)
    tl.store(lse_head + rows, tl.where(rows < T, top + tl.log2(total) / scale, 0.0), mask=rows < (T + 15) // 16 * 16)


@triton.jit
def forward_kernel(
    qkv, out, lse, heads, stride_b, stride_t, scale,
    T: tl.constexpr, D: tl.constexpr, SIZES: tl.constexpr, STARTS: tl.constexpr,
    ROWS: tl.constexpr, FULL: tl.constexpr, TAIL: tl.constexpr, STAGES: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One head: its keys and values stay, its queries pass by. `scale` is log2(e) / sqrt(d)."""
    batch, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    width = heads * D
    q_head = qkv + batch * stride_b + head * D
    out_head = out + batch * T * width + head * D
    lse_head = lse + (batch * heads + head) * ((T + 15) // 16 * 16)
    kts, vs = (), ()
    for i in tl.static_range(len(SIZES)):
        kts = kts + (tl.trans(tile(q_head + width, STARTS[i], stride_t, T, SIZES[i], D, STARTS[i] + SIZES[i] <= T)),)
        vs = vs + (tile(q_head + 2 * width, STARTS[i], stride_t, T, SIZES[i], D, STARTS[i] + SIZES[i] <= T),)
    for start in tl.range(0, FULL, ROWS, num_stages=STAGES):
        forward_rows(q_head, out_head, lse_head, start, stride_t, width, scale, kts, vs, T, D, SIZES, STARTS, ROWS, FULL <= T, EXACT)
    if TAIL > 0:
        forward_rows(q_head, out_head, lse_head, FULL, stride_t, width, scale, kts, vs, T, D, SIZES, STARTS, TAIL, False, EXACT)


@triton.jit
def kept_rows(
    q_head, o_head, g_head, delta_head, stride_t, width, START: tl.constexpr, SIZE: tl.constexpr, T: tl.constexpr, D: tl.constexpr
):  # fmt: skip
    """What backward keeps of a piece of the queries: q, the output's gradient g, zeros for dq^T. sum(g * output) goes to memory."""
    q = tile(q_head, START, stride_t, T, SIZE, D, START + SIZE <= T)
    g = tile(g_head, START, width, T, SIZE, D, START + SIZE <= T)
    o = tile(o_head, START, width, T, SIZE, D, START + SIZE <= T)
    tl.store(delta_head + START + tl.arange(0, SIZE), tl.sum(g.to(tl.float32) * o.to(tl.float32), 1))
    return q, g, tl.zeros((D, SIZE), tl.float32)


@triton.jit
def backward_pair(k, v, q, g, lse_head, delta_head, dqt, dk, dv, scale, START: tl.constexpr, SIZE: tl.constexpr, EXACT: tl.constexpr):
    """Some keys against some queries, both added to. Rows that do not exist are zero in q and g, or in k, and so add nothing.

    The two numbers of a query are read again for every turn: kept, they would fill a program's registers.
    """
    norm = tl.zeros((k.shape[0], SIZE), tl.float32) - tl.load(lse_head + START + tl.arange(0, SIZE))[None, :]
    weights = tl.exp2(tl.dot(k, tl.trans(q), norm, input_precision=EXACT) * scale)
    dv = tl.dot(weights.to(g.dtype), g, dv, input_precision=EXACT)
    delta = tl.zeros((k.shape[0], SIZE), tl.float32) - tl.load(delta_head + START + tl.arange(0, SIZE))[None, :]
    slope = weights * tl.dot(v, tl.trans(g), delta, input_precision=EXACT)
    slope = slope.to(q.dtype)
    dk = tl.dot(slope, q, dk, input_precision=EXACT)
    dqt = tl.dot(tl.trans(k), slope, dqt, input_precision=EXACT)
    return dqt, dk, dv


@triton.jit
def backward_keys(
    k_head, v_head, dk_head, dv_head, lse_head, delta_head, start, stride_t, stride_g, scale, root, qs, gs, dqts,
    T: tl.constexpr, D: tl.constexpr, SIZES: tl.constexpr, STARTS: tl.constexpr,
    ROWS: tl.constexpr, WHOLE: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """Some keys against all queries: their dk and dv written, their part of dq added."""
    k = tile(k_head, start, stride_t, T, ROWS, D, WHOLE)
    v = tile(v_head, start, stride_t, T, ROWS, D, WHOLE)
    dk = tl.zeros((ROWS, D), tl.float32)
    dv = tl.zeros((ROWS, D), tl.float32)
    added = ()
    for i in tl.static_range(len(SIZES)):
        dqt, dk, dv = backward_pair(
            k, v, qs[i], gs[i], lse_head, delta_head, dqts[i], dk, dv, scale, STARTS[i], SIZES[i], EXACT
        )  # fmt: skip
        added = added + (dqt,)
    put(dk_head, start, stride_g, dk * root, T, ROWS, D, WHOLE)
    put(dv_head, start, stride_g, dv, T, ROWS, D, WHOLE)
    return added


@triton.jit
def backward_kernel(
    qkv, out, grad, lse, delta, dqkv, dbias, heads, stride_b, stride_t, scale, root,
    T: tl.constexpr, D: tl.constexpr, SIZES: tl.constexpr, STARTS: tl.constexpr,
    ROWS: tl.constexpr, FULL: tl.constexpr, TAIL: tl.constexpr, STAGES: tl.constexpr, EXACT: tl.constexpr,
):  # fmt: skip
    """One head: its queries, their gradients and dq stay, its keys and values pass by. `root` is 1 / sqrt(d).

    Sums over tokens: of dk it is 0 (the same bias on every key changes no softmax), of dv that of the
    output's gradient (a row of weights adds up to 1); only that of dq has to be added up.
    """
    batch, head = (tl.program_id(0) // heads).to(tl.int64), tl.program_id(0) % heads
    width = heads * D
    q_head = qkv + batch * stride_b + head * D
    k_head, v_head = q_head + width, q_head + 2 * width
    o_head = out + batch * T * width + head * D
    g_head = grad + batch * T * width + head * D
    lse_head = lse + (batch * heads + head) * ((T + 15) // 16 * 16)
    delta_head = delta + (batch * heads + head) * ((T + 15) // 16 * 16)
    stride_g = 3 * width
    dq_head = dqkv + batch * T * stride_g + head * D
    dk_head, dv_head = dq_head + width, dq_head + 2 * width
    sums = dbias + batch * stride_g + head * D + tl.arange(0, D)
    qs, gs, dqts = (), (), ()
    sum_v = tl.zeros((D,), tl.float32)
    for i in tl.static_range(len(SIZES)):
        q, g, dqt = kept_rows(q_head, o_head, g_head, delta_head, stride_t, width, STARTS[i], SIZES[i], T, D)
        qs, gs, dqts = qs + (q,), gs + (g,), dqts + (dqt,)
        sum_v += tl.sum(g.to(tl.float32), 0)
    tl.store(sums + width, tl.zeros((D,), tl.float32))
    tl.store(sums + 2 * width, sum_v)
    tl.debug_barrier()  # delta is written before another thread of this program reads it
    for start in tl.range(0, FULL, ROWS, num_stages=STAGES):
        dqts = backward_keys(
            k_head, v_head, dk_head, dv_head, lse_head, delta_head, start, stride_t, stride_g, scale, root, qs, gs, dqts,
            T, D, SIZES, STARTS, ROWS, FULL <= T, EXACT,
        )  # fmt: skip
    if TAIL > 0:
        dqts = backward_keys(
            k_head, v_head, dk_head, dv_head, lse_head, delta_head, FULL, stride_t, stride_g, scale, root, qs, gs, dqts,
            T, D, SIZES, STARTS, TAIL, False, EXACT,
        )  # fmt: skip
    sum_q = tl.zeros((D,), tl.float32)
    for i in tl.static_range(len(SIZES)):
        dqt = dqts[i] * root
        put(dq_head, STARTS[i], stride_g, tl.trans(dqt), T, SIZES[i], D, STARTS[i] + SIZES[i] <= T)
        sum_q += tl.sum(dqt, 1)  # rows that do not exist are zero: their g and delta are
    tl.store(sums, sum_q)


# ---------------------------------------------------------------- the operations


def layout(tokens: int, width: int, tiles: Tiles, dtype: torch.dtype) -> dict[str, Any]:
    """The constants of a kernel for `tokens` of a head of `width`."""
    sizes = pieces(tokens, tiles.piece)
    full, tail = turns(tokens, tiles.rows, tiles.tail)
    exact = "ieee" if dtype == torch.float32 else "tf32"  # of no consequence for half precision
    constants = {"T": tokens, "D": width, "SIZES": sizes, "STARTS": (0, *accumulate(sizes[:-1]))}
    constants |= {"ROWS": tiles.rows, "FULL": full, "TAIL": tail}
    return constants | {"STAGES": tiles.stages, "EXACT": exact, "num_warps": tiles.warps}


@torch.library.custom_op("vitrail::attention_forward", mutates_args=())
def attention_forward(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """(B, T, 3 D) -> (B, T, D) and the normalisers of its rows (B, H, T and what it lacks to a multiple of 16)."""
    qkv = qkv if qkv.stride(2) == 1 else qkv.contiguous()
    batch, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    out = qkv.new_empty(batch, tokens, width)
    lse = qkv.new_empty(batch, heads, -(-tokens // 16) * 16, dtype=torch.float32)
    d = width // heads
    with on(qkv):
        forward_kernel[(batch * heads,)](
            qkv, out, lse, heads, qkv.stride(0), qkv.stride(1), _LOG2E / math.sqrt(d), **layout(tokens, d, FORWARD, qkv.dtype)
        )
    return out, lse


@attention_forward.register_fake
def _(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    batch, tokens, width = qkv.shape
    return qkv.new_empty(batch, tokens, width // 3), qkv.new_empty(batch, heads, -(-tokens // 16) * 16, dtype=torch.float32)


@torch.library.custom_op("vitrail::attention_backward", mutates_args=())
def attention_backward(grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """d qkv (B, T, 3 D), and each image's sum of it over tokens (B, 3 D), in float32."""
    qkv = qkv if qkv.stride(2) == 1 else qkv.contiguous()
    grad = grad.contiguous()
    batch, tokens, width = out.shape
    dqkv = qkv.new_empty(batch, tokens, 3 * width)
    sums = qkv.new_empty(batch, 3 * width, dtype=torch.float32)
    d = width // heads
    root = 1 / math.sqrt(d)
    with on(qkv):
        backward_kernel[(batch * heads,)](
            qkv, out, grad, lse, torch.empty_like(lse), dqkv, sums, heads, qkv.stride(0), qkv.stride(1), _LOG2E * root, root,
            **layout(tokens, d, BACKWARD, qkv.dtype),
        )  # fmt: skip
    return dqkv, sums


@attention_backward.register_fake
def _(grad: Tensor, qkv: Tensor, out: Tensor, lse: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    return qkv.new_empty(qkv.shape), qkv.new_empty(qkv.shape[0], qkv.shape[2], dtype=torch.float32)


class Attend(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, bias: Tensor | None, heads: int) -> Tensor:
        out, lse = torch.ops.vitrail.attention_forward(qkv, heads)
        ctx.save_for_backward(qkv, out, lse)
        ctx.heads, ctx.bias = heads, None if bias is None else bias.dtype
        return out

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        qkv, out, lse = ctx.saved_tensors
        dqkv, sums = torch.ops.vitrail.attention_backward(grad, qkv, out, lse, ctx.heads)
        return dqkv, None if ctx.bias is None else sums.sum(0).to(ctx.bias), None


def attention(qkv: Tensor, bias: Tensor | None, heads: int) -> Tensor:
    """(B, T, 3 D) -> (B, T, D). `bias` (3 D), which qkv already contains, gets its gradient here."""
    return Attend.apply(qkv, bias, heads)
