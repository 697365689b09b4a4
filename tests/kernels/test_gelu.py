"""GELU and the sum for the bias before it, against float64."""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="the kernels need triton (extra kernels-test)")

from vitrail.kernels import gelu as module
from vitrail.kernels.gelu import gelu

_spec = importlib.util.spec_from_file_location("kernels_conftest", Path(__file__).parent / "conftest.py")
_conftest = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_conftest)
error, HERE = _conftest.error, _conftest.HERE

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value", "ignore:TRITON_DEFAULT_FP_FUSION")
DTYPES = [torch.float32, torch.float16] if HERE.type == "cpu" else [torch.bfloat16, torch.float16]
CLOSE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def run(u, grad, tanh):
    u, bias = u.detach().requires_grad_(), torch.zeros(u.shape[-1], device=u.device, requires_grad=True)
    h = gelu(u, bias, tanh=tanh)
    h.backward(grad)
    return h.detach(), u.grad, bias.grad


def drawn(shape, dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return tuple((3 * torch.randn(shape, generator=generator)).to(HERE, dtype) for _ in range(2))


@pytest.mark.parametrize("tanh", [True, False], ids=["tanh", "erf"])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_forward_and_backward_agree_with_float64(tanh, dtype):
    u, grad = drawn((3, 17, 300), dtype)
    exact = u.double().requires_grad_()
    h = F.gelu(exact, approximate="tanh" if tanh else "none")
    h.backward(grad.double())
    mine = run(u, grad, tanh)
    for value, reference in zip(mine, (h, exact.grad, exact.grad.sum((0, 1))), strict=True):
        assert error(value, reference) < CLOSE[dtype]


@pytest.mark.parametrize("tanh", [True, False], ids=["tanh", "erf"])
def test_far_from_zero_it_is_zero_or_the_identity(tanh):
    u = torch.tensor([[[-3e4, -50.0, 0.0, 50.0, 3e4]]], device=HERE, dtype=DTYPES[0])
    h, slope, _ = run(u, torch.ones_like(u), tanh)
    assert h.tolist() == [[[0, 0, 0, 50, u[0, 0, 4].item()]]]
    assert slope.tolist() == [[[0, 0, 0.5, 1, 1]]]


def test_every_layout_gives_the_same(monkeypatch):
    u, grad = drawn((2, 21, 96), DTYPES[0])
    before = run(u, grad, True)
    monkeypatch.setattr(module, "BACKWARD", module.Tile(rows=4, columns=32, warps=4, programs=3))
    monkeypatch.setattr(module, "FORWARD", module.Tile(rows=8, columns=64, warps=4))
    for mine, theirs in zip(run(u, grad, True), before, strict=True):
        assert error(mine, theirs) < CLOSE[DTYPES[0]]


def test_two_backward_passes_are_bit_equal():
    u, grad = drawn((3, 17, 96), DTYPES[0])
    assert all(torch.equal(a, b) for a, b in zip(run(u, grad, False), run(u, grad, False), strict=True))


def test_the_fake_kernels_have_the_shapes_of_the_real_ones():
    u, grad = drawn((2, 5, 48), DTYPES[0])
    utils = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.vitrail.gelu_forward, (u, True), test_utils=utils)
    torch.library.opcheck(torch.ops.vitrail.gelu_backward, (grad, u, True), test_utils=utils)


def test_the_product_that_ends_in_a_gelu_agrees():
    x, _ = drawn((2, 5, 32), DTYPES[0])
    weight, bias = torch.randn(48, 32).to(x), torch.randn(48).to(x)
    exact = F.gelu(F.linear(x.double(), weight.double(), bias.double()), approximate="tanh")
    assert error(module.linear_gelu(x, weight, bias), exact) < (1e-3 if HERE.type == "cpu" else CLOSE[x.dtype])  # a CPU's is erf
    torch.library.opcheck(module.linear_gelu, (x, weight, bias), test_utils=("test_schema", "test_faketensor"))
