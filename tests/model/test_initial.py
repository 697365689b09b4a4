"""Initial values: the distribution of every kind of parameter, and that seed and name alone decide them."""

import math

import pytest
import torch

from vitrail.model.config import AxialConfig, ResNetConfig, ResNetStem, ViTConfig
from vitrail.model.variants import build, create_model

EVERYTHING = ViTConfig(
    width=96, depth=2, heads=4, mlp_width=160, patch_size=8, image_size=32, classes=11, registers=3, layer_scale=1e-4,
    qk_norm=True, norm_pre=True, fc_norm=True, pool="map", class_token=True, representation=70, head_bias_init=-10.0,
)  # fmt: skip


@pytest.fixture(scope="module")
def values():
    parts = {
        "": EVERYTHING,
        "gated.": EVERYTHING.replace(mlp="swiglu", pool="token", distilled=True, representation=None),
        "2d.": EVERYTHING.replace(position="learned2d", position_at="every"),
        "relative.": EVERYTHING.replace(position="relative"),
        "hybrid.": ViTConfig(width=64, depth=1, heads=2, mlp_width=96, patch_size=1, image_size=64, stem=ResNetStem(layers=(1, 2))),
        "axial.": AxialConfig(width=96, depth=1, heads=4, mlp_width=160, patch_size=8, image_size=32),
        "v1.": ResNetConfig(layers=(1, 1), version="v1", head_bias_init=-6.9),
        "v2.": ResNetConfig(layers=(1, 1)),
    }
    return {prefix + name: value.detach() for prefix, config in parts.items() for name, value in build(config, seed=5).named_parameters()}


def uniform(value, bound):
    """Inside the bound, reaching for it, and with the deviation of a uniform."""
    assert value.abs().max() <= bound
    assert value.abs().max() > bound * (1 - 20 / value.numel())
    assert abs(value.std().item() * math.sqrt(3) / bound - 1) < 4 / math.sqrt(value.numel())
    assert abs(value.mean().item()) < 5 * bound / math.sqrt(3 * value.numel())


def normal(value, std, cut=None):
    assert abs(value.std().item() / std - 1) < 4 / math.sqrt(2 * value.numel())
    assert abs(value.mean().item()) < 5 * std / math.sqrt(value.numel())
    if cut is not None:
        assert value.abs().max() <= cut
        assert value.abs().max() > 0.9 * cut


def lecun(value):
    """Normal cut at two deviations; the deviation after the cut is that of variance 1 / fan_in."""
    std = value[0].numel() ** -0.5
    normal(value, std, cut=2 * std / 0.87962566)


def test_every_parameter_has_the_distribution_of_the_papers_code(values):
    seen = set()
    for name, value in values.items():
        *_, owner, kind = ("", *name.split("."))
        seen.add((owner if not owner.isdigit() else "", kind))
        if owner in ("head", "head_dist"):
            expected = {"weight": 0.0, "bias": {"v1": -6.9, "v2": 0.0, "hybrid": 0.0, "axial": 0.0}.get(name.split(".")[0], -10.0)}
            assert (value == expected[kind]).all(), name
        elif kind in ("cls", "dist"):
            assert not value.any(), name
        elif kind == "registers":
            normal(value, 1e-6)
        elif kind in ("scale1", "scale2"):
            assert (value == 1e-4).all(), name
        elif kind in ("table", "rows", "columns", "first"):
            normal(value, 0.02)
        elif kind == "probe":
            uniform(value, math.sqrt(6 / (1 + 96)))
        elif "norm" in owner:
            zero = kind == "bias" or (owner == "norm3" and name.startswith(("hybrid", "v1")))
            assert (value == (0.0 if zero else 1.0)).all(), name
        elif owner in ("fc1", "fc2") and kind == "bias":
            normal(value, 1e-6)
        elif kind == "bias":
            assert not value.any(), name
        elif value.ndim == 4 or owner == "pre_logits":
            lecun(value)
        else:
            assert owner in ("qkv", "q", "kv", "out", "fc1", "fc2"), name
            parts = {"qkv": 3, "kv": 2, "fc1": 2 if name.startswith("gated") else 1}.get(owner, 1)
            for matrix in value.chunk(parts):
                uniform(matrix, math.sqrt(6 / (matrix.shape[0] + matrix.shape[1])))
    for owner, kind in (("pre_logits", "weight"), ("map", "probe"), ("", "registers"), ("position", "columns"), ("relative", "table")):
        assert (owner, kind) in seen
    assert ("projection_norm", "weight") in seen and ("root", "weight") not in seen


def test_the_bounds_of_b_16_in_numbers():
    """+-sqrt(3 / D) for q, k, v and out; sqrt(6 / (D + M)) for the MLP; 1 / sqrt(P * P * C) for the patches."""
    model = create_model("B/16", depth=1)
    block = model.blocks[0]
    uniform(block.attention.qkv.weight, math.sqrt(3 / 768))
    uniform(block.attention.out.weight, math.sqrt(3 / 768))
    uniform(block.mlp.fc1.weight, math.sqrt(6 / 3840))
    normal(model.patch.weight, 768**-0.5, cut=2 / 0.87962566 / math.sqrt(768))


def test_a_seed_decides_everything_and_another_seed_changes_every_draw():
    first, again, other = (dict(build(EVERYTHING, seed=seed).named_parameters()) for seed in (3, 3, 4))
    assert all(torch.equal(value, again[name]) for name, value in first.items())
    drawn = {name for name, value in first.items() if value.unique().numel() > 2}
    assert len(drawn) > 20 and not any(torch.equal(first[name], other[name]) for name in drawn)


def test_a_parameter_does_not_depend_on_what_else_there_is():
    small, large = build(EVERYTHING), build(EVERYTHING.replace(classes=40, depth=3, registers=0, layer_scale=None))
    large = dict(large.named_parameters())
    common = [name for name, value in small.named_parameters() if name in large and large[name].shape == value.shape]
    assert "blocks.1.mlp.fc2.weight" in common and "position.table" in common
    assert all(torch.equal(small.get_parameter(name), large[name]) for name in common)


def test_neither_torchs_generator_nor_the_number_of_threads_matters():
    torch.manual_seed(0)
    state = torch.get_rng_state()
    first = build(EVERYTHING)
    assert torch.equal(torch.get_rng_state(), state)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(3)
        second = build(EVERYTHING)
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters()))


def test_another_default_device_does_not_disturb_building():
    with torch.device("meta"):
        model = build(EVERYTHING)
    assert {parameter.device.type for parameter in model.parameters()} == {"cpu"}
