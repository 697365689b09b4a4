"""Attention computed again in chunks is the attention the model used, for every kind of model."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kinds import KINDS, pictures, recorded, small

from vitrail.errors import UsageError
from vitrail.inspect.attention import attention_statistics, attention_weights, layers_of
from vitrail.inspect.distance import attention_distance
from vitrail.model.config import ResNetConfig
from vitrail.model.resnet import ResNet


def used_by(model, images):
    """(layers, B, H, T, T): what the kernel computed, MAP's probe left out."""
    with torch.no_grad(), recorded() as weights:
        model.tokens(images)
    return torch.stack(weights)


@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_are_those_the_model_used(kind):
    model = small(kind)
    images = pictures(model)
    used = used_by(model, images)
    assert len(used) == len(layers_of(model)) == 4
    for layer in (0, 3):
        assert torch.allclose(attention_weights(model, images, layer), used[layer], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("at_once", [1, 4, None])
@pytest.mark.parametrize("kind", ["class token", "registers", "relative", "hybrid"])
def test_statistics_in_chunks_equal_the_whole_matrix(kind, at_once):
    model = small(kind)
    images, prefix = pictures(model), model.config.prefix
    patch = tuple(side / cells for side, cells in zip(model.config.image_size, model.config.grid))
    used = used_by(model, images)
    found = attention_statistics(model, images, batch_size=2, rows_at_once=at_once)
    assert found.images == 3
    assert torch.allclose(found.distance, attention_distance(used, model.config.grid, patch, prefix_tokens=prefix), rtol=1e-11)
    assert torch.allclose(found.entropy, -(used * used.log2()).sum(-1).mean((1, 3)), rtol=1e-11)
    assert torch.allclose(found.prefix, used[..., prefix:, :prefix].sum(-1).mean((1, 3)), rtol=1e-11)


def test_statistics_of_a_generator_of_batches_are_those_of_one_batch():
    model = small("class token")
    images = pictures(model, 5)
    together, apart = attention_statistics(model, images), attention_statistics(model, iter([images[:2], images[2:]]), batch_size=1)
    assert torch.allclose(together.distance, apart.distance, rtol=1e-12) and apart.images == 5
    assert len(together.rows()) == 12 and together.rows()[3]["layer"] == "2"


def test_an_axial_model_attends_along_rows_then_columns():
    model = small("axial")
    images = pictures(model)
    rows, columns = model.config.grid
    with torch.no_grad(), recorded() as used:
        model.tokens(images)
    found = attention_statistics(model, images)
    assert found.layers[:3] == ("1 rows", "1 columns", "2 rows")
    assert used[0].shape[-1] == columns and used[1].shape[-1] == rows
    assert torch.allclose(attention_weights(model, images, 1).flatten(0, 1), used[1], rtol=1e-11)
    along = [attention_distance(w[None], grid, (4, 4), prefix_tokens=0)[0] for w, grid in zip(used, [(1, columns), (rows, 1)] * 4)]
    assert torch.allclose(found.distance, torch.stack(along), rtol=1e-11)
    assert found.uniform[0] > found.uniform[1]  # five patches in a row, three in a column


def test_the_model_is_left_as_it_was():
    model = small("class token").train()
    images = pictures(model)
    attention_statistics(model, images)
    assert model.training
    assert not any(module._forward_pre_hooks for module in model.modules())


def test_bf16_attention_stays_near_that_of_float64():
    model = small("class token")
    images = pictures(model)
    exact = attention_statistics(model, images).distance
    rough = attention_statistics(model.bfloat16(), images).distance
    assert (rough - exact).abs().max() < 0.05 * exact.max()


def test_a_convolutional_network_is_refused_in_one_sentence():
    with pytest.raises(UsageError, match="a ResNet has no self-attention"):
        attention_statistics(ResNet(ResNetConfig(layers=(1,), width_factor=0.5)), torch.zeros(1, 3, 224, 224))


def test_a_layer_that_is_not_there_is_refused():
    model = small("class token")
    with pytest.raises(UsageError, match="layer 4 of a model with 4"):
        attention_weights(model, pictures(model), 4)


def test_no_image_is_refused():
    with pytest.raises(UsageError, match="at least one image"):
        attention_statistics(small("gap"), [])


def test_uniform_distance_is_the_mean_over_all_pairs():
    from vitrail.inspect.distance import pixel_distances, uniform_distance

    far = pixel_distances((3, 7), (4, 6))
    assert np.isclose(uniform_distance((3, 7), (4, 6)), far.mean().item(), rtol=1e-12)
    assert np.isclose(uniform_distance((3, 7), (4, 6), prefix_tokens=3), far.sum().item() / (21 * 24), rtol=1e-12)
