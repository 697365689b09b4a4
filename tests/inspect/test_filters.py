"""Principal components of the first layer, against their definition."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from kinds import small
from torch import nn

from vitrail.errors import UsageError
from vitrail.inspect.filters import filters, to_unit
from vitrail.model.config import ResNetConfig
from vitrail.model.resnet import ResNet
from vitrail.model.variants import create_model


def test_components_are_those_of_the_centred_filters():
    model = small("class token")
    found = filters(model, components=10)
    flat = model.patch.weight.detach().permute(0, 2, 3, 1).flatten(1).numpy()
    covariance = np.cov(flat, rowvar=False, bias=True)
    values, vectors = np.linalg.eigh(covariance)
    assert found.raw.shape == (24, 4, 4, 3) and found.components.shape == (10, 4, 4, 3)
    assert np.allclose(found.explained[:20], values[::-1][:20] / values.sum(), rtol=1e-9, atol=1e-12)
    same = np.abs((found.components.flatten(1).numpy() * vectors[:, ::-1][:, :10].T).sum(1))
    assert np.allclose(same, 1, rtol=1e-9)


def test_a_filter_is_drawn_the_way_round_it_sees_the_picture():
    model = small("class token", image_size=(12, 12))
    with torch.no_grad():
        model.patch.weight.zero_()
        model.patch.weight[0, 2, 1, 3] = 1.0  # blue, second row, fourth column
    assert filters(model).raw[0, 1, 3].tolist() == [0, 0, 1]


def test_signs_are_fixed_and_pictures_fill_the_range():
    found = filters(small("gap"))
    flat = found.components.flatten(1)
    assert (flat.gather(1, flat.abs().argmax(1, keepdim=True)) > 0).all()
    unit = to_unit(found.components)
    assert torch.equal(unit.amax((1, 2, 3)), torch.ones(len(unit), dtype=torch.float64))
    assert torch.equal(unit.amin((1, 2, 3)), torch.zeros(len(unit), dtype=torch.float64))
    assert (to_unit(torch.full((1, 2, 2, 3), 4.0)) == 0.5).all()


def test_a_hybrid_and_a_resnet_show_their_first_convolution_as_it_is_used():
    hybrid = filters(small("hybrid"))
    assert hybrid.layer == "first convolution of the hybrid's stem" and hybrid.raw.shape == (32, 7, 7, 3)
    assert torch.allclose(hybrid.raw.mean((1, 2, 3)), torch.zeros((), dtype=torch.float64), atol=1e-9)
    bit = filters(ResNet(ResNetConfig(layers=(1,), width_factor=0.5)).initialise(0))
    assert bit.layer == "first convolution" and bit.raw.shape == (32, 7, 7, 3)


def test_few_components_explain_filters_that_live_in_a_plane():
    model = small("class token")
    with torch.no_grad():
        directions = torch.randn(2, 3 * 16, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
        mix = torch.randn(24, 2, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        model.patch.weight.copy_((mix @ directions).view(24, 3, 4, 4))
    found = filters(model)
    assert found.needed == 2 and found.explained[:2].sum() == pytest.approx(1)


def test_the_paper_shows_28():
    assert len(filters(create_model("Ti/16", classes=0)).components) == 28


def test_something_else_is_refused():
    with pytest.raises(UsageError, match="no patch embedding"):
        filters(nn.Linear(2, 2))
