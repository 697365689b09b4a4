"""save_model: what it writes, where, and that nothing half-written stays."""

import json
import os

import pytest
import torch
from torch import nn

import vitrail
from vitrail.errors import CheckpointError, UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build
from vitrail.weights.card import Card
from vitrail.weights.store import hash_of, nonfinite

SMALL = ViTConfig(width=64, depth=1, heads=1, mlp_width=64, patch_size=8, image_size=16, classes=2)


@pytest.fixture
def model():
    return build(SMALL, seed=5)


def test_other_libraries_read_the_file(model, tmp_path):
    from safetensors import safe_open
    from safetensors.torch import load_file

    path = vitrail.save_model(model, tmp_path / "m.safetensors")
    tensors = load_file(path)
    assert all(torch.equal(tensors[name], parameter) for name, parameter in model.named_parameters())
    with safe_open(path, "pt") as file:
        assert json.loads(file.metadata()["vitrail"])["model"]["width"] == 64


def test_the_path_comes_back_and_folders_get_the_usual_name(model, tmp_path):
    assert vitrail.save_model(model, f"{tmp_path}/new/") == tmp_path / "new" / "model.safetensors"
    assert vitrail.save_model(model, tmp_path) == tmp_path / "model.safetensors"
    assert vitrail.save_model(model, tmp_path / "a" / "b.safetensors").exists()


@pytest.mark.parametrize("name", ["m.npz", "m.pth", "m.bin"])
def test_the_names_of_other_formats_are_refused(name, model, tmp_path):
    with pytest.raises(UsageError, match="convert"):
        vitrail.save_model(model, tmp_path / name)


def test_the_given_card_is_kept_with_the_model_as_it_is(model, tmp_path):
    card = Card(name="flowers", classes=("rose", "tulip"), model={"family": "vit", "width": 1})
    loaded = vitrail.load_model(vitrail.save_model(model, tmp_path, card=card))
    assert loaded.card.name == "flowers" and loaded.card.classes == ("rose", "tulip")
    assert loaded.card.config == SMALL


def test_class_names_that_no_longer_fit_are_left_behind(model, tmp_path):
    model.card = Card(name="flowers", classes=("rose", "tulip"))
    model.reset_head(3)
    assert vitrail.load_model(vitrail.save_model(model, tmp_path)).card.classes == ()


def test_wrappers_are_taken_off(model, tmp_path):
    class Parallel(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    a = vitrail.save_model(model, tmp_path / "x" / "m.safetensors").read_bytes()
    assert vitrail.save_model(Parallel(model), tmp_path / "y" / "m.safetensors").read_bytes() == a
    assert vitrail.save_model(torch.compile(model), tmp_path / "z" / "m.safetensors").read_bytes() == a


@pytest.mark.parametrize(("dtype", "size"), [("fp32", 4), ("bf16", 2), (torch.float16, 2)])
def test_it_stores_the_type_that_is_asked_for(dtype, size, model, tmp_path):
    path = vitrail.save_model(model, tmp_path, dtype=dtype)
    assert path.stat().st_size < sum(p.numel() for p in model.parameters()) * size + 20_000
    with pytest.raises(UsageError, match="did you mean 'bf16'"):
        vitrail.save_model(model, tmp_path, dtype="bf1")


def test_a_failed_write_leaves_the_old_file_and_nothing_else(model, tmp_path, monkeypatch):
    path = vitrail.save_model(model, tmp_path / "m.safetensors")
    before = path.read_bytes()

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with torch.no_grad():
        model.head.bias.add_(1)
    with pytest.raises(CheckpointError, match="No space left"):
        vitrail.save_model(model, path)
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["m.safetensors"]


def test_non_contiguous_parameters_are_stored_as_they_read(model, tmp_path):
    model.head.weight = nn.Parameter(torch.randn(64, 2).T)
    assert torch.equal(vitrail.load_model(vitrail.save_model(model, tmp_path)).head.weight, model.head.weight)


def test_counting_what_is_no_number():
    assert nonfinite(torch.tensor([1.0, float("nan"), float("-inf")])) == 2
    assert nonfinite(torch.full((4,), 3e38)) == 0
    assert nonfinite(torch.full((4,), 60000.0, dtype=torch.float16)) == 0
    assert nonfinite(torch.zeros(0)) == 0


def test_a_hash_sees_bytes_not_strides():
    x = torch.randn(3, 5)
    assert hash_of(x.T.contiguous().T) == hash_of(x)
    assert hash_of(x) != hash_of(x.T)
