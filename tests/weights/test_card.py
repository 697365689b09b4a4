"""The identity card: a value that survives JSON, tells the preprocessing, and is checked as data."""

import dataclasses

import numpy as np
import pytest
import torch

import vitrail
from vitrail.errors import CheckpointError
from vitrail.model.config import ResNetStem, ViTConfig
from vitrail.model.variants import build, config_to_dict
from vitrail.weights.card import Card, card_of, numerics_of, resized_preprocess

CONFIG = ViTConfig(width=64, depth=1, heads=1, mlp_width=64, patch_size=8, image_size=16, classes=2)
FULL = Card(
    name="n",
    model=config_to_dict(CONFIG),
    origin="npz:prelinen",
    numerics=numerics_of(CONFIG),
    preprocess={"image_size": [16, 16]},
    classes=("a", "b"),
    metrics={"top1": 0.5},
    data="d",
    recipe={"x": {"y": 1}},
    license="MIT",
    notes=("one",),
    hashes={"cls": "00"},
    parents=("p",),
)


def test_a_card_survives_json_and_a_header():
    assert Card.from_dict(FULL.to_dict()).to_dict() == FULL.to_dict()
    assert Card.from_metadata(FULL.to_metadata()).to_dict() == FULL.to_dict()
    assert FULL.to_metadata() == Card.from_metadata(FULL.to_metadata()).to_metadata()
    assert FULL.config == CONFIG


def test_it_is_frozen_and_changes_by_replacing():
    with pytest.raises(dataclasses.FrozenInstanceError):
        FULL.name = "other"
    assert FULL.replace(name="other").name == "other" and FULL.name == "n"


@pytest.mark.parametrize(
    ("table", "why"),
    [
        ({"nam": "x"}, "did you mean 'name'"),
        ({"version": 2}, "reads up to 1"),
        ({"version": "1"}, "version"),
        ({"classes": "abc"}, "classes"),
        ({"metrics": []}, "metrics"),
        ({"recipe": 3}, "recipe"),
        ({"hashes": {"a": 1}}, "hashes"),
        ({"name": None}, "name"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(table, why):
    with pytest.raises(CheckpointError, match=why):
        Card.from_dict(table)


def test_numerics_say_what_moves_digits():
    stem = dataclasses.replace(CONFIG, stem=ResNetStem((1,), width=32), patch_size=(1, 1))
    assert numerics_of(CONFIG) == {"activation": "gelu_tanh", "eps": 1e-6, "position_resample": "bilinear"}
    assert numerics_of(stem)["stem.conv_eps"] == 1e-5


def test_transform_is_the_view_of_the_weights():
    card = FULL.replace(preprocess={"image_size": [16, 24], "mode": "squash", "mean": [0, 0, 0], "std": [1, 1, 1]})
    x = card.transform()(torch.full((5, 7, 3), 255, dtype=torch.uint8).numpy())
    assert x.shape == (3, 16, 24) and torch.allclose(x, torch.ones(()))
    assert FULL.replace(preprocess={}).transform().image_size == (16, 16)


def test_for_training_the_view_cuts_nothing_away():
    card = FULL.replace(preprocess={"image_size": [16, 16], "mode": "shorter_crop", "resize": 20, "mean": [0, 0, 0], "std": [1, 1, 1]})
    assert card.transform().box(40, 40) != (0, 0, 40, 40)
    assert card.transform(training=True).box(40, 40) == (0, 0, 40, 40)
    assert card.transform(training=True).mean == (0, 0, 0)


def test_a_card_follows_its_model_to_another_size_and_head():
    model = build(CONFIG)
    model.card = FULL.replace(preprocess={"image_size": [16, 16], "mode": "shorter_crop", "resize": 18})
    model.resize((32, 32)).reset_head(3)
    card = card_of(model)
    assert card.config == model.config
    assert card.preprocess["image_size"] == [32, 32] and card.preprocess["resize"] == 36
    assert card.classes == ()
    assert card.name == "n"


def test_a_view_that_cannot_follow_falls_back_to_a_plain_resize():
    said = resized_preprocess({"image_size": [16, 16], "mode": "bit", "resize": 16, "mean": [0.5], "std": [0.5], "channels": 1}, (16, 64))
    assert said["image_size"] == [16, 64]


def test_a_model_without_a_card_gets_one():
    card = card_of(build(CONFIG), "fresh")
    assert card.name == "fresh" and card.origin == "vitrail" and card.config == CONFIG


def test_equal_weights_have_one_fingerprint():
    assert Card(hashes={"a": "1", "b": "2"}).fingerprint == Card(name="x", hashes={"b": "2", "a": "1"}).fingerprint
    assert Card(hashes={"a": "1"}).fingerprint != Card(hashes={"a": "2"}).fingerprint


def test_a_fresh_model_of_grey_images_prepares_grey_images():
    model = vitrail.create_model("mu/16", image_size=32, classes=2, channels=1).eval()
    x = model.card.transform()(np.zeros((40, 50, 3), np.uint8))
    assert x.shape == (1, 32, 32) and float(x.max()) == -1.0
    assert model(torch.as_tensor(x)[None]).shape == (1, 2)
