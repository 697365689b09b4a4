"""transformers' files: its own outputs to float noise in both generations of names, and files that it and we read back."""

import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vitrail
from vitrail.data.transform import IMAGENET_MEAN, Preprocess
from vitrail.errors import CheckpointError, UsageError
from vitrail.model.config import ResNetStem, ViTConfig
from vitrail.model.variants import build
from vitrail.weights.format import format_named
from vitrail.weights.formats.huggingface import processor_of, view_of

_spec = importlib.util.spec_from_file_location("golden", Path(__file__).with_name("golden.py"))
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)
Case, distance, layers = golden.Case, golden.distance, golden.layers

CASES = sorted(path.name for path in golden.GOLDEN.glob("h0*"))
BY = ("config.json", "heads=")


@pytest.mark.parametrize("told", BY)
@pytest.mark.parametrize("generation", ["hub", "new"])
@pytest.mark.parametrize("name", CASES)
def test_transformers_outputs_blocks_attention_and_other_sizes(name, generation, told, tmp_path):
    case = Case(name)
    names = case.said["new_names"] if generation == "new" else None
    folder = case.write(tmp_path, names, case.said["config"] if told == "config.json" else None)
    model = vitrail.load_model(folder, **({} if told == "config.json" else {"heads": case.said["heads"]}))
    assert model.card.origin == ("hf" if generation == "hub" else "hf:new")
    x, expected = case.arrays["input"], case.arrays
    with torch.inference_mode():
        assert distance(model(x), expected["expected"]) <= case.tolerance
        if "expected_pooler_output" in expected:
            assert distance(model.features(x), expected["expected_pooler_output"]) <= case.tolerance
        if "expected_cls_logits" in expected:
            first, second = model.two_heads(model.tokens(x))
            assert distance(first, expected["expected_cls_logits"]) <= case.tolerance
            assert distance(second, expected["expected_distillation_logits"]) <= case.tolerance
        outputs, weights = layers(model, x[:1])
        if case.said["last_hidden_state_is_normalised"]:
            outputs = torch.cat([outputs[:-1], model.norm(outputs[-1:])])
        assert distance(outputs, expected["expected_hidden_states"]) <= case.tolerance
        assert distance(weights, expected["expected_attention"]) <= case.tolerance
        if "other_size_input" in expected:
            other = expected["other_size_input"]
            assert distance(model.resize(tuple(other.shape[2:]))(other), expected["other_size_expected"]) <= case.tolerance


