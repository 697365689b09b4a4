"""torchvision's names, in both spellings, against a plain definition of its model."""

import json

import pytest
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

import vitrail
from vitrail.errors import CheckpointError, UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build
from vitrail.weights.format import format_named

WIDTH, HEADS, DEPTH, MLP = 48, 4, 2, 80


def weights(spelling="mlp", representation=None, positions=17):
    """A state of torchvision's VisionTransformer(image_size=32, patch_size=8, …), every value random."""
    generator = torch.Generator().manual_seed(0)
    draw = lambda *shape: torch.randn(shape, generator=generator) * (shape[-1] if len(shape) > 1 else 10) ** -0.5
    fc1, fc2 = ("0", "3") if spelling == "mlp" else ("linear_1", "linear_2")
    state = {
        "class_token": draw(1, 1, WIDTH), "conv_proj.weight": draw(WIDTH, 3, 8, 8), "conv_proj.bias": draw(WIDTH),
        "encoder.pos_embedding": draw(1, positions, WIDTH), "encoder.ln.weight": 1 + draw(WIDTH), "encoder.ln.bias": draw(WIDTH),
        "heads.head.weight": draw(5, representation or WIDTH), "heads.head.bias": draw(5),
    }  # fmt: skip
    if representation:
        state |= {"heads.pre_logits.weight": draw(representation, WIDTH), "heads.pre_logits.bias": draw(representation)}
    for i in range(DEPTH):
        at = f"encoder.layers.encoder_layer_{i}."
        for name in ("ln_1", "ln_2"):
            state |= {f"{at}{name}.weight": 1 + draw(WIDTH), f"{at}{name}.bias": draw(WIDTH)}
        state |= {f"{at}self_attention.in_proj_weight": draw(3 * WIDTH, WIDTH), f"{at}self_attention.in_proj_bias": draw(3 * WIDTH)}
        state |= {f"{at}self_attention.out_proj.weight": draw(WIDTH, WIDTH), f"{at}self_attention.out_proj.bias": draw(WIDTH)}
        state |= {f"{at}mlp.{fc1}.weight": draw(MLP, WIDTH), f"{at}mlp.{fc1}.bias": draw(MLP)}
        state |= {f"{at}mlp.{fc2}.weight": draw(WIDTH, MLP), f"{at}mlp.{fc2}.bias": draw(WIDTH)}
    return state


def torchvision_forward(state, x):
    """The model as torchvision computes it, from functions of torch alone."""
    s = lambda name: state[name]
    z = F.conv2d(x, s("conv_proj.weight"), s("conv_proj.bias"), stride=8).flatten(2).transpose(1, 2)
    z = torch.cat([s("class_token").expand(len(x), -1, -1), z], 1) + s("encoder.pos_embedding")
    for i in range(DEPTH):
        at = f"encoder.layers.encoder_layer_{i}."
        y = F.layer_norm(z, (WIDTH,), s(at + "ln_1.weight"), s(at + "ln_1.bias"), 1e-6).transpose(0, 1)
        proj = [s(at + "self_attention." + name) for name in ("in_proj_weight", "in_proj_bias", "out_proj.weight", "out_proj.bias")]
        y, _ = F.multi_head_attention_forward(y, y, y, WIDTH, HEADS, proj[0], proj[1], None, None, False, 0.0, proj[2], proj[3])
        z = z + y.transpose(0, 1)
        y = F.layer_norm(z, (WIDTH,), s(at + "ln_2.weight"), s(at + "ln_2.bias"), 1e-6)
        y = F.gelu(F.linear(y, s(at + "mlp.0.weight"), s(at + "mlp.0.bias")))
        z = z + F.linear(y, s(at + "mlp.3.weight"), s(at + "mlp.3.bias"))
    y = F.layer_norm(z, (WIDTH,), s("encoder.ln.weight"), s("encoder.ln.bias"), 1e-6)[:, 0]
    if "heads.pre_logits.weight" in state:
        y = torch.tanh(F.linear(y, s("heads.pre_logits.weight"), s("heads.pre_logits.bias")))
    return F.linear(y, s("heads.head.weight"), s("heads.head.bias"))


