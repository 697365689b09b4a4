"""Colours of tokens, neighbours, and maps of a set."""

from __future__ import annotations

import pytest
import torch
from kinds import pictures, small

from vitrail.errors import UsageError
from vitrail.inspect.features import embedding_map, joint_probabilities, neighbours, token_colours


def clusters(each: int = 20, width: int = 16):
    generator = torch.Generator().manual_seed(0)
    centres = torch.randn(3, width, generator=generator) * 4
    labels = torch.arange(3).repeat_interleave(each)
    return centres[labels] + torch.randn(3 * each, width, generator=generator), labels


@pytest.mark.parametrize("kind", ["class token", "registers", "hybrid", "unpooled"])
def test_equal_tokens_have_equal_colours_across_images(kind):
    model = small(kind)
    images = pictures(model, 2)
    colours = token_colours(model, torch.cat([images, images[:1]]))
    assert colours.shape == (3, 3, 5, 3) if kind != "hybrid" else colours.shape[0] == 3
    assert torch.allclose(colours[0], colours[2], atol=1e-9) and not torch.allclose(colours[0], colours[1])
    assert colours.min() >= 0 and colours.max() <= 1


def test_neighbours_are_by_cosine_and_leave_the_image_itself_out():
    features, labels = clusters()
    found, alike = neighbours(features, features * torch.linspace(1, 5, 60)[:, None], k=5, leave_out=torch.arange(60))
    assert (labels[found] == labels[:, None]).all() and not (found == torch.arange(60)[:, None]).any()
    assert (alike.diff(dim=1) <= 0).all() and alike.max() <= 1
    itself, _ = neighbours(features, features, k=1)
    assert torch.equal(itself[:, 0], torch.arange(60))


@pytest.mark.parametrize("method", ["pca", "tsne"])
def test_a_map_keeps_clusters_apart_and_is_the_same_every_time(method):
    features, labels = clusters()
    first, again = embedding_map(features, method=method), embedding_map(features, method=method)
    assert torch.equal(first, again) and first.shape == (60, 2)
    nearest = torch.cdist(first, first).fill_diagonal_(float("inf")).argmin(1)
    assert (labels[nearest] == labels).all()


def test_the_neighbourhoods_of_tsne_have_the_perplexity_asked_for():
    features, _ = clusters()
    p = joint_probabilities(features.double(), 10.0)
    assert p.sum().item() == pytest.approx(1) and torch.allclose(p, p.T)


def test_equal_images_do_not_break_the_map():
    assert torch.isfinite(embedding_map(torch.ones(5, 4))).all()


def test_what_cannot_be_drawn_is_refused():
    with pytest.raises(UsageError, match="did you mean 'tsne'"):
        embedding_map(torch.ones(5, 4), method="t-sne")
    with pytest.raises(UsageError, match="map of 2 images"):
        embedding_map(torch.ones(2, 4))
