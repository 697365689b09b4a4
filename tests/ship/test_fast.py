"""`--fast` takes the quickest runtime that keeps the bound, and the exact one where none does."""

import numpy as np
import pytest
import torch

from vitrail.model.config import ViTConfig
from vitrail.model.variants import build
from vitrail.ship import fast
from vitrail.ship.predictor import Predictor

CONFIG = ViTConfig(width=32, depth=2, heads=2, mlp_width=64, patch_size=8, image_size=32, classes=7)
NAMES = {"torch fp32", "torch bf16", "openvino bf16", "openvino f32", "onnxruntime"}


def model_of(config=CONFIG):
    model = build(config, seed=0).eval()
    with torch.no_grad():
        model.head.weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(0))
    return model


@pytest.fixture(scope="module")
def predictor():
    return Predictor(model_of(), device="cpu")


@pytest.fixture(scope="module")
def choice(predictor):
    return fast.choose(predictor, seconds=0.05)


def test_every_runtime_is_timed_and_held_to_the_bound(choice):
    assert {candidate.name for candidate in choice.candidates} == NAMES
    for candidate in choice.candidates:
        assert not candidate.error and candidate.images_per_s > 0
        assert candidate.passed == (candidate.total_variation <= fast.BOUND and candidate.agreement >= fast.AGREE)
    by_name = {candidate.name: candidate for candidate in choice.candidates}
    assert by_name["torch fp32"].total_variation == 0
    for name in ("openvino f32", "onnxruntime"):
        assert by_name[name].passed and by_name[name].total_variation < 1e-5, "float32 runtimes differ by rounding"
    best = max((c for c in choice.candidates if c.passed), key=lambda c: c.images_per_s)
    assert choice.name == best.name and f"{best.name}" in str(choice) and choice.to_dict()["chosen"] == best.name


def test_a_runtime_that_is_out_of_bounds_is_passed_over_however_fast(predictor, monkeypatch):
    wrong = fast.Runtime("wrong", lambda images: np.random.default_rng(0).normal(size=(len(images), 7)).astype(np.float32))
    broken = fast.Runtime("nan", lambda images: np.full((len(images), 7), np.nan, np.float32))
    monkeypatch.setattr(fast, "candidates", lambda _p: iter([("wrong", lambda: wrong), ("nan", lambda: broken)]))
    choice = fast.choose(predictor, seconds=0.02)
    assert choice.runtime is None and choice.name == "torch fp32"
    assert [candidate.passed for candidate in choice.candidates] == [True, False, False]
    assert "out of bounds" in str(choice)


def test_what_is_not_installed_is_passed_over_with_its_sentence(predictor, monkeypatch):
    from vitrail.errors import missing_extra

    def absent():
        raise missing_extra("openvino", "export", "Running on OpenVINO")

    monkeypatch.setattr(fast, "candidates", lambda _p: iter([("openvino bf16", absent)]))
    choice = fast.choose(predictor, seconds=0.02)
    assert choice.runtime is None and "pip install" not in choice.candidates[0].error
    assert "needs the package 'openvino'" in choice.candidates[1].error


def test_a_fast_predictor_answers_within_the_bound(predictor, monkeypatch):
    quick = Predictor(model_of(), device="cpu")
    assert fast.make_fast(quick, seconds=0.02, names="onnxruntime").candidates[1].passed
    quick.runtime = quick.runtime or fast.bf16_runtime(quick)
    batch = np.random.default_rng(0).integers(0, 255, (3, 32, 32, 3), np.uint8)
    moved, _ = fast.distance(predictor.forward(batch), quick.forward(batch))
    assert moved <= fast.BOUND
    assert quick.describe()["runtime"] == quick.runtime.name


def test_distance_counts_clear_answers_that_change_and_refuses_what_is_no_number():
    exact = np.array([[5.0, 0, 0], [0.0, 0.001, 0], [0, 5.0, 0]], np.float32)
    moved, agree = fast.distance(exact, exact[:, ::-1].copy())
    assert agree == 0.5, "the middle one was no clear answer, the first changed, the last stayed"
    assert 0.3 < moved < 0.7
    assert fast.distance(exact, np.full_like(exact, np.inf)) == (float("inf"), 0.0)