@pytest.mark.parametrize("instead", ["heads.", "heads.0."])
def test_a_head_put_in_place_of_the_whole_heads_is_read_and_none_too(instead, tmp_path):
    state, x = weights(), torch.randn(2, 3, 32, 32)
    spelled = {name.replace("heads.head.", instead): value for name, value in state.items()}
    torch.save(spelled, tmp_path / "tuned.pth")
    expected = torchvision_forward(state, x)
    assert (vitrail.load_model(tmp_path / "tuned.pth", heads=HEADS)(x) - expected).abs().max() <= 2e-6 * expected.abs().max()
    torch.save({name: value for name, value in spelled.items() if "heads" not in name}, tmp_path / "bare.pth")
    bare = vitrail.load_model(tmp_path / "bare.pth", heads=HEADS)
    assert bare.config.classes == 0
    logits = bare.features(x) @ state["heads.head.weight"].T + state["heads.head.bias"]
    assert (logits - expected).abs().max() <= 2e-6 * expected.abs().max()


@pytest.mark.parametrize("representation", [None, 24])
@pytest.mark.parametrize("spelling", ["mlp", "linear"])
def test_torchvision_s_logits_in_both_spellings(spelling, representation, tmp_path):
    save_file(weights(spelling, representation), tmp_path / "model.safetensors")
    model = vitrail.load_model(tmp_path, heads=HEADS)
    x = torch.randn(2, 3, 32, 32)
    expected = torchvision_forward(weights("mlp", representation), x)
    assert (model(x) - expected).abs().max() <= 2e-6 * expected.abs().max()
    assert model.config.position_resample == "bicubic_aligned"


def test_a_pth_file_of_torchvision_reads_too(tmp_path):
    torch.save(weights("linear"), tmp_path / "vit_b_16.pth")
    assert vitrail.load_model(tmp_path / "vit_b_16.pth", heads=HEADS).config.depth == DEPTH


@pytest.mark.parametrize("spelling", ["mlp", "linear"])
def test_what_is_written_is_torchvision_s_file_again_with_the_arguments_of_its_class(spelling, tmp_path):
    save_file(weights(spelling), tmp_path / "model.safetensors")
    done = vitrail.convert(tmp_path / "model.safetensors", tmp_path / "again", to="torchvision", heads=HEADS)
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert done.identical and again.keys() == weights(spelling).keys()
    assert all(torch.equal(again[name], value) for name, value in weights(spelling).items())
    arguments = json.loads((tmp_path / "again" / "config.json").read_text())["arguments"]
    assert arguments["num_heads"] == HEADS and arguments["image_size"] == 32 and arguments["mlp_dim"] == MLP
    assert vitrail.load_model(tmp_path / "again").config.heads == HEADS


def test_heads_of_h_14_are_known_and_others_asked_for(tmp_path):
    save_file(weights(), tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match="number of heads"):
        vitrail.load_model(tmp_path)


def test_preprocessing_is_torchvision_s(tmp_path):
    save_file(weights(), tmp_path / "model.safetensors")
    small = vitrail.load_model(tmp_path, heads=HEADS).card.transform()
    assert (small.mode, small.resize, small.interpolation, small.mean[0]) == ("shorter_crop", 36, "bilinear", 0.485)
    form = format_named("torchvision")
    large = form.preprocess(ViTConfig(image_size=384), form_sidecar())
    assert (large.resize, large.interpolation) == (384, "bicubic")


def form_sidecar():
    from vitrail.weights.sidecar import Sidecar

    return Sidecar()


SMALL = ViTConfig(width=32, depth=1, heads=2, mlp_width=64, patch_size=8, image_size=32, classes=3, activation="gelu")


@pytest.mark.parametrize(
    "changes", [{"position": "sincos2d"}, {"qkv_bias": False, "dense_bias": False}, {"patch_bias": False, "head_bias": False}]
)
def test_what_torchvision_lacks_is_folded_into_what_it_has(changes, tmp_path):
    model = build(SMALL.replace(**changes), seed=3)
    done = vitrail.convert(model, tmp_path / "tv", to="torchvision")
    assert done.folded and done.difference <= 1e-6


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"image_size": (32, 16)}, "square"),
        ({"channels": 1}, "3 channels"),
        ({"classes": 0}, "has a head"),
        ({"pool": "gap"}, "reads the class token"),
        ({"registers": 2}, "one token before the patches"),
        ({"layer_scale": 0.1}, "neither LayerScale nor SwiGLU"),
        ({"qk_norm": True}, "one norm after"),
    ],
)
def test_a_model_torchvision_has_no_place_for_is_refused_with_the_reason(changes, why, tmp_path):
    with pytest.raises(UsageError, match=why):
        vitrail.convert(build(SMALL.replace(**changes)), tmp_path / "tv", to="torchvision")


def test_another_gelu_is_measured_in_the_report(tmp_path):
    done = vitrail.convert(build(SMALL.replace(activation="gelu_tanh"), seed=1), tmp_path / "tv", to="torchvision")
    assert done.tell["activation"] == "gelu_tanh" and any("activation" in line for line in done.convention)
