"""Rollout and attention distance against numbers made by the original implementations (golden a01)."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.errors import UsageError
from vitrail.inspect.distance import DistanceMeter, attention_distance, pixel_distances, uniform_distance
from vitrail.inspect.entropy import EntropyMeter
from vitrail.inspect.rollout import Fusion, fuse, rollout_matrix, rollout_vector

GOLDEN = Path(__file__).parents[1] / "golden" / "a01_rollout_distance"
CASE = json.loads((GOLDEN / "case.json").read_text())
ARRAYS = dict(np.load(GOLDEN / "arrays.npz"))
GRID, PATCH = tuple(CASE["config"]["grid"]), tuple(CASE["config"]["patch"])
TOLERANCE = CASE["tolerance"]["rel"]


def attention() -> torch.Tensor:
    return torch.from_numpy(ARRAYS["input"]).double()  # (layers, images, heads, tokens, tokens)


def close(ours: torch.Tensor, name: str) -> None:
    expected = ARRAYS[name]
    assert np.abs(ours.numpy() - expected).max() <= TOLERANCE * np.abs(expected).max(), name


def both_forms(fusion: Fusion) -> torch.Tensor:
    """R_L from the two-matrix form, after checking that vectors give each of its rows."""
    layers = [fuse(layer, fusion) for layer in attention()]
    matrix = rollout_matrix(layers)
    for token in (0, 7, 25):
        start = torch.zeros(2, 26, dtype=torch.float64)
        start[:, token] = 1
        assert torch.allclose(rollout_vector(start, reversed(layers)), matrix[:, token], rtol=1e-12, atol=1e-14)
    return matrix


def test_rollout_equals_attention_flow_at_every_layer() -> None:
    layers = [fuse(layer) for layer in attention()]
    close(torch.stack([rollout_matrix(layers[: n + 1]) for n in range(4)], 1), "rollout_all_layers")


def test_the_class_row_without_the_class_token_is_the_map() -> None:
    close(both_forms(Fusion())[:, 0, 1:].reshape(2, *GRID), "rollout_cls_to_patches")


@pytest.mark.parametrize(
    ("fusion", "name"),
    [
        (Fusion(residual=False), "rollout_no_residual"),
        (Fusion(heads="max"), "rollout_max_fusion_rownorm"),
        (Fusion(heads="min"), "rollout_min_fusion_rownorm"),
    ],
)
def test_variants_equal_the_reference(fusion: Fusion, name: str) -> None:
    close(both_forms(fusion), name)


@pytest.mark.parametrize("heads", ["mean", "max", "min"])
@pytest.mark.parametrize("discard", [0.0, 0.5, 0.9])
def test_vit_explain_is_reproduced_with_its_column_division(heads: str, discard: float) -> None:
    row = both_forms(Fusion(heads=heads, discard=discard, normalise="columns"))[:, 0, 1:]
    close((row / row.amax(1, keepdim=True)).reshape(2, *GRID), f"vit_explain_{heads}_discard{discard}")


@pytest.mark.parametrize("renormalise", [False, True])
def test_distance_equals_the_reference_in_both_conventions(renormalise: bool) -> None:
    name = "distance_cls_dropped_renormalised" if renormalise else "distance_cls_dropped_not_renormalised"
    close(attention_distance(attention(), GRID, PATCH, renormalise=renormalise), name)


@pytest.mark.parametrize("chunk", [1, 5, 26])
def test_rows_added_in_chunks_measure_the_same(chunk: int) -> None:
    layer = attention()[1]
    far, bits = DistanceMeter(GRID, PATCH, prefix_tokens=1), EntropyMeter()
    for start in range(0, 26, chunk):
        rows = slice(start, min(start + chunk, 26))
        far.add(layer[:, :, rows], rows)
        bits.add(layer[:, :, rows], rows)
    assert torch.allclose(far.result().mean(0), attention_distance(attention(), GRID, PATCH)[1], rtol=1e-12)
    direct = -(layer * layer.clamp_min(1e-300).log2()).sum(-1).mean(-1)
    assert torch.allclose(bits.result(), direct, rtol=1e-9)


def test_uniform_attention_has_the_published_plateau() -> None:
    assert uniform_distance((14, 14), (16, 16)) == pytest.approx(116.492, abs=5e-4)
    assert uniform_distance((14, 14), (16, 16), prefix_tokens=1) == pytest.approx(115.90, abs=5e-3)
    assert uniform_distance((7, 7), (32, 32)) == pytest.approx(115.503, abs=5e-4)
    assert pixel_distances((14, 14), (16, 16)).max().item() == pytest.approx(294.16, abs=5e-3)


def test_a_head_that_looks_only_at_itself_has_distance_zero_and_no_entropy() -> None:
    identity = torch.eye(13)[None, None, None]
    assert attention_distance(identity, (3, 4), (8, 8))[0, 0] == 0
    meter = EntropyMeter()
    meter.add(identity[0], slice(0, 13))
    assert meter.result().item() == 0


def test_distance_knows_a_grid_that_is_not_square() -> None:
    far = pixel_distances((2, 3), (10, 20))
    assert far[0, 2] == 40 and far[0, 3] == 10 and far[0, 5] == pytest.approx((40**2 + 10**2) ** 0.5)


def test_a_fusion_that_does_not_exist_is_refused_with_its_nearest_name() -> None:
    with pytest.raises(UsageError, match="did you mean 'mean'"):
        Fusion(heads="men")
    with pytest.raises(UsageError, match="discard"):
        Fusion(discard=1.0)
