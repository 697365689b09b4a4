"""The attention of public weights, as their own implementations computed it (golden cases of every origin)."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.inspect.attention import attention_weights, layers_of
from vitrail.inspect.maps import attention_rollout, rollout_whole
from vitrail.inspect.rollout import fuse, rollout_matrix
from vitrail.weights.load import load_model

_spec = importlib.util.spec_from_file_location("golden", Path(__file__).parents[1] / "weights" / "golden.py")
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)

CASES = [path.parent for path in sorted(golden.GOLDEN.glob("*/arrays.npz")) if "expected_attention" in np.load(path).files]


def opened(folder, scratch):
    """(model, images that the reference attended to, its weights (layers, B, H, T, T), tolerance)."""
    if (folder / "weights.npz").exists():  # transformers, timm
        case = golden.Case(folder.name)
        told = case.said.get("load", {})
        told = {**told, "image_size": tuple(told["image_size"])} if "image_size" in told else told
        model = load_model(case.write(scratch, config=case.said.get("config")), **told)
        images, expected, tolerance = case.arrays["input"], case.arrays["expected_attention"], case.tolerance
    else:  # Google
        said, arrays = json.loads((folder / "case.json").read_text()), dict(np.load(folder / "arrays.npz"))
        config = said["config"]
        heads = config.get("num_heads") or config["transformer"]["num_heads"]
        model = load_model(folder / next(iter(said["checkpoints"])), heads=heads, image_size=tuple(said["image_hw"]))
        images = torch.from_numpy(arrays["input"]).permute(0, 3, 1, 2).contiguous()
        expected, tolerance = torch.from_numpy(arrays["expected_attention"]), said["tolerance"]["rel"]
    return model, images[: expected.shape[1]], expected, tolerance


def test_the_golden_cases_are_there():
    assert [folder.name[:3] for folder in CASES] == [*"g01 g02 g03 g04 g05 g06 h01 h02 h03 h04 t01 t02 t03 t04".split()]


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_attention_equals_that_of_its_origin(folder, tmp_path):
    """In float64 to the reference's tolerance, which here is nothing but its own float32 noise; in float32 that comes twice."""
    model, images, expected, tolerance = opened(folder, tmp_path)
    for noise, precision in ((2, torch.float32), (1, torch.float64)):
        model = model.to(precision)
        ours = torch.stack([attention_weights(model, images, layer) for layer in range(len(layers_of(model)))])
        assert ours.shape == expected.shape
        assert (ours - expected).abs().max() <= noise * tolerance * expected.abs().max()


@pytest.mark.parametrize("folder", CASES, ids=lambda folder: folder.name)
def test_rollout_equals_the_product_of_its_origins_attention(folder, tmp_path):
    model, images, expected, _ = opened(folder, tmp_path)
    reference = rollout_matrix([fuse(layer.double()) for layer in expected])
    assert torch.allclose(rollout_whole(model.double(), images).double(), reference, atol=1e-5)
    patches = reference[:, :, model.config.prefix :].unflatten(2, model.config.grid)
    if model.config.pool == "token" and not model.config.distilled:
        assert torch.allclose(attention_rollout(model, images), patches[:, 0], atol=1e-5)
