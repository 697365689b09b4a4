"""torchvision itself: its models read here give its logits, and ours written for it give ours there."""

import json
import random

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build

torchvision = pytest.importorskip("torchvision")

pytestmark = pytest.mark.parity
TOLERANCE = 1e-5


def distance(found, expected):
    return float((found - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("seed", range(60))
def test_torchvision_and_vitrail_agree_both_ways(seed, tmp_path):
    rng = random.Random(seed)
    heads, patch = rng.choice([1, 2, 3, 4]), rng.choice([4, 8])
    size = patch * rng.randint(2, 5)
    arguments = {
        "image_size": size, "patch_size": patch, "num_layers": rng.randint(1, 3), "num_heads": heads, "hidden_dim": heads * 16,
        "mlp_dim": rng.choice([24, 50]), "num_classes": 7, "representation_size": rng.choice([None, 20]),
    }  # fmt: skip
    torch.manual_seed(seed)
    theirs = torchvision.models.VisionTransformer(**arguments).eval()
    for parameter in theirs.parameters():
        parameter.data.add_(0.2 * torch.randn_like(parameter))
    save_file(theirs.state_dict(), tmp_path / "model.safetensors")
    ours = vitrail.load_model(tmp_path, heads=heads)
    x = torch.rand(2, 3, size, size) * 2 - 1
    with torch.inference_mode():
        assert distance(ours(x), theirs(x)) < TOLERANCE
    vitrail.convert(ours, tmp_path / "again", to="torchvision")
    said = json.loads((tmp_path / "again" / "config.json").read_text())["arguments"]
    again = torchvision.models.VisionTransformer(**said).eval()
    again.load_state_dict(load_file(tmp_path / "again" / "model.safetensors"))
    with torch.inference_mode():
        assert torch.equal(again(x), theirs(x))
    other = patch * rng.randint(2, 6)
    state = torchvision.models.vision_transformer.interpolate_embeddings(other, patch, theirs.state_dict())
    larger = torchvision.models.VisionTransformer(**arguments | {"image_size": other}).eval()
    larger.load_state_dict(state)
    y = torch.rand(1, 3, other, other) * 2 - 1
    with torch.inference_mode():
        assert distance(ours.resize(other)(y), larger(y)) < TOLERANCE


@pytest.mark.parametrize("seed", range(40))
def test_what_we_write_gives_our_logits_in_torchvision(seed, tmp_path):
    rng = random.Random(1000 + seed)
    heads, patch = rng.choice([1, 2, 3]), rng.choice([4, 8])
    config = ViTConfig(
        width=heads * 16, depth=2, heads=heads, mlp_width=rng.choice([24, 50]), patch_size=patch,
        image_size=patch * rng.randint(2, 4), classes=5,
        activation="gelu", position=rng.choice(["learned", "sincos2d", "learned2d", "none"]), position_class=rng.random() < 0.5,
        qkv_bias=rng.random() < 0.5, dense_bias=rng.random() < 0.5, patch_bias=rng.random() < 0.5, head_bias=rng.random() < 0.5,
        representation=rng.choice([None, 12]),
    )  # fmt: skip
    ours = build(config, seed=seed).eval()
    with torch.no_grad():
        for parameter in ours.parameters():
            parameter.add_(0.2 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    vitrail.convert(ours, tmp_path / "tv", to="torchvision")
    said = json.loads((tmp_path / "tv" / "config.json").read_text())["arguments"]
    theirs = torchvision.models.VisionTransformer(**said).eval()
    theirs.load_state_dict(load_file(tmp_path / "tv" / "model.safetensors"))
    x = torch.rand(2, 3, *config.image_size) * 2 - 1
    with torch.inference_mode():
        assert distance(theirs(x), ours(x)) < TOLERANCE
