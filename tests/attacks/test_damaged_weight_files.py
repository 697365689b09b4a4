"""Files damaged at random, of every container: refused with a CheckpointError, or loaded where nothing checks those bytes."""

import random
import shutil
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail.errors import CheckpointError
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build
from vitrail.weights.convert import convert

GOLDEN = Path(__file__).parents[1] / "golden"
DAMAGES = 20


def cut(data, chance):
    return data[: chance.randrange(len(data))]


def flipped_at_the_start(data, chance):
    for _ in range(chance.randrange(1, 20)):
        data[chance.randrange(min(len(data), 4000))] = chance.randrange(256)
    return data


def flipped_at_the_end(data, chance):
    for _ in range(chance.randrange(1, 20)):
        data[-chance.randrange(1, min(len(data), 4000))] = chance.randrange(256)
    return data


def inserted(data, chance):
    at = chance.randrange(len(data))
    return data[:at] + bytes(chance.randrange(256) for _ in range(chance.randrange(1, 50))) + data[at:]


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("healthy")
    model = build(ViTConfig(width=64, depth=2, heads=1, mlp_width=64, patch_size=8, image_size=16, classes=3))
    vitrail.save_model(model, folder / "ours.safetensors")
    timm = Path(convert(model, folder / "timm", to="timm").files[0])
    shutil.copy(timm, folder / "timm.safetensors")
    np.savez_compressed(folder / "google.npz", **dict(np.load(GOLDEN / "g02_vit_token_smallres" / "checkpoint_prelinen.npz")))
    from safetensors.torch import load_file

    torch.save({"model": load_file(timm)}, folder / "zipped.pth")
    torch.save(load_file(timm), folder / "legacy.pth", _use_new_zipfile_serialization=False)
    return folder


@pytest.mark.parametrize("name", ["ours.safetensors", "timm.safetensors", "google.npz", "zipped.pth", "legacy.pth"])
@pytest.mark.parametrize("damage", [cut, flipped_at_the_start, flipped_at_the_end, inserted])
def test_a_damaged_file_is_never_a_bug_of_ours(name, damage, healthy, tmp_path):
    data = (healthy / name).read_bytes()
    chance = random.Random(f"{name} {damage.__name__}")
    path = tmp_path / name
    refused = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(DAMAGES):
            path.write_bytes(bytes(damage(bytearray(data), chance)))
            try:
                vitrail.load_model(path)
            except CheckpointError:
                refused += 1
    if name in ("ours.safetensors", "google.npz") and damage is not flipped_at_the_start:
        assert refused == DAMAGES  # hashes, or the CRC of a zip, see every byte; others have values that nothing checks


@pytest.mark.parametrize("name", ["ours.safetensors", "timm.safetensors", "google.npz", "zipped.pth", "legacy.pth"])
def test_the_healthy_twins_load(name, healthy):
    assert vitrail.load_model(healthy / name)
