"""timm's files: its own logits to float noise, and files that it and we read back."""

import dataclasses
import importlib.util
import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import vitrail
from vitrail.errors import CheckpointError, UsageError
from vitrail.model.config import ResNetConfig, ResNetStem, ViTConfig
from vitrail.model.variants import build
from vitrail.weights.archive import Archive, Entry
from vitrail.weights.format import Overrides, format_named
from vitrail.weights.formats.timm import FORMATS
from vitrail.weights.sidecar import Sidecar

_spec = importlib.util.spec_from_file_location("golden", Path(__file__).with_name("golden.py"))
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)
Case, distance, layers = golden.Case, golden.distance, golden.layers

CASES = sorted(path.name for path in golden.GOLDEN.glob("t0*"))


def options(case):
    said = dict(case.said["load"])
    return {**said, "image_size": tuple(said["image_size"])} if "image_size" in said else said


@pytest.mark.parametrize("name", CASES)
def test_timm_s_logits_blocks_attention_and_other_sizes(name, tmp_path):
    case = Case(name)
    model = vitrail.load_model(case.write(tmp_path), **options(case))
    x, expected = case.arrays["input"], case.arrays
    with torch.inference_mode():
        assert distance(model(x), expected["expected"]) <= case.tolerance
        assert distance(model.features(x), expected["expected_pre_logits"]) <= case.tolerance
        if "expected_forward_features" in expected:
            assert distance(model.tokens(x), expected["expected_forward_features"]) <= case.tolerance
        if "expected_blocks" in expected:
            outputs, weights = layers(model, x[:1])
            assert distance(outputs[1:], expected["expected_blocks"]) <= case.tolerance
            if "expected_attention" in expected:
                assert distance(weights, expected["expected_attention"]) <= case.tolerance
        if "other_size_input" in expected:
            other = expected["other_size_input"]
            assert distance(model.resize(tuple(other.shape[2:]))(other), expected["other_size_expected"]) <= case.tolerance


@pytest.mark.parametrize("name", CASES)
def test_what_is_written_is_timm_s_file_again_and_describes_itself(name, tmp_path):
    case = Case(name)
    model = vitrail.load_model(case.write(tmp_path / "theirs"), **options(case))
    done = vitrail.convert(model, tmp_path / "again", to="timm")
    assert done.identical and not done.folded and not done.tell
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == case.weights.keys()
    assert all(torch.equal(again[key], case.weights[key]) for key in again)
    found = vitrail.load_model(tmp_path / "again")  # config.json now says heads and image size
    assert torch.equal(found(case.arrays["input"]), model(case.arrays["input"]))


def test_heads_that_nothing_tells_are_asked_for(tmp_path):
    with pytest.raises(CheckpointError, match="number of heads is not in the file") as caught:
        vitrail.load_model(Case("t01_timm_vit_token").write(tmp_path))
    assert "heads=" in caught.value.hint


@pytest.mark.parametrize("name", ["t03_timm_vit_reg_rect_dynamic", "t05_timm_hybrid"])
def test_the_first_input_settles_a_grid_that_is_no_square(name, tmp_path):
    case = Case(name)
    model = vitrail.load_model(case.write(tmp_path), heads=case.said["load"]["heads"])
    with torch.inference_mode():
        assert distance(model(case.arrays["input"]), case.arrays["expected"]) <= case.tolerance


# ---- what only config.json or a name can say ----


def declared(config, architecture=None, drop=(), **said):
    """The reading of a file with the arrays of such a model, of which no value exists."""
    form = format_named("timm")
    state = dict(build(config, init=False).named_parameters())
    config, state, _ = form.fold(config, {name: value.to("meta") for name, value in state.items()})
    names = {}
    for rule in form.rules(config):
        if all(name in state for name in rule.ours):
            for name, value in zip(rule.theirs, rule.write([state[key] for key in rule.ours])):
                names[name] = Entry(tuple(value.shape), torch.float32)
    archive = Archive(Path("model.safetensors"), "safetensors", {k: v for k, v in names.items() if k not in drop}, lambda name: None)
    described = {"architecture": architecture, **said} if architecture or said else {}
    sidecar = Sidecar({"config.json": {k: v for k, v in described.items() if v is not None}})
    return FORMATS[0].configuration(FORMATS[0].view(archive), sidecar, Overrides()).config


