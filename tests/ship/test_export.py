"""Exported files answer as the model does, at other sizes and batches than they were traced with."""

import json

import numpy as np
import onnx
import pytest
import torch

from vitrail.errors import UsageError
from vitrail.model.config import ResNetConfig, ResNetStem, ViTConfig
from vitrail.model.variants import build
from vitrail.ship.export import export
from vitrail.ship.portable import AnySize, freeze, nearest_sizes, taps
from vitrail.ship.runtimes import OnnxRuntime, OpenVino, Program

TINY = {"width": 32, "depth": 1, "heads": 2, "mlp_width": 64, "image_size": (32, 32), "classes": 7}
MODELS = {
    "vit": ViTConfig(**TINY, patch_size=(8, 8)),
    "hybrid": ViTConfig(**{**TINY, "image_size": (64, 64)}, patch_size=(1, 1), stem=ResNetStem((1, 1), width=32)),
    "bit": ResNetConfig(layers=(1, 1), width_factor=0.5, image_size=(32, 32), classes=7),
}


def model_of(config, seed=0):
    model = build(config, seed=seed).eval()
    with torch.no_grad():
        model.head.weight.normal_(generator=torch.Generator().manual_seed(seed))
    return model


@pytest.mark.parametrize("kind", MODELS)
def test_an_onnx_file_agrees_at_five_sizes_and_three_batches(kind, tmp_path):
    if kind == "bit" and tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13):
        with pytest.raises(UsageError, match="free sizes"):
            export(model_of(MODELS[kind]), tmp_path / "m.onnx")
        pytest.skip("this torch cannot trace a ResNet with free sizes, and that was said")
    result = export(model_of(MODELS[kind]), tmp_path / "m.onnx")
    assert len(result.sizes) == 5 and len(result.batches) == 3 and result.images >= 64
    assert len(set(result.sizes)) == 5 and any(h != w for h, w in result.sizes)
    assert result.worst <= 2e-5
    runner = OnnxRuntime(tmp_path / "m.onnx")
    shape = [side if isinstance(side, int) else str(side) for side in runner.session.get_inputs()[0].shape]
    assert shape == ["batch", 3, "height", "width"]
    assert json.loads(runner.metadata["vitrail.classes"]) == [str(k) for k in range(7)]
    assert json.loads(runner.metadata["vitrail.preprocess"])["image_size"] == list(MODELS[kind].image_size)
    images = np.random.default_rng(0).normal(size=(2, 3, *result.sizes[3])).astype(np.float32)
    onnx.checker.check_model(str(tmp_path / "m.onnx"), full_check=True)
    assert np.abs(OpenVino(tmp_path / "m.onnx")(images) - runner(images)).max() < 1e-3 * np.abs(runner(images)).max()


@pytest.mark.parametrize("kind", ["vit", pytest.param("bit", marks=pytest.mark.scorecard)])
def test_a_torch_program_agrees_and_carries_its_metadata(kind, tmp_path):
    result = export(model_of(MODELS[kind]), tmp_path / "m.pt2")
    assert result.worst <= 2e-5 and result.dynamic_size
    assert len(json.loads(Program(tmp_path / "m.pt2").metadata["vitrail.classes"])) == 7


def test_preprocessing_travels_inside_and_takes_images_of_any_size(tmp_path):
    result = export(model_of(MODELS["vit"]), tmp_path / "m.onnx", preprocess=True)
    assert result.worst <= 2e-5 and len(result.sizes) == 5
    given = OnnxRuntime(tmp_path / "m.onnx").session.get_inputs()[0]
    assert (given.type, given.shape) == ("tensor(uint8)", ["batch", "height", "width", 3])


def test_a_model_that_cannot_change_size_says_why_and_is_exported_at_its_own(tmp_path):
    config = ViTConfig(**TINY, patch_size=(8, 8), position="relative")
    result = export(model_of(config), tmp_path / "m.pt2")
    assert not result.dynamic_size and result.images >= 64
    assert "relative positions" in result.notes[0]


@pytest.mark.parametrize("resample", ["bilinear", "bilinear_unaligned", "bicubic", "bicubic_antialias", "bicubic_aligned"])
@pytest.mark.parametrize("position", ["learned", "learned2d", "sincos2d"])
def test_positions_are_resampled_in_the_graph_as_the_model_does_it(position, resample):
    config = ViTConfig(**TINY, patch_size=(8, 8), position=position, position_resample=resample, position_at="every", registers=2)
    model = model_of(config)
    graph = AnySize(freeze(model_of(config)))
    with torch.no_grad():
        for size in [(32, 32), (8, 8), (16, 48), (72, 24), (128, 128)]:
            images = torch.randn(2, 3, *size, generator=torch.Generator().manual_seed(1))
            expected = model_of(config).resize(size)(images)
            assert (graph(images) - expected).abs().max() <= 2e-5 * expected.abs().max()
    assert torch.equal(graph.model.head.weight, model.head.weight)


@pytest.mark.parametrize(("old", "new"), [(7, 3), (3, 7), (5, 5), (1, 4), (64, 9), (2, 5)])
@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
def test_taps_are_torch_s_resize_as_a_matrix(old, new, filter, antialias):
    line = torch.randn(1, 1, old, 4, generator=torch.Generator().manual_seed(old))
    expected = torch.nn.functional.interpolate(line, size=(new, 4), mode=filter, antialias=antialias, align_corners=False)
    weights = taps(old, new, filter, antialias=antialias, a=-0.5 if antialias else -0.75, like=line)
    assert torch.allclose(weights @ line, expected, atol=2e-6)


def test_sizes_for_the_check_divide_into_patches():
    for config in MODELS.values():
        for size in nearest_sizes(config, 5):
            config.replace(image_size=size)


def test_unknown_words_are_named(tmp_path):
    model = model_of(MODELS["vit"])
    with pytest.raises(UsageError, match="did you mean 'onnx'"):
        export(model, tmp_path / "m.onnx", to="onx")
    with pytest.raises(UsageError, match="ending"):
        export(model, tmp_path / "m.bin")
    with pytest.raises(UsageError, match="labelled images"):
        export(model, tmp_path / "m.onnx", dtype="int8")
    assert list(tmp_path.iterdir()) == []
