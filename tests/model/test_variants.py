"""Names, the published parameter counts to the unit, and configurations as dictionaries."""

import dataclasses
import json

import pytest
import torch

from vitrail.errors import UsageError
from vitrail.model.config import AxialConfig, ResNetConfig, ResNetStem, ViTConfig
from vitrail.model.cost import cost_of
from vitrail.model.variants import build, config_for, config_from_dict, config_to_dict, create_model, list_models

# asserted in the unit tests of google-research/vision_transformer, or computed from big_vision's models
PUBLISHED = {
    "Ti/16": 5_717_416,
    "S/32": 22_878_952,
    "S/16": 22_050_664,
    "B/32": 88_224_232,
    "B/16": 86_567_656,
    "B/8": 86_576_872,
    "L/32": 306_535_400,
    "L/16": 304_326_632,
    "L/14": 304_203_752,
    "H/14": 632_045_800,
    "g/14": 1_012_611_432,
    "G/14": 1_844_440_680,
    "B/16@384": 86_859_496,
    "B/32@384": 88_297_192,
    "L/16@384": 304_715_752,
    "L/32@384": 306_632_680,
    "L/16@512": 305_174_504,
    "H/14@518": 633_470_440,
    "R50+ViT-B/16": 98_659_112,
    "R50+ViT-L/32": 328_994_856,
    "R26+ViT-B/32": 101_383_976,
    "R26+ViT-S/32": 36_431_912,
    "R+ViT-Ti/16": 6_337_704,
    "R50x1": 25_549_352,
    "R50x2": 97_988_712,
    "R50x3": 217_319_080,
    "R101x1": 44_541_480,
    "R101x3": 387_934_888,
    "R152x1": 60_185_128,
    "R152x2": 236_335_208,
    "R152x4": 936_533_224,
    "R200x3": 568_633_000,
}
WITHOUT_HEAD = {
    "Ti/16": 5_524_416,
    "S/32": 22_493_952,
    "S/16": 21_665_664,
    "B/32": 87_455_232,
    "B/16": 85_798_656,
    "B/8": 85_807_872,
    "L/32": 305_510_400,
    "L/16": 303_301_632,
    "L/14": 303_178_752,
    "H/14": 630_764_800,
    "g/14": 1_011_202_432,
    "G/14": 1_842_775_680,
}
# 21843 classes behind a tanh layer as wide as the model
PRE_TRAINING = {
    "Ti/16": 9_777_171,
    "S/32": 31_051_347,
    "S/16": 30_223_059,
    "B/32": 104_843_091,
    "B/16": 103_186_515,
    "B/8": 103_195_731,
    "L/32": 328_949_075,
    "L/16": 326_740_307,
    "H/14": 660_385_363,
}
BIT_21843 = {
    "R50x1": 68_256_659,
    "R50x2": 183_382_483,
    "R50x3": 345_399_315,
    "R101x1": 87_248_787,
    "R101x3": 516_015_123,
    "R152x1": 102_892_435,
    "R152x2": 321_728_979,
    "R152x4": 1_107_299_923,
    "R200x3": 696_713_235,
}


def count(name, **options):
    return sum(parameter.numel() for parameter in create_model(name, init=False, **options).parameters())


@pytest.mark.parametrize(("name", "parameters"), PUBLISHED.items())
def test_a_model_has_its_published_number_of_parameters(name, parameters):
    assert count(name) == parameters


def test_without_a_head_and_with_the_pre_training_head():
    assert {name: count(name, classes=0) for name in WITHOUT_HEAD} == WITHOUT_HEAD
    widths = {name: config_for(name).width for name in PRE_TRAINING}
    assert {name: count(name, classes=21_843, representation=widths[name]) for name in PRE_TRAINING} == PRE_TRAINING
    assert {name: count(name, classes=21_843) for name in BIT_21843} == BIT_21843


def test_other_published_counts():
    gap = {name: count(name, pool="gap") for name in ("S/16", "B/16", "S/32", "B/32")}
    assert gap == {"S/16": 22_049_896, "B/16": 86_566_120, "S/32": 22_878_184, "B/32": 88_222_696}
    v1 = {name: count(name, version="v1") for name in ("R50x1", "R101x1", "R152x1")}
    assert v1 == {"R50x1": 25_557_032, "R101x1": 44_549_160, "R152x1": 60_192_808}
    assert count("S/16", pool="gap", position="sincos2d") == 21_974_632
    assert count("S/16", pool="gap", position="sincos2d", representation=384) == 22_122_472
    testing = ViTConfig(width=10, depth=1, heads=2, mlp_width=10)  # the repository's own testing configuration
    assert cost_of(testing).parameters == 21_390