@pytest.mark.parametrize(
    ("name", "heads"), [("H/14", 16), ("g/14", 16), ("G/14", 16), ("So400m/14", 16), ("L/16", 16), ("Ti/16", 3), ("B/16", 12)]
)
def test_heads_of_the_published_sizes_are_known(name, heads):
    from vitrail.model.variants import config_for

    assert declared(config_for(name, depth=config_for(name).depth)).heads == heads


def test_the_norms_of_q_and_k_tell_the_heads():
    assert declared(ViTConfig(width=48, depth=1, heads=4, mlp_width=64, qk_norm=True)).heads == 4


SMALL = ViTConfig(width=64, depth=1, heads=1, mlp_width=64, image_size=32)


def test_an_architecture_s_name_tells_epsilon_and_activation():
    plain = declared(SMALL, "vit_base_patch16_224")
    assert (plain.eps, plain.activation) == (1e-6, "gelu")
    clip = declared(SMALL, "vit_base_patch32_clip_quickgelu_224.openai")
    assert (clip.eps, clip.activation) == (1e-5, "quick_gelu")
    assert declared(SMALL, "vit_so400m_patch16_siglip_256").activation == "gelu_tanh"
    assert declared(SMALL, "vit_base_patch16_siglip_256").activation == "gelu"


def test_a_published_size_that_does_not_divide_is_what_the_patches_see():
    found = declared(
        SMALL.replace(patch_size=14, image_size=378), "vit_so400m_patch14_siglip_384", pretrained_cfg={"input_size": [3, 384, 384]}
    )
    assert found.image_size == (378, 378) and found.grid == (27, 27)


def test_a_class_token_is_never_guessed_from_a_square():
    # 16 patches of a 4 x 4 grid with a row for the class token; and the 225 positions of flexivit, none of them for it
    assert declared(SMALL.replace(image_size=64)).image_size == (64, 64)
    ambiguous = declared(SMALL.replace(image_size=240, position_class=False))
    assert ambiguous.position_class and ambiguous.grid[0] * ambiguous.grid[1] == 224
    named = declared(SMALL.replace(image_size=240, position_class=False), "flexivit_base")
    assert not named.position_class and named.grid == (15, 15)
    deit3 = declared(SMALL.replace(image_size=224, position_class=False, layer_scale=1.0))
    assert not deit3.position_class and deit3.grid == (14, 14)


@pytest.mark.parametrize(
    ("said", "why"),
    [
        ({"architecture": "vit_base_patch16_rpn_224"}, "not those of a Vision Transformer of the paper"),
        ({"architecture": "vit_small_patch16_dinov3"}, "not those of a Vision Transformer"),
        ({"global_pool": "avgmax"}, "global_pool = 'avgmax'"),
        ({"model_args": {"act_layer": "mish"}}, "act_layer = 'mish'"),
        ({"model_args": {"num_heads": "12"}}, "num_heads = '12', which is not a whole number"),
        ({"model_args": [1]}, "model_args = .* which is not an object"),
        ({"model_args": {"img_size": "big"}}, "not a size in pixels"),
    ],
)
def test_what_vitrail_does_not_have_is_refused_by_name(said, why):
    with pytest.raises(CheckpointError, match=why):
        declared(SMALL, said.pop("architecture", None), **said)


def test_preprocessing_and_class_names_come_from_config_json(tmp_path):
    model = build(SMALL.replace(classes=2))
    vitrail.convert(model, tmp_path / "t", to="timm")
    described = json.loads((tmp_path / "t" / "config.json").read_text())
    described["pretrained_cfg"] |= {"crop_pct": 0.8, "interpolation": "bilinear", "mean": [0.4, 0.4, 0.4], "crop_mode": "center"}
    described["label_names"], described["label_descriptions"] = ["n01", "n02"], {"n01": "tench"}
    (tmp_path / "t" / "config.json").write_text(json.dumps(described))
    card = vitrail.load_model(tmp_path / "t").card
    view = card.transform()
    assert (view.mode, view.resize, view.interpolation, view.mean) == ("shorter_crop", 40, "bilinear", (0.4, 0.4, 0.4))
    assert card.classes == ("tench", "n02")


# ---- writing ----