@pytest.mark.parametrize("generation", ["hub", "new"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_their_file_again_with_a_config_that_says_the_same(name, generation, tmp_path):
    case = Case(name)
    names = case.said["new_names"] if generation == "new" else {}
    model = vitrail.load_model(case.write(tmp_path / "theirs", names, case.said["config"]))
    done = vitrail.convert(model, tmp_path / "again", to="hf")
    assert done.identical and not done.folded and not done.tell
    again = load_file(tmp_path / "again" / "model.safetensors")
    weights = {names.get(key, key): value for key, value in case.weights.items() if "mask_token" not in key}
    assert again.keys() == weights.keys() and all(torch.equal(again[key], weights[key]) for key in again)
    said = json.loads((tmp_path / "again" / "config.json").read_text())
    theirs = case.said["config"]
    for key in (
        "model_type",
        "architectures",
        "hidden_act",
        "layer_norm_eps",
        "num_attention_heads",
        "image_size",
        "patch_size",
        "id2label",
    ):
        assert said.get(key) == theirs.get(key), key
    assert said.get("intermediate_size", said.get("mlp_ratio")) == theirs.get("intermediate_size", theirs.get("mlp_ratio"))


def test_a_class_token_that_no_head_reads_is_one_more_token(tmp_path):
    """DeiTForImageClassification has a distillation token, and one head that reads the class token."""
    case = Case("h04_hf_deit_distilled")
    single = {"cls_classifier.weight": "classifier.weight", "cls_classifier.bias": "classifier.bias"}
    for kind in ("weight", "bias"):
        del case.weights[f"distillation_classifier.{kind}"]
    model = vitrail.load_model(case.write(tmp_path, single, case.said["config"]))
    with torch.inference_mode():
        assert distance(model(case.arrays["input"]), case.arrays["expected_cls_logits"]) <= case.tolerance


SMALL = ViTConfig(width=32, depth=1, heads=2, mlp_width=64, patch_size=8, image_size=32, classes=3, activation="gelu")


@pytest.mark.parametrize("generation", ["hub", "new"])
def test_swiglu_in_both_generations(generation, tmp_path):
    model = build(SMALL.replace(mlp="swiglu", mlp_width=88, layer_scale=1.0, pool="token+gap"), seed=1)
    vitrail.convert(model, tmp_path / "hf", to="hf", style=generation)
    names = load_file(tmp_path / "hf" / "model.safetensors").keys()
    assert any(("gate_proj" if generation == "new" else "weights_in") in name for name in names)
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(vitrail.load_model(tmp_path / "hf")(x), model.eval()(x))


def test_the_decoder_and_mask_token_of_an_autoencoder_are_left_out(tmp_path):
    from safetensors.torch import save_file

    model = build(SMALL.replace(classes=0, eps=1e-12), seed=1)
    vitrail.convert(model, tmp_path / "hf", to="hf")
    weights = load_file(tmp_path / "hf" / "model.safetensors")
    more = {"decoder.mask_token": torch.zeros(1, 1, 16), "decoder.decoder_embed.weight": torch.zeros(16, 32)}
    save_file({**{f"vit.{name}": value for name, value in weights.items()}, **more}, tmp_path / "hf" / "model.safetensors")
    config = json.loads((tmp_path / "hf" / "config.json").read_text()) | {"model_type": "vit_mae"}
    (tmp_path / "hf" / "config.json").write_text(json.dumps(config))
    found = vitrail.load_model(tmp_path / "hf")
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(found(x), model.eval()(x)) and "decoder" in " ".join(found.card.notes)
    assert found.card.transform().mean == (0.5, 0.5, 0.5)  # the processor's file says so; without it, an autoencoder's is ImageNet's
    (tmp_path / "hf" / "preprocessor_config.json").unlink()
    assert vitrail.load_model(tmp_path / "hf").card.transform().mean == IMAGENET_MEAN


def test_a_prefix_before_half_of_the_names_is_no_obstacle(tmp_path):
    case = Case("h01_hf_vit")
    names = {name: name.removeprefix("vit.") for name in case.weights if name.startswith("vit.encoder.")}
    model = vitrail.load_model(case.write(tmp_path, names, case.said["config"]))
    with torch.inference_mode():
        assert distance(model(case.arrays["input"]), case.arrays["expected"]) <= case.tolerance


def test_class_names_come_from_id2label_unless_they_only_count(tmp_path):
    case = Case("h01_hf_vit")
    assert vitrail.load_model(case.write(tmp_path, None, case.said["config"])).card.classes == ()
    named = case.said["config"] | {"id2label": {str(n): f"animal {n}" for n in range(7)}}
    assert vitrail.load_model(case.write(tmp_path, None, named)).card.classes[6] == "animal 6"


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"model_type": "beit"}, "model_type 'beit'"),
        ({"hidden_act": "mish"}, "hidden_act = 'mish'"),
        ({"num_attention_heads": 5}, "does not divide into heads=5"),
        ({"num_attention_heads": "4"}, "not a whole number"),
        ({"layer_norm_eps": "small"}, "not a number"),
        ({"image_size": [1, 2, 3, 4]}, "not a size in pixels"),
    ],
)
def test_a_description_vitrail_cannot_follow_is_refused_by_name(said, why, tmp_path):
    case = Case("h01_hf_vit")
    with pytest.raises(CheckpointError, match=why):
        vitrail.load_model(case.write(tmp_path, None, case.said["config"] | said))


# ---- writing ----

