"""Attention a head a program, against float64."""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="the kernels need triton (extra kernels-test)")

from vitrail.kernels import attention as module
from vitrail.kernels.attention import BACKWARD, FORWARD, MOST_TOKENS, Tiles, attention, pieces, turns

_spec = importlib.util.spec_from_file_location("kernels_conftest", Path(__file__).parent / "conftest.py")
_conftest = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_conftest)
error, HERE = _conftest.error, _conftest.HERE

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value", "ignore:TRITON_DEFAULT_FP_FUSION")
DTYPES = [torch.float32, torch.float16] if HERE.type == "cpu" else [torch.bfloat16, torch.float16]
CLOSE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def plain(qkv, heads):
    q, k, v = qkv.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def run(qkv, grad, heads):
    """(output, d qkv, d bias) of the kernels."""
    bias = torch.zeros(qkv.shape[2], device=qkv.device, requires_grad=True)
    qkv = qkv.detach().requires_grad_()
    out = attention(qkv, bias, heads)
    out.backward(grad)
    return out.detach(), qkv.grad, bias.grad


def drawn(batch, tokens, heads, width, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    qkv = torch.randn(batch, tokens, 3 * heads * width, generator=generator)
    grad = torch.randn(batch, tokens, heads * width, generator=generator)
    return qkv.to(HERE, dtype), grad.to(HERE, dtype)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("tokens", "heads", "width"), [(5, 2, 32), (16, 1, 16), (50, 2, 32), (65, 3, 64), (197, 1, 64), (257, 1, 32)])
def test_forward_and_backward_agree_with_float64(tokens, heads, width, dtype):
    qkv, grad = drawn(2, tokens, heads, width, dtype)
    out, slope, sums = run(qkv, grad, heads)
    exact = qkv.double().requires_grad_()
    plain(exact, heads).backward(grad.double())
    assert error(out, plain(exact, heads)) < CLOSE[dtype]
    assert error(slope, exact.grad) < 2 * CLOSE[dtype]
    assert error(sums, exact.grad.sum((0, 1))) < 2 * CLOSE[dtype]


@pytest.mark.parametrize("tiles", [Tiles(64, 16, 128, 4), Tiles(32, 16, 16, 4), Tiles(128, 128, 64, 8)], ids=str)
def test_every_layout_gives_the_same(tiles, monkeypatch):
    qkv, grad = drawn(1, 83, 2, 32, DTYPES[0])
    before = run(qkv, grad, 2)
    monkeypatch.setattr(module, "FORWARD", tiles)
    monkeypatch.setattr(module, "BACKWARD", tiles)
    for mine, theirs in zip(run(qkv, grad, 2), before, strict=True):
        assert error(mine, theirs) < CLOSE[DTYPES[0]]


def test_a_view_into_a_wider_tensor_is_read_in_place():
    qkv, grad = drawn(2, 21, 2, 32, DTYPES[0])
    wide = torch.full((2, 30, 3 * 64 + 8), torch.nan, device=HERE, dtype=qkv.dtype)
    wide[:, :21, :192] = qkv
    view = wide[:, :21, :192]
    assert not view.is_contiguous()
    for mine, theirs in zip(run(view, grad, 2), run(qkv, grad, 2), strict=True):
        assert torch.equal(mine, theirs)


def test_very_unequal_scores_stay_finite():
    qkv, grad = drawn(1, 21, 1, 32, DTYPES[0])
    qkv = qkv * 10  # scores of hundreds, whose rounding is that of the weights
    exact = qkv.double().requires_grad_()
    plain(exact, 1).backward(grad.double())
    out, slope, _ = run(qkv, grad, 1)
    assert error(out, plain(exact, 1)) < 30 * CLOSE[qkv.dtype]
    assert error(slope, exact.grad) < 50 * CLOSE[qkv.dtype]


def test_two_backward_passes_are_bit_equal():
    qkv, grad = drawn(2, 65, 2, 32, DTYPES[0])
    assert all(torch.equal(a, b) for a, b in zip(run(qkv, grad, 2), run(qkv, grad, 2), strict=True))


def test_frozen_projections_need_no_gradient_of_the_bias():
    qkv, grad = drawn(1, 5, 1, 32, DTYPES[0])
    qkv.requires_grad_()
    attention(qkv, None, 1).backward(grad)
    assert qkv.grad is not None


def test_a_length_is_cut_into_powers_of_two_with_little_to_spare():
    assert pieces(197, 128) == (128, 64, 16)
    assert pieces(257, 64) == (64, 64, 64, 64, 16)
    assert turns(197, 64, 16) == (192, 16)
    assert turns(197, 64, 64) == (256, 0)
    for tokens in range(1, MOST_TOKENS + 1):
        for tiles in (FORWARD, BACKWARD):
            assert 0 <= sum(pieces(tokens, tiles.piece)) - tokens < 16
            full, last = turns(tokens, tiles.rows, tiles.tail)
            assert full + last >= tokens and full % tiles.rows == 0


def test_the_fake_kernels_have_the_shapes_of_the_real_ones():
    qkv, grad = drawn(2, 21, 2, 32, DTYPES[0])
    out, lse = torch.ops.vitrail.attention_forward(qkv, 2)
    torch.library.opcheck(torch.ops.vitrail.attention_forward, (qkv, 2), test_utils=("test_schema", "test_faketensor"))
    torch.library.opcheck(torch.ops.vitrail.attention_backward, (grad, qkv, out, lse, 2), test_utils=("test_schema", "test_faketensor"))
