"""C12: NaN, infinities and integers in the place of weights are refused, counted and named."""

from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail.errors import CheckpointError, NumericsError
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build

SOURCE = Path(__file__).parents[1] / "golden" / "g02_vit_token_smallres" / "checkpoint_prelinen.npz"


def poisoned(tmp_path):
    arrays = dict(np.load(SOURCE))
    arrays["head/kernel"] = arrays["head/kernel"].copy()
    arrays["head/kernel"][3, :5] = np.nan
    arrays["Transformer/encoder_norm/bias"] = np.full_like(arrays["Transformer/encoder_norm/bias"], np.inf)
    np.savez(tmp_path / "model.npz", **arrays)
    return tmp_path / "model.npz"


def test_nan_and_infinity_are_refused_and_counted(tmp_path):
    with pytest.raises(CheckpointError, match=r"37 values in 2 of 32 parameters are NaN or inf: .*norm\.bias \(32\).*head\.weight \(5\)"):
        vitrail.load_model(poisoned(tmp_path))


def test_they_load_when_the_caller_insists(tmp_path):
    model = vitrail.load_model(poisoned(tmp_path), allow_nonfinite=True)
    assert int((~torch.isfinite(model.head.weight)).sum()) == 5


def test_very_large_but_finite_weights_load(tmp_path):
    arrays = dict(np.load(SOURCE))
    arrays["head/kernel"] = np.full_like(arrays["head/kernel"], 3e38)  # their sum is infinite, they are not
    np.savez(tmp_path / "model.npz", **arrays)
    assert bool((vitrail.load_model(tmp_path / "model.npz").head.weight == 3e38).all())


@pytest.mark.parametrize("dtype", [np.int64, np.uint8, np.bool_, "U3"])
def test_arrays_that_are_no_floating_point_are_refused_by_name(dtype, tmp_path):
    arrays = dict(np.load(SOURCE))
    arrays["head/bias"] = np.zeros(13, dtype)
    np.savez(tmp_path / "model.npz", **arrays)
    with pytest.raises(CheckpointError, match=r"not floating point \(1\): head/bias"):
        vitrail.load_model(tmp_path / "model.npz")


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
def test_other_floating_point_becomes_float32(dtype, tmp_path):
    np.savez(tmp_path / "model.npz", **{name: array.astype(dtype) for name, array in np.load(SOURCE).items()})
    assert {p.dtype for p in vitrail.load_model(tmp_path / "model.npz").parameters()} == {torch.float32}


def test_a_model_that_diverged_is_not_saved_unless_the_caller_insists(tmp_path):
    model = build(ViTConfig(width=64, depth=1, heads=1, mlp_width=64, patch_size=8, image_size=16, classes=2))
    with torch.no_grad():
        model.head.bias[1] = float("nan")
    with pytest.raises(NumericsError, match=r"head\.bias"):
        vitrail.save_model(model, tmp_path / "a.safetensors")
    assert not list(tmp_path.iterdir())
    vitrail.save_model(model, tmp_path / "a.safetensors", allow_nonfinite=True)
    with pytest.raises(CheckpointError, match="1 values in 1 of"):
        vitrail.load_model(tmp_path / "a.safetensors")
