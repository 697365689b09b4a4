"""The kernels at real shapes on a GPU: right by float64, the same bits twice, in one compiled graph, and as the plain path learns."""

import importlib.util

import pytest
import torch
import torch.nn.functional as F

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device"),
    pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="no triton"),
]
SHAPES = {"B/16": (8, 197, 12, 64), "L/14": (4, 257, 16, 64), "Ti/16": (8, 197, 3, 64), "B/32": (16, 50, 12, 64)}


def error(value, exact):
    return ((value.double() - exact.double()).norm() / exact.double().norm()).item()


def half(*shape, seed=0):
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(*shape, device="cuda", dtype=torch.bfloat16, generator=generator)


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES.keys())
def test_attention_is_within_bfloat16_of_float64_and_twice_the_same(shape):
    from vitrail.kernels.attention import attention

    batch, tokens, heads, width = shape
    qkv, grad = half(batch, tokens, 3 * heads * width), half(batch, tokens, heads * width, seed=1)
    found = []
    for _ in range(2):
        own, bias = qkv.clone().requires_grad_(), torch.zeros(3 * heads * width, device="cuda", requires_grad=True)
        out = attention(own, bias, heads)
        out.backward(grad)
        found.append((out.detach(), own.grad, bias.grad))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    exact = qkv.double().requires_grad_()
    q, k, v = exact.unflatten(2, (3, heads, width)).permute(2, 0, 3, 1, 4)
    out = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    out.backward(grad.double())
    for value, reference in zip(found[0], (out, exact.grad, exact.grad.sum((0, 1))), strict=True):
        assert error(value, reference) < 0.01


@pytest.mark.parametrize("width", [192, 768, 1024, 1280])
@pytest.mark.parametrize("residual", [torch.float32, torch.bfloat16], ids=str)
def test_norm_is_within_bfloat16_of_float64_and_twice_the_same(width, residual):
    from vitrail.kernels.norm import residual_norm

    z, branch, dn, dz = (half(8, 197, width, seed=seed) for seed in range(4))
    z, dz = z.to(residual), dz.to(residual)
    scale, weight, shift = (half(width, seed=seed).float() for seed in range(4, 7))
    keep = torch.tensor([0.0, 1.25], device="cuda").repeat(4)
    found = []
    for _ in range(2):
        own = [t.clone().requires_grad_() for t in (z, branch, torch.zeros(width, device="cuda"), scale, weight, shift)]
        outs = residual_norm(own[0], own[1], own[2], own[3], keep, own[4], own[5], 1e-6, torch.bfloat16)
        torch.autograd.backward(outs, (dz, dn))
        found.append([out.detach() for out in outs] + [t.grad for t in own])
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    own = [t.double().requires_grad_() for t in (z, branch, torch.zeros(width, device="cuda"), scale, weight, shift)]
    total = own[0] + (own[1] + own[2]) * own[3] * keep.double()[:, None, None]
    total = total + (total.detach().to(residual).double() - total.detach())
    out = F.layer_norm(total, (width,), own[4], own[5], 1e-6)
    torch.autograd.backward((total, out), (dz.double(), dn.double()))
    for value, reference in zip(found[0], [total, out] + [t.grad for t in own], strict=True):
        assert error(value, reference) < 0.01


@pytest.mark.parametrize("tanh", [True, False], ids=["tanh", "erf"])
def test_gelu_is_within_bfloat16_of_float64_and_twice_the_same(tanh):
    from vitrail.kernels.gelu import gelu

    u, dh = half(8, 197, 3072), half(8, 197, 3072, seed=1)
    found = []
    for _ in range(2):
        own, bias = u.clone().requires_grad_(), torch.zeros(3072, device="cuda", requires_grad=True)
        h = gelu(own, bias, tanh=tanh)
        h.backward(dh)
        found.append((h.detach(), own.grad, bias.grad))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    exact = u.double().requires_grad_()
    h = F.gelu(exact, approximate="tanh" if tanh else "none")
    h.backward(dh.double())
    for value, reference in zip(found[0], (h, exact.grad, exact.grad.sum((0, 1))), strict=True):
        assert error(value, reference) < 0.01


def gradients(model, x, labels, *, compiled=False):
    call = torch.compile(model, fullgraph=True) if compiled else model
    model.zero_grad()
    with torch.autocast("cuda", torch.bfloat16):
        loss = F.cross_entropy(call(x).float(), labels)
    loss.backward()
    return loss.detach(), {name: p.grad.clone() for name, p in model.named_parameters()}


@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
@pytest.mark.parametrize("compiled", [False, True], ids=["eager", "compiled"])
def test_a_whole_model_is_no_further_from_float32_than_the_plain_path_and_twice_the_same(compiled, recompute):
    from vitrail.model.fused import fuse
    from vitrail.model.variants import create_model

    model = create_model("B/16", classes=100, depth=3).cuda().train()
    torch.nn.init.normal_(model.head.weight, std=0.02)
    model.recompute = recompute
    x, labels = torch.randn(16, 3, 224, 224, device="cuda"), torch.arange(16, device="cuda")
    exact = F.cross_entropy(model(x), labels)
    exact.backward()
    truth = torch.cat([p.grad.flatten() for p in model.parameters()])
    flat = lambda found: torch.cat([g.flatten() for g in found[1].values()])
    plain = gradients(model, x, labels, compiled=compiled)
    torch._dynamo.reset()
    assert fuse(model, x.device, "fused").startswith("fused attention, norm, gelu")
    first, second = (gradients(model, x, labels, compiled=compiled) for _ in range(2))
    assert torch.equal(flat(first), flat(second))
    assert error(flat(first), truth) < 1.25 * error(flat(plain), truth) + 1e-3
    assert abs(first[0] - exact) < 0.01


def test_fifty_steps_learn_as_the_plain_path_does():
    from vitrail.model.fused import fuse
    from vitrail.model.variants import create_model

    x = torch.randn(64, 3, 64, 64, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    labels = torch.arange(64, device="cuda") % 10
    curves = []
    for choice, residual in (("plain", "float32"), ("fused", "float32"), ("fused", "bfloat16")):
        model = create_model("Ti/16", classes=10, image_size=64, depth=4).cuda().train()
        fuse(model, x.device, choice, residual)
        optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
        curve = []
        for _ in range(50):
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(model(x).float(), labels)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            curve.append(loss.item())
        curves.append(torch.tensor(curve))
    assert curves[0][-1] < 0.5 * curves[0][0]
    assert all((curve - curves[0]).abs().max() < 0.15 for curve in curves[1:])


def test_a_step_can_be_captured_in_a_cuda_graph():
    from vitrail.kernels.attention import attention

    qkv = half(4, 197, 3 * 768)
    attention(qkv, None, 12)
    graph = torch.cuda.CUDAGraph()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = attention(qkv, None, 12)
    qkv.copy_(half(4, 197, 3 * 768, seed=3))
    graph.replay()
    assert torch.equal(out, attention(qkv, None, 12))
