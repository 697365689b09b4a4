"""C15: what is saved, loaded and saved again is the same file, byte for byte; a changed byte is noticed and named."""

import pytest
import torch

import vitrail
from vitrail.errors import CheckpointError
from vitrail.model.config import AxialConfig, ResNetConfig, ResNetStem, ViTConfig
from vitrail.model.variants import build
from vitrail.weights.card import Card

SMALL = {"width": 64, "depth": 2, "heads": 2, "mlp_width": 96, "patch_size": 8, "image_size": (32, 24), "classes": 5}
MODELS = {
    "token": ViTConfig(**SMALL),
    "sincos, map": ViTConfig(**SMALL, pool="map", position="sincos2d"),
    "everything": ViTConfig(
        **SMALL, registers=2, qk_norm=True, layer_scale=0.1, mlp="swiglu", norm_pre=True, distilled=True, drop_path=0.1
    ),
    "relative": ViTConfig(**SMALL, position="relative", pool="gap"),
    "shared learned 2-D": ViTConfig(**SMALL, position="learned2d", position_at="shared", representation=32),
    "hybrid": ViTConfig(**{**SMALL, "patch_size": 1, "image_size": 32}, stem=ResNetStem((1, 1), width=32)),
    "BiT": ResNetConfig(layers=(1, 1), width_factor=0.5, image_size=32, classes=5),
    "axial": AxialConfig(**SMALL),
}


def made(name):
    model = build(MODELS[name], seed=3)
    model.card = Card(
        name="a model", classes=("köpek", "猫", "c", "d", "e"), metrics={"accuracy": 0.5, "n": 3}, recipe={"optim": {"lr": 1e-3}},
        notes=("trained at home",), license="Apache-2.0", data="photographs", parents=("hf://a/b",),
    )  # fmt: skip
    return model


@pytest.mark.parametrize("name", MODELS)
def test_save_load_save_gives_identical_bytes(name, tmp_path):
    model = made(name)
    first = vitrail.save_model(model, tmp_path / "a.safetensors").read_bytes()
    loaded = vitrail.load_model(tmp_path / "a.safetensors")
    assert vitrail.save_model(loaded, tmp_path / "elsewhere" / "b.safetensors").read_bytes() == first
    assert loaded.config == model.config
    x = torch.randn(1, 3, *model.config.image_size)
    assert torch.equal(loaded(x), model.eval()(x))


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_half_precision_files_too(dtype, tmp_path):
    vitrail.save_model(made("token"), tmp_path / "a.safetensors", dtype=dtype)
    loaded = vitrail.load_model(tmp_path / "a.safetensors")
    assert {p.dtype for p in loaded.parameters()} == {torch.float32}
    vitrail.save_model(loaded, tmp_path / "b.safetensors", dtype=dtype)
    assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()


def test_every_byte_of_the_weights_is_covered_by_a_hash(tmp_path):
    path = vitrail.save_model(made("token"), tmp_path / "a.safetensors")
    healthy = path.read_bytes()
    start = 8 + int.from_bytes(healthy[:8], "little")
    for at in torch.linspace(start, len(healthy) - 1, 25).long().tolist():
        data = bytearray(healthy)
        data[at] ^= 1
        path.write_bytes(bytes(data))
        with pytest.raises(CheckpointError, match="1 parameters do not match the hashes on their card: "):
            vitrail.load_model(path)
    path.write_bytes(healthy)
    assert vitrail.load_model(path)


def test_training_a_loaded_model_never_writes_to_its_file(tmp_path):
    path = vitrail.save_model(made("token"), tmp_path / "a.safetensors")
    before = path.read_bytes()
    model = vitrail.load_model(path)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    assert path.read_bytes() == before


def test_a_file_can_be_saved_over_itself(tmp_path):
    path = vitrail.save_model(made("token"), tmp_path / "a.safetensors")
    model = vitrail.load_model(path)
    expected = model.patch.weight.clone()
    vitrail.save_model(model, path)
    assert torch.equal(model.patch.weight, expected)
    assert torch.equal(vitrail.load_model(path).patch.weight, expected)
