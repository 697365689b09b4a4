"""convert: every pair of formats, the same parameters; what cannot be held or does not read back never appears."""

import json
import random
from pathlib import Path

import numpy as np
import pytest
import torch

import vitrail
from vitrail.cli import main
from vitrail.errors import NumericsError, UsageError
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.variants import build
from vitrail.weights import convert as conversion
from vitrail.weights.card import Card
from vitrail.weights.convert import convert
from vitrail.weights.format import format_named

GOLDEN = Path(__file__).parents[1] / "golden"
SMALL = {"width": 64, "depth": 2, "heads": 1, "mlp_width": 96, "patch_size": 8, "image_size": (32, 32), "classes": 5}
TOKEN = ViTConfig(**SMALL)
TARGETS = ["npz", "timm", "hf", "torchvision", "vitrail"]


def randomised(config, seed=0):
    """Every parameter with a value of its own, so that no two can be mistaken."""
    model = build(config, seed=seed).eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return model


def hashes(model):
    from vitrail.weights.store import hashes_of, weights_of

    return hashes_of(weights_of(model))


# ---- round trips ----


@pytest.mark.parametrize("first", TARGETS)
@pytest.mark.parametrize("second", TARGETS)
def test_every_pair_of_formats_round_trips_to_identical_parameters(first, second, tmp_path):
    model = randomised(TOKEN)
    a = convert(model, tmp_path / "a", to=first)
    b = convert(a.files[0], tmp_path / "b", to=second, **a.tell)
    c = convert(b.files[0], tmp_path / "c", to=first, **b.tell)
    assert a.identical and b.identical and c.identical
    assert vitrail.load_model(c.files[0], **c.tell).card.hashes == hashes(model)
    assert Path(a.files[0]).suffix == Path(c.files[0]).suffix
    if first in ("npz", "vitrail") and first == second:
        assert Path(a.files[0]).read_bytes() == Path(b.files[0]).read_bytes()
    x = torch.randn(1, 3, 32, 32)
    assert torch.equal(vitrail.load_model(c.files[0], activation="gelu_tanh", eps=1e-6)(x), model(x))


def drawn(rng):
    """A random small model, of the kinds that some formats hold and others do not."""
    if rng.random() < 0.15:
        return ResNetConfig(layers=(1, 2), width_factor=0.5, version=rng.choice(["v1", "v2"]), classes=5, image_size=(32, 48))
    heads, square = rng.choice([1, 2]), rng.random() < 0.6
    rows, columns = rng.randint(1, 3), rng.randint(1, 3)
    options = {
        "pool": rng.choice(["token", "token", "gap", "map", "token+gap", "unpooled"]),
        "position": rng.choice(["learned", "learned", "learned", "sincos2d", "learned2d", "none"]),
        "activation": rng.choice(["gelu", "gelu_tanh", "quick_gelu"]),
        "eps": rng.choice([1e-6, 1e-6, 1e-12, 1e-5]),
        "classes": rng.choice([0, 5, 5]),
    }
    rare = {"registers": 2, "layer_scale": 0.5, "qkv_bias": False, "dense_bias": False, "head_bias": False, "fc_norm": True}
    rare |= {"position_class": False, "mlp": "swiglu", "distilled": True, "representation": 24, "norm_pre": True, "qk_norm": True}
    options |= {name: value for name, value in rare.items() if rng.random() < 0.1}
    size = (8 * rows, 8 * (rows if square else columns))
    return ViTConfig(width=heads * 32, heads=heads, depth=2, mlp_width=rng.choice([32, 64]), patch_size=8, image_size=size, **options)


@pytest.mark.parametrize("seed", [2, 6, 11, 12])  # each held by several formats
def test_a_random_model_goes_through_every_pair_of_formats_that_hold_it(seed, tmp_path):
    rng = random.Random(seed)
    while True:
        try:
            model = randomised(drawn(rng), seed)
            break
        except UsageError:  # options that exclude each other
            continue
    x = torch.randn(2, 3, *model.config.image_size)
    held = {}
    for form in ("npz", "big_vision", "timm", "hf", "torchvision", "bit", "bit_paper", "bit_v1", "vitrail"):
        try:
            held[form] = convert(model, tmp_path / form, to=form)
        except UsageError as refusal:
            if "cannot be written as" not in str(refusal):
                raise
    for first, a in held.items():
        for second in held.keys() - {first}:
            b = convert(a.files[0], tmp_path / first / second, to=second, **a.tell)
            c = convert(b.files[0], tmp_path / first / second / "back", to=first, **b.tell)
            again = vitrail.load_model(c.files[0], **c.tell)
            same = again.card.hashes == vitrail.load_model(a.files[0], **a.tell).card.hashes
            assert same or b.folded or c.folded, (first, second, model.config)
            with torch.inference_mode():
                expected = model(x)
                assert float((again(x) - expected).abs().max()) <= 5e-6 * float(expected.abs().max()), (first, second, model.config)


