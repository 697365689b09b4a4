"""C10: one error lists everything that does not fit, grouped, with the nearest names; nothing is read."""

from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail.errors import CheckpointError
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build
from vitrail.weights import npz
from vitrail.weights.safe import write_safetensors

SOURCE = Path(__file__).parents[1] / "golden" / "g02_vit_token_smallres" / "checkpoint_prelinen.npz"
MLP = "Transformer/encoderblock_1/MlpBlock_3/"


def edited(tmp_path, edit):
    arrays = dict(np.load(SOURCE))
    edit(arrays)
    np.savez(tmp_path / "model.npz", **arrays)
    return tmp_path / "model.npz"


def test_everything_wrong_is_in_one_error_and_no_value_is_read(tmp_path, monkeypatch):
    def edit(arrays):
        arrays[MLP + "Dense_0/kernell"] = arrays.pop(MLP + "Dense_0/kernel")  # misspelt
        del arrays["Transformer/encoder_norm/bias"]  # missing
        arrays["head/kernel"] = arrays["head/kernel"][:-1]  # cut
        arrays["embedding/bias"] = arrays["embedding/bias"].astype(np.int32)  # no weights
        arrays["Transformer/extra/scale"] = np.ones(3, np.float32)  # unexpected

    path = edited(tmp_path, edit)
    monkeypatch.setattr(npz, "_read", lambda *_: pytest.fail("a value was read"))
    with pytest.raises(CheckpointError) as refusal:
        vitrail.load_model(path)
    text = str(refusal.value)
    for group in ("missing (2)", "unexpected (2)", "wrong shape (1)", "not floating point (1)", "Nothing was loaded"):
        assert group in text, text
    for name in (MLP + "Dense_0/kernel", "Transformer/encoder_norm/bias", "Transformer/extra/scale", "embedding/bias (torch.int32)"):
        assert name in text
    assert f"{MLP}Dense_0/kernel (the file has {MLP}Dense_0/kernell)" in text
    assert "head/kernel is (31, 13), not (32, 13)" in text


def test_a_block_missing_in_the_middle_is_listed_name_by_name(tmp_path):
    path = edited(
        tmp_path, lambda arrays: [arrays.pop(n) for n in list(arrays) if "encoderblock_0/" in n and "MultiHead" not in n and "Mlp" not in n]
    )
    with pytest.raises(CheckpointError, match="missing \\(4\\)"):
        vitrail.load_model(path)


def test_our_own_file_with_other_tensors_than_its_card_says(tmp_path):
    model = build(ViTConfig(width=64, depth=1, heads=1, mlp_width=64, patch_size=8, image_size=16, classes=2))
    path = vitrail.save_model(model, tmp_path / "a.safetensors")
    from vitrail.weights.archive import open_archive

    archive = open_archive(path)
    tensors = {name: archive.read(name) for name in archive.entries}
    tensors["blocks.0.norm1.weigth"] = tensors.pop("blocks.0.norm1.weight")
    tensors["cls"] = torch.zeros(1, 1, 32)
    with open(tmp_path / "b.safetensors", "wb") as stream:
        write_safetensors(stream, tensors, archive.metadata)
    with pytest.raises(CheckpointError, match=r"blocks\.0\.norm1\.weight \(the file has blocks\.0\.norm1\.weigth\)") as refusal:
        vitrail.load_model(tmp_path / "b.safetensors")
    assert "cls is (1, 1, 32), not (1, 1, 64)" in str(refusal.value)


def test_another_systems_file_is_told_apart_by_its_nearest_origin(tmp_path):
    np.savez(
        tmp_path / "model.npz", **{"embedding/kernel": np.zeros((4, 4, 3, 8), np.float32), "Mixer/block_0/scale": np.zeros(8, np.float32)}
    )
    with pytest.raises(CheckpointError, match=r"no known origin.*embedding/kernel"):
        vitrail.load_model(tmp_path / "model.npz")


def test_the_healthy_twin_loads(tmp_path):
    assert vitrail.load_model(edited(tmp_path, lambda arrays: None)).card.origin == "npz:prelinen"