FOLDED = {
    "sincos": SMALL.replace(position="sincos2d"),
    "no positions": SMALL.replace(position="none"),
    "no class row": SMALL.replace(position_class=False),
    "no biases": SMALL.replace(dense_bias=False, patch_bias=False, head_bias=False),
    "registers with positions, no LayerScale": SMALL.replace(registers=3, position_registers=True, pool="token+gap"),
}


@pytest.mark.parametrize("name", FOLDED)
def test_what_transformers_lacks_is_folded_into_what_it_has(name, tmp_path):
    model = build(FOLDED[name], seed=3)
    with torch.no_grad():
        model.head.weight.normal_()
    done = vitrail.convert(model, tmp_path / "hf", to="hf")
    assert done.folded and done.difference <= 1e-6
    x = torch.randn(2, 3, 32, 32)
    assert distance(vitrail.load_model(tmp_path / "hf")(x), model.eval()(x)) <= 1e-6


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (SMALL.replace(stem=ResNetStem(()), patch_size=8), "no convolutional stem"),
        (SMALL.replace(position_at="every"), "at the stem"),
        (SMALL.replace(norm_pre=True), "no norm before the blocks"),
        (SMALL.replace(representation=16), "tanh layer only without a head"),
        (SMALL.replace(pool="map", class_token=False), "no pooling of the kind 'map'"),
        (SMALL.replace(pool="gap", class_token=True), "pools by 'token'"),
        (SMALL.replace(registers=2, image_size=(32, 16)), "square grid"),
        (SMALL.replace(layer_scale=1.0), "head reads the class token and the mean"),
        (SMALL.replace(layer_scale=1.0, pool="token+gap", mlp_width=50), "whole multiple of the width"),
        (SMALL.replace(final_norm=False), "norm after the blocks"),
    ],
)
def test_a_model_transformers_has_no_place_for_is_refused_with_the_reason(config, why, tmp_path):
    assert any(why in reason for reason in format_named("hf").cannot_hold(config))
    with pytest.raises(UsageError, match=why):
        vitrail.convert(build(config), tmp_path / "hf", to="hf")


# ---- image processors ----


@pytest.mark.parametrize(
    ("processor", "mode", "resize"),
    [
        ({"size": 32, "resample": 2, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}, "squash", None),
        ({"size": {"height": 32, "width": 32}, "do_center_crop": False, "crop_size": 32}, "squash", None),
        (
            {"size": {"shortest_edge": 40}, "do_center_crop": True, "crop_size": {"height": 32, "width": 32}, "resample": 3},
            "shorter_crop",
            40,
        ),
        ({"size": 40, "crop_size": 32, "do_center_crop": True, "feature_extractor_type": "DeiTFeatureExtractor"}, "bit", 40),
        ({"size": 40, "crop_size": 32, "do_center_crop": True, "feature_extractor_type": "CLIPFeatureExtractor"}, "shorter_crop", 40),
    ],
)
def test_image_processors_become_the_same_view(processor, mode, resize):
    view = view_of(SMALL, processor)
    assert (view.mode, view.resize, view.image_size) == (mode, resize, (32, 32))


def test_what_a_processor_does_to_values_is_kept():
    shifted = view_of(SMALL, {"size": 32, "rescale_factor": 1 / 127.5, "image_mean": [1.0] * 3, "image_std": [1.0] * 3})
    assert shifted.mean == pytest.approx((0.5,) * 3) and shifted.std == pytest.approx((0.5,) * 3)
    plain = view_of(SMALL, {"size": 32, "do_normalize": False})
    assert (plain.mean, plain.std) == ((0.0,), (1.0,))


@pytest.mark.parametrize(
    "view",
    [
        Preprocess((32, 32), "squash", None, "bilinear", True, rounding="round"),
        Preprocess((32, 32), "shorter_crop", 40, "bicubic", True, rounding="round"),
        Preprocess((32, 32), "bit", 40, "bicubic", True, rounding="round"),
        Preprocess((32, 32), "squash", None, "area", True, rounding="round"),
    ],
)
def test_a_view_survives_the_way_through_preprocessor_config_json(view):
    assert view_of(SMALL, json.loads(json.dumps(processor_of(view)))) == view