@pytest.mark.parametrize(
    ("folder", "style"), [("g01_vit_token_prelogits", "linen"), ("g01_vit_token_prelogits", "prelinen"), ("b02_bv_vit_map", "scan"),
                          ("b01_bv_vit_sincos_gap_rep", "linen"), ("g04_hybrid_r111_smallres", "linen"), ("r01_bv_bit_v1", None)]
)  # fmt: skip
def test_googles_files_are_written_back_in_every_style(folder, style, tmp_path):
    source = next((GOLDEN / folder).glob("checkpoint*.npz"))
    report = convert(source, tmp_path / "out.npz", to="npz", style=style)
    spelled = vitrail.load_model(source).card.origin.partition(":")[2] or format_named(report.format.partition(":")[0]).styles[0]
    again = convert(report.files[0], tmp_path / "back.npz", to="npz", style=spelled)
    theirs, ours = np.load(source), np.load(again.files[0])
    assert {n.removeprefix("params/") for n in theirs.files} == set(ours.files)
    for name in theirs.files:
        assert np.array_equal(theirs[name].squeeze(), ours[name.removeprefix("params/")].squeeze())


def test_npz_means_the_spelling_that_can_hold_the_model(tmp_path):
    expected = {
        "npz": TOKEN,
        "big_vision": ViTConfig(**SMALL, pool="map"),
        "bit": ResNetConfig(layers=(1,), width_factor=0.5, image_size=32, classes=5),
        "bit_v1": ResNetConfig(layers=(1,), width_factor=0.5, version="v1", image_size=32, classes=5),
    }
    for name, config in expected.items():
        assert convert(randomised(config), tmp_path / name, to="npz").format == name


# ---- folds ----


def test_a_class_position_is_folded_for_big_vision_and_logits_stay(tmp_path):
    model = randomised(TOKEN)
    report = convert(model, tmp_path, to="big_vision")
    assert report.folded == ("the class token's position is added into the class token",)
    assert report.difference < 1e-6
    x = torch.randn(2, 3, 32, 32)
    assert torch.allclose(vitrail.load_model(report.files[0])(x), model(x), atol=1e-5)
    assert "folded" in str(report)


@pytest.mark.parametrize("to", ["npz", "big_vision"])
@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"qkv_bias": False, "head_bias": False}, "biases of zeros for q, k and v"),
        ({"dense_bias": False, "patch_bias": False}, "biases of zeros in the blocks"),
        ({"position": "learned2d"}, "learned2d positions written out"),
        ({"position": "none"}, "a table of zeros"),
        ({"position": "none", "pool": "gap"}, "a table of zeros"),
    ],
)
def test_what_google_lacks_is_folded_and_named(to, options, said, tmp_path):
    model = randomised(ViTConfig(**SMALL, **options))
    report = convert(model, tmp_path, to=to)
    assert any(said in fold for fold in report.folded)
    x = torch.randn(2, 3, 32, 32)
    assert torch.allclose(vitrail.load_model(report.files[0], **report.tell)(x), model(x), atol=1e-5)


# ---- the report ----


def test_the_report_says_what_became_of_everything(tmp_path):
    report = convert(
        GOLDEN / "g01_vit_token_prelogits" / "checkpoint_prelinen.npz", tmp_path / "m.npz", to="npz", style="linen", image_size=48
    )
    assert report.origin == "npz:prelinen" and report.format == "npz"
    assert "blocks.0.norm1.weight -> Transformer/encoderblock_0/LayerNorm_0/scale" in report.renamed
    assert "blocks.0.mlp.fc1.weight" in report.reshaped and "blocks.0.norm1.weight" not in report.reshaped
    assert report.resized == ("positions: 4 x 4 -> 6 x 6 (bilinear)",)
    assert report.difference == 0.0 and report.identical  # the new head is zero; features are compared too
    assert json.loads(json.dumps(report.to_dict()))["parameters"] == 46
    assert "byte for byte: yes" in str(report)


def test_what_other_readers_compute_otherwise_is_measured(tmp_path):
    report = convert(randomised(ViTConfig(**SMALL, activation="gelu", eps=1e-5)), tmp_path, to="npz")
    assert report.tell == {"activation": "gelu", "eps": 1e-5}
    assert report.difference == 0.0
    assert 1e-7 < report.difference_by_convention < 1e-1
    assert "activation 'gelu_tanh' instead of 'gelu'" in report.convention


def test_what_a_file_cannot_say_stands_in_tell(tmp_path):
    config = ViTConfig(**{**SMALL, "width": 48, "heads": 6, "image_size": (32, 24)})
    report = convert(randomised(config), tmp_path, to="npz")
    assert report.tell == {"image_size": (32, 24)}
    assert vitrail.load_model(report.files[0], **report.tell).config.image_size == (32, 24)
    with pytest.raises(UsageError, match="the grid of its positions"):
        convert(report.files[0], tmp_path / "again", to="npz")


