"""C11: a head of another size comes only when asked for, and the card says what is loaded, resized and fresh."""

from pathlib import Path

import pytest
import torch

import vitrail

SOURCE = Path(__file__).parents[1] / "golden" / "g01_vit_token_prelogits" / "checkpoint_prelinen.npz"  # 37 classes, a tanh layer


def test_without_being_asked_the_head_stays():
    model = vitrail.load_model(SOURCE)
    assert model.config.classes == 37 and model.config.representation == 48
    assert vitrail.load_model(SOURCE, classes=37).head.weight.abs().sum() > 0


@pytest.mark.parametrize(("asked", "classes"), [({"classes": 100}, 100), ({"new_head": True}, 37), ({"classes": 5, "new_head": True}, 5)])
def test_a_new_head_is_zero_and_the_pre_training_layer_goes(asked, classes):
    model = vitrail.load_model(SOURCE, **asked)
    assert model.head.weight.shape == (classes, 48)
    assert not model.head.weight.any() and not model.head.bias.any()
    assert model.pre_logits is None and model.config.representation is None
    assert model.config.classes == model.card.config.classes == classes


def test_the_card_tells_what_is_resized_and_what_is_fresh():
    notes = vitrail.load_model(SOURCE, classes=100, image_size=48).card.notes
    assert "positions: 4 x 4 -> 6 x 6 (bilinear)" in notes
    assert "head: new, 100 classes (the file has 37)" in notes


def test_everything_but_the_head_is_as_in_the_file():
    plain, new = vitrail.load_model(SOURCE), vitrail.load_model(SOURCE, classes=100)
    for name, tensor in new.named_parameters():
        if not name.startswith("head."):
            assert torch.equal(tensor, plain.get_parameter(name))


def test_no_classes_means_no_head_but_the_same_features():
    x = torch.randn(1, 3, 32, 32)
    plain, bare = vitrail.load_model(SOURCE), vitrail.load_model(SOURCE, classes=0)
    assert torch.equal(bare.features(x), plain.features(x))
    assert torch.equal(bare(x), plain.tokens(x))
