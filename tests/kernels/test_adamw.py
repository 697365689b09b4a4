"""Clip, AdamW and the average in one pass: the numbers of the plain twins, and nothing at all when a step is passed over.

Triton's interpreter (TRITON_INTERPRET=1) runs the kernel on the CPU; the gpu tests run the compiled one.
"""

import os

import pytest
import torch
from torch import nn

from vitrail.config import EmaSpec, OptimSpec
from vitrail.train import optim
from vitrail.train.ema import Ema
from vitrail.train.optim import AdamW, build_optimizer

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
WHERE = [
    pytest.param("cpu", marks=pytest.mark.skipif(not INTERPRETED, reason="TRITON_INTERPRET=1 runs kernels on the CPU")),
    pytest.param("cuda", marks=[pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available() or INTERPRETED, reason="needs a GPU")]),
]
SPEC = OptimSpec(name="adamw", weight_decay=0.1, clip_norm=1.0, layer_decay=0.7, head_lr=3.0)


def model(device):
    torch.manual_seed(0)
    return nn.ModuleDict({
        "blocks": nn.ModuleList([nn.Linear(80, 70), nn.Linear(70, 3, bias=False)]),
        "norm": nn.LayerNorm(5000),
        "head": nn.Linear(7, 9),
    }).to(device)  # fmt: skip


def ten_steps(device, monkeypatch, *, one_pass, average=True, skip=()):
    with monkeypatch.context() as patch:
        patch.setattr(AdamW, "_one_pass", property(lambda self: one_pass))
        patch.setattr(AdamW, "_fusable", lambda self, group: False)
        module = model(device)
        optimizer = build_optimizer(module.named_parameters(), SPEC)
        ema = Ema(module, EmaSpec(decay=0.99, ramp=True)) if average else None
        if ema is not None:
            optimizer.carry(ema)
            assert bool(optimizer.carried) is one_pass
        generator = torch.Generator().manual_seed(1)
        for step in range(10):
            for p in module.parameters():
                p.grad = torch.randn(p.shape, generator=generator).to(device)
            if step in skip:
                module["head"].weight.grad[0, 0] = float("nan")
            info = optimizer.step(1e-2)
            assert bool(info.applied) is (step not in skip)
            if ema is not None:
                ema.update(module, info.applied, optimizer.carried)
        return {**module.state_dict(), **optimizer.state_dict(), **({f"ema {k}": v for k, v in ema.state_dict().items()} if ema else {})}


@pytest.mark.parametrize("device", WHERE)
@pytest.mark.parametrize("average", [True, False])
def test_one_pass_gives_what_the_plain_twins_give(device, average, monkeypatch):
    plain = ten_steps(device, monkeypatch, one_pass=False, average=average)
    fused = ten_steps(device, monkeypatch, one_pass=True, average=average)
    assert plain.keys() == fused.keys()
    for name, value in plain.items():
        assert torch.allclose(fused[name].double(), value.double(), rtol=3e-5, atol=1e-5), name


@pytest.mark.parametrize("device", WHERE)
def test_a_step_that_is_passed_over_leaves_every_bit(device, monkeypatch):
    with_gap = ten_steps(device, monkeypatch, one_pass=True, skip=(9,))
    plain = ten_steps(device, monkeypatch, one_pass=False, skip=(9,))
    assert float(with_gap["count"]) == 9.0 and float(with_gap["ema updates"]) == 9.0
    assert all(torch.isfinite(value).all() for value in with_gap.values())
    assert all(torch.allclose(with_gap[name].double(), plain[name].double(), rtol=3e-5, atol=1e-5) for name in plain)


@pytest.mark.parametrize("device", WHERE)
def test_the_same_steps_give_the_same_bits(device, monkeypatch):
    first, second = (ten_steps(device, monkeypatch, one_pass=True) for _ in range(2))
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize("device", WHERE)
def test_gradients_that_lie_anywhere_and_weights_that_moved_are_found(device, monkeypatch):
    monkeypatch.setattr(AdamW, "_one_pass", property(lambda self: True))
    module = model(device)
    expected = model(device)
    both = [build_optimizer(m.named_parameters(), SPEC) for m in (module, expected)]
    for step in range(3):
        for p, q in zip(module.parameters(), expected.parameters()):
            q.grad = torch.full_like(q, 0.5 + step)
            buffer = torch.full((p.numel() + 1,), 0.5 + step, device=device)
            p.grad = buffer[1:].view(p.shape)  # four bytes from an aligned address
        if step == 1:
            for p in module.parameters():
                p.data = p.data.clone()
        for optimizer in both:
            optimizer.step(1e-2)
    assert all(torch.equal(p, q) for p, q in zip(module.parameters(), expected.parameters()))


def test_without_triton_or_on_the_cpu_the_plain_path_serves(monkeypatch):
    module = nn.Linear(4, 4)
    optimizer = build_optimizer(module.named_parameters(), OptimSpec())
    assert not optimizer._one_pass
    monkeypatch.setattr(optim, "has_triton", lambda: False)
    ema = Ema(module, EmaSpec(decay=0.9))
    optimizer.carry(ema)
    assert optimizer.carried == frozenset()
