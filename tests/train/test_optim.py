"""Optimizers against trajectories of the original implementations, and against things of their own."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from vitrail.config import EmaSpec, OptimSpec, ScheduleSpec
from vitrail.errors import CheckpointError, UsageError
from vitrail.model.variants import create_model
from vitrail.train.ema import Ema
from vitrail.train.optim import Lamb, build_optimizer, decays, depth_of, global_norm, groups_of
from vitrail.train.schedule import schedule

HERE = Path(__file__).parents[1] / "golden" / "o01"
CASE = json.loads((HERE / "case.json").read_text())
ARRAYS = np.load(HERE / "arrays.npz")
NAMES = [key.removeprefix("init__") for key in ARRAYS if key.startswith("init__")]


def our_name(theirs):
    return theirs.replace(".kernel", ".weight")


def parameters():
    return {our_name(name): nn.Parameter(torch.from_numpy(ARRAYS[f"init__{name}"].copy())) for name in NAMES}


class Table(nn.Module):
    """Named parameters as a model, for the average."""

    def __init__(self, table):
        super().__init__()
        self.table = table

    def named_parameters(self, *args, **kwargs):
        return iter(self.table.items())


def spec_base(config):
    return config.get("lr", config["schedule"].get("base"))


def specs(config):
    """The case's optimizer and schedule in a recipe's words."""
    theirs, base = config["schedule"], spec_base(config)
    adam = config.get("optax_name") == "scale_by_adam"
    bf16 = config.get("accumulator_dtype") == "bfloat16" or config.get("optax", {}).get("mu_dtype") == "bfloat16"
    optim = OptimSpec(
        name="adamw" if adam else "sgd",
        weight_decay=(config.get("wd") or 0.0) / base,
        clip_norm=config.get("clip"),
        momentum=0.9,
        momentum_dtype="bfloat16" if bf16 else "float32",
    )
    decay = theirs["decay_type"]
    spec = ScheduleSpec(
        decay=decay,
        cooldown_steps=theirs.get("cooldown_steps", 0),
        end_lr=theirs["linear_end"] * base if decay == "linear" else None,  # theirs is a part of the base
        timescale_steps=theirs.get("timescale", 10_000),
        stair_steps=tuple(theirs.get("steps", ())),
        stair_factors=tuple(theirs.get("mults", ())),
    )
    return optim, schedule(spec, base=base, steps=30, warmup_steps=theirs["warmup_steps"])


@pytest.mark.parametrize("name", CASE["config"])
def test_thirty_steps_end_where_the_original_ends(name):
    config = CASE["config"][name]
    spec, rate = specs(config)
    table = parameters()
    optimizer = build_optimizer(table.items(), spec)
    averages = {decay: Ema(Table(table), EmaSpec(decay=decay)) for decay in config.get("ema", ())}
    tolerance = CASE["tolerance"]["bf16_momentum_rel" if spec.momentum_dtype == "bfloat16" else "rel"]
    for step in range(30):
        assert rate(step) == pytest.approx(config["lr_of_step"][step], rel=1e-6, abs=1e-6 * spec_base(config))
        for theirs in NAMES:
            table[our_name(theirs)].grad = torch.from_numpy(ARRAYS[f"grads__{theirs}"][step].copy())
        info = optimizer.step(rate(step))
        assert float(info.grad_norm) == pytest.approx(config["global_grad_norms"][step], rel=1e-6)
        for average in averages.values():
            average.update(Table(table))
        if step in config["kept_steps"]:
            place = config["kept_steps"].index(step)
            for theirs in NAMES:
                wanted = ARRAYS[f"{name}__{theirs}"][place]
                assert np.abs(table[our_name(theirs)].detach().numpy() - wanted).max() <= tolerance * np.abs(wanted).max() + 1e-12
            for decay, average in averages.items():
                for theirs in ("head.kernel", "cls"):
                    wanted = ARRAYS[f"{name}__ema{decay}__{theirs}"][place]
                    ours = average.average()[our_name(theirs)].numpy()
                    assert np.abs(ours - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_float32_adam_agrees_with_torch():
    ours, theirs = parameters(), parameters()
    spec = OptimSpec(weight_decay=0.1, decay="all")
    optimizer = build_optimizer(ours.items(), spec)
    reference = torch.optim.AdamW(theirs.values(), lr=1e-2, weight_decay=0.1)
    for step in range(10):
        for name in ours:
            grad = torch.sin(ours[name].detach() * (step + 1))
            ours[name].grad, theirs[name].grad = grad, torch.sin(theirs[name].detach() * (step + 1))
        optimizer.step(1e-2)
        reference.step()
    for name in ours:
        torch.testing.assert_close(ours[name], theirs[name], rtol=2e-6, atol=2e-6)


@pytest.mark.parametrize("kind", ["adamw", "sgd", "adafactor", "lamb"])
@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
def test_one_bad_gradient_changes_no_bit(kind, poison):
    table = parameters()
    optimizer = build_optimizer(table.items(), OptimSpec(name=kind, weight_decay=0.1, clip_norm=1.0))
    for p in table.values():
        p.grad = torch.ones_like(p)
    assert optimizer.step(1e-2).applied
    before = {name: t.clone() for name, t in optimizer.state_dict().items()} | {name: p.detach().clone() for name, p in table.items()}
    table["cls"].grad[0, 0, 1] = poison
    assert not optimizer.step(1e-2).applied
    after = {**optimizer.state_dict(), **{name: p.detach() for name, p in table.items()}}
    assert all(torch.equal(before[name], after[name]) for name in before)


@pytest.mark.parametrize("kind", ["adamw", "sgd", "adafactor", "lamb"])
def test_a_loss_scale_changes_nothing_but_the_range(kind):
    plain, scaled = parameters(), parameters()
    spec = OptimSpec(name=kind, weight_decay=0.1, clip_norm=0.5)
    for table, scale in ((plain, 1.0), (scaled, 1024.0)):
        optimizer = build_optimizer(table.items(), spec)
        for p in table.values():
            p.grad = torch.cos(p.detach()) * scale
        optimizer.step(1e-2, loss_scale=scale)
    assert all(torch.allclose(plain[name], scaled[name], rtol=1e-6, atol=1e-8) for name in plain)


def test_decay_reaches_kernels_and_nothing_else():
    model = create_model("mu/16", classes=5, image_size=32, registers=2, layer_scale=1e-4, pool="map")
    found = {name for name, p in model.named_parameters() if decays(name, p)}
    assert {"patch.weight", "head.weight", "blocks.0.attention.qkv.weight", "blocks.0.mlp.fc1.weight"} <= found
    assert not any(
        "norm" in name or "position" in name or name.endswith(("bias", "probe", "registers")) or "scale" in name for name in found
    )


def test_layer_decay_lowers_the_rate_by_depth():
    model = create_model("mu/16", classes=5, image_size=32, depth=3)
    groups = groups_of(model.named_parameters(), OptimSpec(layer_decay=0.5, head_lr=10.0))
    rate = {name: group.rate for group in groups for name in group.names}
    assert rate["head.weight"] == 10.0 and rate["norm.weight"] == 1.0
    assert rate["blocks.2.norm1.weight"] == 0.5 and rate["blocks.0.norm1.weight"] == 0.125
    assert rate["patch.weight"] == rate["position.table"] == rate["cls"] == 0.0625
    assert depth_of("blocks.2.norm1.weight", 3) == 3


def test_adafactor_keeps_rows_and_columns_instead_of_the_whole():
    weight = nn.Parameter(torch.randn(64, 48))
    optimizer = build_optimizer({"a.weight": weight}.items(), OptimSpec(name="adafactor", momentum_dtype="bfloat16"))
    shapes = {name: tuple(t.shape) for name, t in optimizer.state_dict().items()}
    assert shapes == {"a.weight/m": (64, 48), "a.weight/v_rows": (48,), "a.weight/v_columns": (64,), "count": ()}
    weight.grad = torch.outer(torch.arange(1.0, 65), torch.arange(1.0, 49))  # of rank one, so factoring loses nothing
    before = weight.detach().clone()
    optimizer.step(1e-2)
    step = (before - weight.detach()) / 1e-2
    torch.testing.assert_close(step, torch.full_like(step, 0.1), rtol=2e-2, atol=0)  # (1 - beta1) g / sqrt(g^2), in bfloat16


def test_lamb_steps_in_proportion_to_the_weights():
    small, large = nn.Parameter(torch.full((8, 8), 0.01)), nn.Parameter(torch.full((8, 8), 10.0))
    optimizer = build_optimizer({"a.weight": small, "b.weight": large}.items(), OptimSpec(name="lamb", weight_decay=0.01))
    assert isinstance(optimizer, Lamb)
    for p in (small, large):
        p.grad = torch.ones_like(p)
    optimizer.step(0.1)
    assert 1 - float(small.detach().mean()) / 0.01 == pytest.approx(1 - float(large.detach().mean()) / 10.0, rel=1e-3)


def test_state_of_another_model_is_refused_before_anything_changes():
    optimizer = build_optimizer(parameters().items(), OptimSpec())
    saved = {name: t + 1 for name, t in optimizer.state_dict().items()}
    saved.pop("cls/m")
    with pytest.raises(CheckpointError, match="1 tensors missing"):
        optimizer.load_state_dict(saved)
    assert float(optimizer.count) == 0


def test_a_weight_without_gradient_is_named():
    optimizer = build_optimizer(parameters().items(), OptimSpec())
    with pytest.raises(UsageError, match="got no gradient"):
        optimizer.step(0.1)


def test_the_norm_of_doubles_stays_double():
    grads = [torch.full((3,), 1.0 + 1e-12, dtype=torch.float64)]
    assert global_norm(grads).dtype == torch.float64
