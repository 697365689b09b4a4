"""The residual sum with its LayerNorm, against float64."""

import importlib.util
from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("triton", reason="the kernels need triton (extra kernels-test)")

from vitrail.kernels import norm as module
from vitrail.kernels.norm import residual_norm

_spec = importlib.util.spec_from_file_location("kernels_conftest", Path(__file__).parent / "conftest.py")
_conftest = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_conftest)
error, HERE = _conftest.error, _conftest.HERE

pytestmark = pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value", "ignore:TRITON_DEFAULT_FP_FUSION")
HALF = torch.float16 if HERE.type == "cpu" else torch.bfloat16
CLOSE = {torch.float32: 1e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}


def drawn(shape, *, branch=True, scale=False, keep=False, residual=torch.float32, dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    draw = lambda *size: torch.randn(*size, generator=generator).to(HERE)
    width = shape[-1]
    given = {"z": draw(*shape).to(residual), "branch": draw(*shape).to(dtype) if branch else None, "bias": draw(width) if branch else None}
    given |= {"scale": draw(width) if scale else None, "weight": draw(width), "shift": draw(width)}
    chance = torch.rand(shape[0], generator=generator).to(HERE)
    return given, (chance < 0.6) / 0.6 if keep else None, (draw(*shape).to(residual), draw(*shape).to(dtype))


def fused(given, keep, grads):
    own = {name: None if t is None else t.detach().clone().requires_grad_() for name, t in given.items()}
    dtype = grads[1].dtype
    outs = residual_norm(
        own["z"], own["branch"], own["bias"], own["scale"], keep, own["weight"], own["shift"], 1e-6, dtype
    )  # fmt: skip
    torch.autograd.backward(outs, grads)
    return [out.detach() for out in outs] + [t.grad for t in own.values() if t is not None]


def plain(given, keep, grads):
    own = {name: None if t is None else t.detach().double().requires_grad_() for name, t in given.items()}
    total = own["z"]
    if own["branch"] is not None:  # the branch contains the bias: its gradient is that of adding 0 * bias
        branch = own["branch"] + own["bias"] - own["bias"].detach()
        branch = branch if own["scale"] is None else branch * own["scale"]
        total = total + (branch if keep is None else branch * keep.double()[:, None, None])
    rounded = total + (total.detach().to(given["z"].dtype).double() - total.detach())
    out = F.layer_norm(rounded, rounded.shape[-1:], own["weight"], own["shift"], 1e-6)
    torch.autograd.backward((total, out), [g.double() for g in grads])
    return [rounded.detach(), out.detach()] + [t.grad for t in own.values() if t is not None]


@pytest.mark.parametrize(
    "how",
    [
        {"branch": False},
        {},
        {"scale": True},
        {"keep": True},
        {"scale": True, "keep": True},
        {"dtype": HALF},
        {"dtype": HALF, "residual": HALF},
        {"dtype": HALF, "residual": HALF, "scale": True, "keep": True},
    ],
    ids=str,
)
@pytest.mark.parametrize("shape", [(2, 5, 48), (3, 17, 64)], ids=str)
def test_outputs_and_all_gradients_agree_with_float64(shape, how):
    drawing = drawn(shape, **how)
    close = CLOSE[how.get("dtype", torch.float32)]
    for mine, exact in zip(fused(*drawing), plain(*drawing), strict=True):
        assert error(mine, exact) < close


def test_each_token_belongs_to_one_program_however_many_there_are(monkeypatch):
    drawing = drawn((2, 37, 32), scale=True, keep=True)
    before = fused(*drawing)
    for programs, rows in ((1, 1), (3, 4), (100, 2)):
        monkeypatch.setattr(module, "PROGRAMS", programs)
        monkeypatch.setattr(module, "BACKWARD", module.Rows(rows, 4))
        for mine, theirs in zip(fused(*drawing), before, strict=True):
            assert error(mine, theirs) < 1e-6


def test_a_sample_without_its_branch_keeps_z_to_the_bit():
    given, _, grads = drawn((2, 5, 32))
    total = fused(given, torch.tensor([0.0, 2.0], device=HERE), grads)[0]
    assert torch.equal(total[0], given["z"][0]) and not torch.equal(total[1], given["z"][1])


def test_two_backward_passes_are_bit_equal():
    drawing = drawn((3, 17, 64), scale=True)
    assert all(torch.equal(a, b) for a, b in zip(fused(*drawing), fused(*drawing), strict=True))


def test_the_fake_kernels_have_the_shapes_of_the_real_ones():
    given, keep, (dz, dn) = drawn((2, 5, 32), scale=True, keep=True)
    arguments = (given["z"], given["branch"], given["scale"], keep, given["weight"], given["shift"], 1e-6, torch.float32)
    total, _, mean, rstd = torch.ops.vitrail.norm_forward(*arguments)
    utils = ("test_schema", "test_faketensor")
    torch.library.opcheck(torch.ops.vitrail.norm_forward, arguments, test_utils=utils)
    backward = (dn, dz, total, given["branch"], given["scale"], keep, given["weight"], mean, rstd, torch.float32, True)
    torch.library.opcheck(torch.ops.vitrail.norm_backward, backward, test_utils=utils)


def test_tokens_that_do_not_lie_in_order_get_the_same_gradients():
    given, _, grads = drawn((2, 5, 48), branch=False)
    turned = given["z"].transpose(0, 1).contiguous().transpose(0, 1)
    assert not turned.is_contiguous()
    own = turned.clone(memory_format=torch.preserve_format).requires_grad_()
    outs = residual_norm(own, None, None, None, None, given["weight"], given["shift"], 1e-6, torch.float32)
    torch.autograd.backward(outs, grads)
    assert not own.is_contiguous() and error(own.grad, fused(given, None, grads)[2]) < 1e-6