FOLDED = {
    "sincos": SMALL.replace(position="sincos2d", pool="gap", class_token=False),
    "two tables": SMALL.replace(position="learned2d"),
    "rows for some tokens": SMALL.replace(registers=2, position_registers=False),
    "no patch bias": SMALL.replace(patch_bias=False),
    "no head bias": SMALL.replace(head_bias=False),
    "distilled without class rows": SMALL.replace(distilled=True, position_class=False),
}


@pytest.mark.parametrize("name", FOLDED)
def test_what_timm_lacks_is_folded_into_what_it_has(name, tmp_path):
    model = build(FOLDED[name].replace(classes=3, activation="gelu"), seed=3)
    with torch.no_grad():
        model.head.weight.normal_()
    done = vitrail.convert(model, tmp_path / "t", to="timm")
    assert done.folded and done.difference <= 1e-6
    x = torch.randn(2, 3, 32, 32)
    assert distance(vitrail.load_model(tmp_path / "t")(x), model.eval()(x)) <= 1e-6


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (SMALL.replace(representation=32), "representation"),
        (SMALL.replace(position_at="every"), "at the stem only"),
        (SMALL.replace(position="relative"), "relative"),
        (SMALL.replace(pool="token+gap"), "class token and mean together"),
        (SMALL.replace(norm_pre=True), "no patch bias"),
        (SMALL.replace(stem=ResNetStem((1,), groups=16), patch_size=1), "32 groups"),
        (ResNetConfig(version="v1"), "activated before"),
    ],
)
def test_a_model_timm_has_no_place_for_is_refused_with_the_reason(config, why, tmp_path):
    assert any(why in reason for reason in format_named("timm").cannot_hold(config))
    with pytest.raises(UsageError, match=why):
        vitrail.convert(build(config), tmp_path / "t", to="timm")
    assert not (tmp_path / "t").exists()


def test_a_model_without_an_entry_point_is_written_without_an_architecture(tmp_path):
    done = vitrail.convert(build(ResNetConfig((1, 1), width_factor=0.5, image_size=64, conv_eps=1e-8)), tmp_path / "t", to="timm")
    described = json.loads((tmp_path / "t" / "config.json").read_text())
    assert done.identical and "architecture" not in described and "no entry point" in described["note"]


def test_numerics_timm_cannot_say_are_measured_in_the_report(tmp_path):
    model = build(SMALL.replace(eps=1e-12, activation="gelu"), seed=1)
    done = vitrail.convert(model, tmp_path / "t", to="timm")
    assert done.tell["eps"] == 1e-12 and any("eps" in line for line in done.convention)


def test_the_pool_of_a_bit_root_is_padded_with_zeros_unless_told(tmp_path):
    case = Case("t06_timm_bit_resnetv2")
    folder = case.write(tmp_path)
    x = case.arrays["input"]
    with torch.inference_mode():
        zero, inf = vitrail.load_model(folder)(x), vitrail.load_model(folder, pool_pad="inf")(x)
    assert distance(zero, case.arrays["expected"]) <= case.tolerance < 1e-4 < distance(inf, case.arrays["expected"])


def test_extra_arrays_are_listed_and_nothing_is_loaded(tmp_path):
    case = Case("t01_timm_vit_token")
    save_file({**case.weights, "blocks.0.attn.norm.weight": torch.ones(48)}, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=r"unexpected \(1\): blocks\.0\.attn\.norm\.weight"):
        vitrail.load_model(tmp_path, heads=4)


def test_every_field_of_the_configuration_is_written_or_refused(tmp_path):
    """What changes the function and is neither in the arrays nor in config.json would be lost in silence."""
    base = SMALL.replace(classes=3, activation="gelu")
    harmless = {"dropout", "drop_path", "drop_path_uniform", "head_bias_init", "layer_scale", "position_resample"}
    changes = {
        "pool_prefix": True, "pool": "unpooled", "registers": 2, "qk_norm": True, "heads": 2, "activation": "quick_gelu",
        "qkv_bias": False, "dense_bias": False, "final_norm": False, "mlp": "swiglu", "eps": 1e-5, "image_size": (16, 64),
    }  # fmt: skip
    assert not harmless & changes.keys()
    for name, value in changes.items():
        config = dataclasses.replace(base, **{name: value, **({"pool": "gap"} if name == "pool_prefix" else {})})
        done = vitrail.convert(build(config), tmp_path / name, to="timm")
        assert not done.tell.keys() - {"position_resample"}, name
