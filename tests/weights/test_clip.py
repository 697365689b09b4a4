"""Image towers of CLIP and SigLIP in their three spellings; text towers are left out."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import vitrail
from vitrail.errors import CheckpointError, UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build
from vitrail.weights.formats.clip import FORMATS
from vitrail.weights.rules import their_tensors

_spec = importlib.util.spec_from_file_location("golden", Path(__file__).with_name("golden.py"))
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)
distance = golden.distance
OPEN, TRUNK, TRANSFORMERS = FORMATS

CLIP = ViTConfig(
    width=64, depth=2, heads=1, mlp_width=96, patch_size=8, image_size=32, classes=12, norm_pre=True, patch_bias=False,
    head_bias=False, eps=1e-5, activation="gelu", position_resample="bicubic_antialias",
)  # fmt: skip
SIGLIP = ViTConfig(width=64, depth=2, heads=1, mlp_width=96, patch_size=8, image_size=32, classes=0, pool="map", activation="gelu_tanh")


def tower(form, config, prefix=""):
    """(a model with random weights, its state in that spelling)."""
    model = build(config, seed=1).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(2)))
    state = their_tensors(form.rules(config), dict(model.named_parameters()))
    return model, {prefix + name: value.detach().contiguous() for name, value in state.items()}


def agree(folder, model, **options):
    found = vitrail.load_model(folder, **options)
    x = torch.randn(2, 3, 32, 32)
    with torch.inference_mode():
        assert distance(found(x), model(x)) <= 1e-6
        assert distance(found.features(x), model.features(x)) <= 1e-6
    return found


TEXT = {
    "logit_scale": torch.zeros(()), "token_embedding.weight": torch.zeros(9, 8), "positional_embedding": torch.zeros(4, 8),
    "transformer.resblocks.0.ln_1.weight": torch.zeros(8), "ln_final.weight": torch.zeros(8), "text_projection": torch.zeros(8, 12),
}  # fmt: skip


def test_openclip_with_its_text_tower(tmp_path):
    model, state = tower(OPEN, CLIP)
    save_file({**state, **TEXT}, tmp_path / "open_clip_model.safetensors")
    found = agree(tmp_path, model)
    assert found.card.transform().mean[0] == pytest.approx(0.48145466) and found.config.head_bias is False
    assert any("shared with text" in note for note in found.card.notes)


def test_openclip_s_config_says_activation_and_heads(tmp_path):
    model, state = tower(OPEN, CLIP.replace(heads=2, activation="quick_gelu"))
    save_file({**state, **TEXT}, tmp_path / "open_clip_model.safetensors")
    described = {
        "model_cfg": {"quick_gelu": True, "vision_cfg": {"image_size": 32, "head_width": 32}},
        "preprocess_cfg": {"mean": [0.5] * 3},
    }
    (tmp_path / "open_clip_config.json").write_text(json.dumps(described))
    assert agree(tmp_path, model).card.transform().mean == (0.5, 0.5, 0.5)


def test_openai_s_files_are_known_by_what_only_they_hold(tmp_path):
    model, state = tower(OPEN, CLIP.replace(activation="quick_gelu"))
    torch.save({**state, "input_resolution": torch.tensor(32), "vocab_size": torch.tensor(9)}, tmp_path / "clip.pt")
    agree(tmp_path / "clip.pt", model)


def test_a_tower_alone_has_no_prefix(tmp_path):
    model, state = tower(OPEN, CLIP)
    save_file({name.removeprefix("visual."): value for name, value in state.items()}, tmp_path / "model.safetensors")
    agree(tmp_path, model)


def test_openclip_over_timm(tmp_path):
    model, state = tower(TRUNK, SIGLIP, "visual.trunk.")
    save_file(
        {**state, "text.token_embedding.weight": torch.zeros(3, 8), "logit_bias": torch.zeros(())}, tmp_path / "open_clip_model.safetensors"
    )
    described = {"model_cfg": {"vision_cfg": {"image_size": 32, "timm_model_name": "vit_so400m_patch16_siglip_256", "timm_pool": "map"}}}
    (tmp_path / "open_clip_config.json").write_text(json.dumps(described))
    agree(tmp_path, model)


@pytest.mark.parametrize("prefix", ["vision_model.", ""])
def test_siglip_of_transformers(prefix, tmp_path):
    model, state = tower(TRANSFORMERS, SIGLIP, prefix)
    save_file({**state, "text_model.embeddings.token_embedding.weight": torch.zeros(3, 8)}, tmp_path / "model.safetensors")
    found = agree(tmp_path, model)
    assert found.config.pool == "map" and found.config.activation == "gelu_tanh" and found.config.eps == 1e-6


def test_clip_of_transformers_follows_its_config(tmp_path):
    model, state = tower(TRANSFORMERS, CLIP.replace(activation="quick_gelu", heads=4, position_resample="bicubic"))
    plain = {name: value for name, value in state.items() if name != "projection.weight"}
    state = {f"vision_model.{name}": value for name, value in plain.items()} | {"visual_projection.weight": state["projection.weight"]}
    save_file(state, tmp_path / "model.safetensors")
    said = {"model_type": "clip", "vision_config": {"num_attention_heads": 4, "hidden_act": "quick_gelu", "layer_norm_eps": 1e-5}}
    (tmp_path / "config.json").write_text(json.dumps(said))
    agree(tmp_path, model)


def test_a_pooling_that_is_not_read_is_refused(tmp_path):
    _, state = tower(OPEN, CLIP)
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": {"vision_cfg": {"pool_type": "avg"}}}))
    with pytest.raises(CheckpointError, match="pools by 'avg'"):
        vitrail.load_model(tmp_path)


def test_towers_are_read_and_not_written(tmp_path):
    with pytest.raises(UsageError, match="does not write them"):
        vitrail.convert(build(SIGLIP), tmp_path / "x", to="clip")
