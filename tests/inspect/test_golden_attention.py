"""The attention of public weights, as their own implementations computed it (golden cases of every origin)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.inspect.attention import attention_weights, layers_of
from vitrail.inspect.maps import attention_rollout, rollout_whole
from vitrail.inspect.rollout import fuse, rollout_matrix
from vitrail.weights.load import load_model

GOLDEN = Path(__file__).parents[1] / "golden"
CASES = [path.parent for path in sorted(GOLDEN.glob("*/arrays.npz")) if "expected_attention" in np.load(path).files]


def opened(folder):
    """(model, images that the reference attended to, its weights (layers, B, H, T, T), tolerance)."""
    case, arrays = json.loads((folder / "case.json").read_text()), dict(np.load(folder / "arrays.npz"))
    config, size = case["config"], tuple(case["image_hw"])
    heads = config.get("num_attention_heads") or config.get("num_heads") or config["transformer"]["num_heads"]
    images = torch.from_numpy(arrays["input"])
    if images.shape[1] != 3:
        images = images.permute(0, 3, 1, 2).contiguous()
    expected = torch.from_numpy(arrays["expected_attention"])
    model = load_model(folder / next(iter(case["checkpoints"])), heads=heads, image_size=size)
    return model, images[: expected.shape[1]], expected, case["tolerance"]["rel"]


def test_the_golden_cases_are_there():
    assert len([folder for folder in CASES if folder.name.startswith("g0")]) == 6


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_attention_equals_that_of_its_origin(folder):
    """In float64 to the reference's tolerance, which here is nothing but its own float32 noise; in float32 that comes twice."""
    model, images, expected, tolerance = opened(folder)
    for noise, precision in ((2, torch.float32), (1, torch.float64)):
        model = model.to(precision)
        ours = torch.stack([attention_weights(model, images, layer) for layer in range(len(layers_of(model)))])
        assert ours.shape == expected.shape
        assert (ours - expected).abs().max() <= noise * tolerance * expected.abs().max()


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_rollout_equals_the_product_of_its_origins_attention(folder):
    model, images, expected, _ = opened(folder)
    reference = rollout_matrix([fuse(layer.double()) for layer in expected])
    assert torch.allclose(rollout_whole(model.double(), images).double(), reference, atol=1e-5)
    patches = reference[:, :, model.config.prefix :].unflatten(2, model.config.grid)
    if model.config.pool == "token" and not model.config.distilled:
        assert torch.allclose(attention_rollout(model, images), patches[:, 0], atol=1e-5)