@pytest.mark.parametrize("name", list_models())
def test_every_listed_name_builds_and_its_configuration_survives_json(name):
    config = create_model(name, init=False).config
    assert config_from_dict(json.loads(json.dumps(config_to_dict(config)))) == config


@pytest.mark.parametrize(
    "config",
    [
        ViTConfig(stem=ResNetStem(layers=(1, 2)), patch_size=1, position="relative", registers=4, layer_scale=1e-4),
        AxialConfig(pool="map", image_size=(32, 64), patch_size=(8, 16)),
        ResNetConfig(version="v1", width_factor=0.5, pool_pad="inf"),
    ],
)
def test_a_configuration_of_each_family_survives_json(config):
    again = config_from_dict(json.loads(json.dumps(config_to_dict(config))))
    assert again == config and type(again) is type(config)


def test_names_are_written_in_many_ways():
    assert config_for("ViT-B/16") == config_for("B/16") == config_for(" B/16 ") == config_for("B/16@224")
    assert config_for("B/16@384") == config_for("B/16", image_size=384) == config_for("B/16", image_size=(384, 384))
    assert config_for("S/16x32@224x448").grid == (14, 14)
    assert config_for("BiT-R50x1") == config_for("R50x1")
    assert config_for("R50+B/16") == config_for("R50+ViT-B/16")
    assert config_for("AxialViT-B/16") == config_for("AxialB/16")
    assert config_for("B/28").tokens == 65


def test_rplus_ti_16_has_49_patches_as_its_published_count_says():
    assert config_for("R+ViT-Ti/16").grid == (7, 7)


def test_rectangles_and_channels_go_through():
    for name in ("mu/16x8", "AxialViT-mu/16x8"):
        model = create_model(name, image_size=(64, 48), channels=5, classes=3)
        assert model.grid == (4, 6)
        assert model(torch.randn(2, 5, 64, 48)).shape == (2, 3)
    assert create_model("R50x1", width_factor=0.5, layers=(1, 1), channels=1, classes=3)(torch.randn(2, 1, 40, 56)).shape == (2, 3)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("B/15", {}, "does not divide"),
        ("Q/16", {}, "no model is called 'Q/16'"),
        ("R51x1", {}, "no model is called"),
        ("R50+ViT-B/8", {}, "no model is called"),
        ("B/16@", {"image_size": 100}, "use a multiple of 16, for example 96"),
        ("B/16@4y", {}, "no model is called"),
        ("B/16", {"dept": 3}, "did you mean 'depth'"),
        ("ViT-B_16", {}, "did you mean 'B/16'"),
        ("vit-ti/16", {}, "did you mean 'Ti/16'"),
        ("R50x1", {"depth": 3}, "no option 'depth'"),
        ("B/16", {"pool": "mean"}, "pool='mean'"),
        ("B/16", {"heads": 5}, "does not divide into heads"),
        ("B/16", {"pool": "token", "class_token": False}, "reads the class token"),
        ("B/16", {"dropout": 1.0}, "not a rate"),
        ("B/16", {"position": "relative", "position_at": "every"}, "nothing to add"),
        ("AxialViT-B/16", {"pool": "token"}, "no class token"),
        ("AxialViT-B/16", {"position": "relative"}, "at the stem"),
        ("R50x1", {"width_factor": 0.3}, "group"),
    ],
)
def test_what_cannot_be_is_refused_by_name(name, options, says):
    with pytest.raises(UsageError) as caught:
        create_model(name, init=False, **options)
    assert says in str(caught.value)


def test_a_dictionary_of_another_making_is_refused():
    with pytest.raises(UsageError, match="no family"):
        config_from_dict({"family": "mixer"})
    with pytest.raises(UsageError, match="no option"):
        config_from_dict({"family": "vit", "__class__": "os.system"})


def test_a_model_without_values_is_on_the_meta_device():
    model = build(config_for("mu/16"), init=False)
    assert {parameter.device.type for parameter in model.parameters()} == {"meta"}


def test_configurations_are_frozen():
    with pytest.raises(dataclasses.FrozenInstanceError):
        config_for("B/16").width = 3