def test_what_a_card_knows_and_a_file_does_not_is_listed_as_dropped(tmp_path):
    model = randomised(TOKEN)
    model.card = Card(classes=("a", "b", "c", "d", "e"), metrics={"top1": 0.9})
    report = convert(model, tmp_path / "npz", to="npz")
    assert {"card: classes", "card: metrics"} <= set(report.dropped)
    kept = convert(model, tmp_path / "ours", to="vitrail")
    assert kept.dropped == () and vitrail.load_model(kept.files[0]).card.metrics == {"top1": 0.9}


# ---- what must not appear ----


@pytest.mark.parametrize("to", ["npz", "timm", "vitrail"])
def test_a_file_that_does_not_read_back_never_appears(to, tmp_path, monkeypatch):
    model = randomised(TOKEN)
    original = conversion.tensors_for

    def bitten(plan, ours):
        found = original(plan, ours)
        found["blocks.1.mlp.fc2.bias"] = found["blocks.1.mlp.fc2.bias"] + 1e-7
        return found

    monkeypatch.setattr(conversion, "tensors_for", bitten)
    with pytest.raises(NumericsError, match="nothing was written"):
        convert(model, tmp_path / "out", to=to)
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (ViTConfig(**SMALL, registers=2), "registers"),
        (ViTConfig(**SMALL, qk_norm=True), "normalised q and k"),
        (ViTConfig(**SMALL, position="relative"), "relative"),
        (ViTConfig(**SMALL, pool="token+gap"), "concatenated"),
        (ViTConfig(**SMALL, distilled=True), "distillation"),
    ],
)
def test_what_a_format_has_no_place_for_is_refused_with_the_reason(config, why, tmp_path):
    with pytest.raises(UsageError, match=why) as refusal:
        convert(randomised(config), tmp_path / "out", to="npz")
    assert "--to vitrail" in str(refusal.value)
    assert not list(tmp_path.iterdir())
    assert convert(randomised(config), tmp_path / "out", to="vitrail").identical


def test_nothing_is_overwritten_unless_asked(tmp_path):
    model = randomised(TOKEN)
    convert(model, tmp_path, to="timm")
    with pytest.raises(UsageError, match=r"already model\.safetensors, config\.json"):
        convert(model, tmp_path, to="timm")
    assert convert(model, tmp_path, to="timm", overwrite=True).identical


def test_a_wrong_ending_is_refused(tmp_path):
    with pytest.raises(UsageError, match=r"written as \.npz, not \.safetensors"):
        convert(randomised(TOKEN), tmp_path / "m.safetensors", to="npz")


# ---- the command ----


def test_the_command_prints_the_report_and_json(tmp_path, capsys):
    source = str(vitrail.save_model(randomised(TOKEN), tmp_path / "m.safetensors"))
    assert main(["convert", source, str(tmp_path / "m.npz"), "--to", "npz"]) == 0
    assert "agree" in capsys.readouterr().out
    assert main(["convert", source, str(tmp_path / "n.npz"), "--to", "npz", "--image-size", "40x48", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tell"] == {"image_size": [40, 48]}


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["--to", "nzp"], 2, "did you mean 'npz'"),
        (["--to", "npz", "--image-size", "big"], 2, "384x256"),
        (["--to", "npz", "--style", "new"], 2, "no style 'new' of Google's vit_jax is known"),
    ],
)
def test_wrong_arguments_exit_with_2(arguments, code, said, tmp_path, capsys):
    source = str(vitrail.save_model(randomised(TOKEN), tmp_path / "m.safetensors"))
    assert main(["convert", source, str(tmp_path / "out"), *arguments]) == code
    assert said in capsys.readouterr().err


def test_a_missing_source_exits_with_5(tmp_path, capsys):
    assert main(["convert", str(tmp_path / "no.npz"), str(tmp_path / "out"), "--to", "npz"]) == 5
    assert "no such file" in capsys.readouterr().err


def test_the_command_changes_patch_size_and_channels_on_the_way(tmp_path, capsys):
    source = convert(randomised(TOKEN), tmp_path / "source", to="vitrail").files[0]
    assert main(["convert", source, str(tmp_path / "b"), "--to", "vitrail", "--patch-size", "4x8", "--channels", "1", "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["resized"] == ["channels: 3 -> 1", "patch size: 8 x 8 -> 4 x 8 (pseudo-inverse), positions to 8 x 4"]
    model = vitrail.load_model(report["files"][0])
    assert (model.config.patch_size, model.config.channels, model.grid) == ((4, 8), 1, (8, 4))
    assert main(["convert", source, str(tmp_path / "c"), "--to", "vitrail", "--patch-size", "4by8"]) == 2
    assert "'4by8' is no size" in capsys.readouterr().err


def test_a_fresh_head_hides_no_mistake(tmp_path, monkeypatch):
    """Its logits are zero whatever the features are."""
    original = conversion._with

    def swapped(model, tensors):
        return original(model, {**tensors, "norm.bias": tensors["norm.bias"] + 1})

    monkeypatch.setattr(conversion, "_with", swapped)
    with pytest.raises(NumericsError, match="logits differ"):
        convert(build(TOKEN), tmp_path, to="npz")
