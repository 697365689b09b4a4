"""A model by name comes with a card, so that it can be used, saved and measured like a loaded one."""

import numpy as np
import torch

import vitrail


def test_a_new_model_prepares_its_own_images_and_knows_its_classes(tmp_path):
    model = vitrail.create_model("mu/4", classes=["cat", "dog"], image_size=28)
    assert model.config.classes == 2 and model.card.classes == ("cat", "dog") and model.card.name == "mu/4"
    x = model.card.transform()(np.zeros((50, 40, 3), np.uint8))
    assert x.shape == (3, 28, 28) and torch.all(x == -1), "black is -1 in the paper's range"
    assert model(x[None]).shape == (1, 2)
    again = vitrail.load_model(vitrail.save_model(model, tmp_path / "new.safetensors"))
    assert again.card.classes == ("cat", "dog") and again.card.config == model.config


def test_a_number_of_classes_names_none():
    assert vitrail.create_model("mu/16", classes=3, image_size=32).card.classes == ()
