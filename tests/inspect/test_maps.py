"""Maps against their definitions over whole matrices, for every kind of model and every form of computing them."""

from __future__ import annotations

import pytest
import torch
from kinds import KINDS, pictures, recorded, small

from vitrail.errors import UsageError
from vitrail.inspect import attention, maps
from vitrail.inspect.maps import (
    attention_rollout,
    cheapest_form,
    class_attention,
    gradient_rollout,
    reading,
    rollout_whole,
)
from vitrail.inspect.rollout import Fusion, fuse, rollout_matrix


def direct(model, images):
    """Everything a map can be made of, with whole matrices: (layers, B, H, T, T), the reading (B, T)."""
    with torch.no_grad(), recorded() as weights:
        tokens = model.tokens(images)
        layers = torch.stack(weights)
        if model.map is not None:
            model.pool(tokens)  # the last weights recorded are now the probe's
    read = torch.zeros(tokens.shape[:2], dtype=torch.float64)
    first = 0 if model.config.pool_prefix else model.config.prefix
    if model.config.pool == "map":
        read[:, first:] = weights[-1].mean(1)[:, 0]
    if model.config.pool in ("gap", "unpooled", "token+gap"):
        read[:, first:] = 1 / (read.shape[1] - first)
    if model.config.pool == "token+gap":
        read = (read + torch.eye(read.shape[1])[0]) / 2
    if model.config.pool == "token":
        read[:, : 1 + model.config.distilled] = 1 / (1 + model.config.distilled)
    return layers, read


def patches(model, row):
    return row[..., model.config.prefix :].unflatten(-1, model.config.grid)


@pytest.mark.parametrize("form", ["matrix", "kept", "recomputed"])
@pytest.mark.parametrize("kind", KINDS)
def test_rollout_in_every_form_is_the_product_of_whole_matrices(kind, form, monkeypatch):
    monkeypatch.setattr(attention, "CHUNK_BYTES", 2000)  # a few rows at a time
    model = small(kind)
    images = pictures(model)
    layers, read = direct(model, images)
    expected = torch.einsum("bq,bqk->bk", read, rollout_matrix([fuse(layer) for layer in layers]))
    found = attention_rollout(model, images, form=form, batch_size=2)
    assert torch.allclose(found, patches(model, expected), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_maps_of_single_heads_are_the_rows_the_head_of_the_model_reads(kind):
    model = small(kind)
    images = pictures(model)
    layers, read = direct(model, images)
    expected = torch.einsum("bq,lbhqk->blhk", read, layers)
    assert torch.allclose(class_attention(model, images, batch_size=2), patches(model, expected), rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("kind", KINDS)
def test_gradient_rollout_is_that_of_autograd_through_the_weights_themselves(kind):
    model = small(kind)
    images = pictures(model, 2)
    classes = torch.tensor([1, 3])
    _, read = direct(model, images)
    with recorded() as weights:
        logits = model(images)
        logits = logits[:, model.config.prefix :].mean(1) if logits.ndim == 3 else logits
        used = weights[:4]
        slopes = torch.autograd.grad(logits[torch.arange(2), classes].sum(), used)
    row = read
    for weight, slope in zip(reversed(used), reversed(slopes)):
        row = row + torch.einsum("bq,bqk->bk", row, (weight * slope).clamp_min(0).mean(1).detach())
    found = gradient_rollout(model, images, classes, batch_size=1)
    assert torch.allclose(found, patches(model, row - read), rtol=1e-9, atol=1e-12)


def test_gradient_rollout_follows_the_best_class_unless_told():
    model = small("class token")
    images = pictures(model)
    with torch.no_grad():
        best = model(images).argmax(1)
    assert torch.equal(gradient_rollout(model, images), gradient_rollout(model, images, best))
    assert not torch.allclose(gradient_rollout(model, images), gradient_rollout(model, images, (best + 1) % 5))


@pytest.mark.parametrize("form", ["matrix", "kept", "recomputed"])
def test_axial_rollout_equals_its_lines_written_out_as_one_sparse_matrix(form):
    model = small("axial")
    images = pictures(model, 2)
    rows, columns = model.config.grid
    with torch.no_grad(), recorded() as weights:
        model.tokens(images)
    layers = []
    for number, weight in enumerate(weights):
        lines = weight.mean(1).unflatten(0, (2, -1))
        full = torch.zeros(2, rows, columns, rows, columns, dtype=torch.float64)
        for line in range(lines.shape[1]):
            if number % 2 == 0:
                full[:, line, :, line, :] = lines[:, line]
            else:
                full[:, :, line, :, line] = lines[:, line]
        layers.append(fuse(full.flatten(3).flatten(1, 2)[:, None]))
    expected = rollout_matrix(layers).mean(1).unflatten(1, (rows, columns))
    assert torch.allclose(attention_rollout(model, images, form=form), expected, rtol=1e-11)
    assert torch.allclose(class_attention(model, images).sum((3, 4)), torch.ones((), dtype=torch.float64))
    assert gradient_rollout(model, images).shape == (2, rows, columns)


@pytest.mark.parametrize("fusion", [Fusion(heads="max", discard=0.5), Fusion(heads="min"), Fusion(normalise="columns", discard=0.9)])
def test_other_fusions_agree_in_all_forms(fusion):
    model = small("registers")
    images = pictures(model)
    forms = [attention_rollout(model, images, fusion=fusion, form=form) for form in maps.FORMS]
    assert torch.allclose(forms[0], forms[1], rtol=1e-10) and torch.allclose(forms[0], forms[2], rtol=1e-10)


def test_any_token_and_any_patch_can_be_followed():
    model = small("class token")
    images = pictures(model)
    whole = rollout_whole(model, images)
    assert torch.allclose(whole.sum(-1), torch.ones((), dtype=torch.float64))
    assert torch.allclose(attention_rollout(model, images), whole[:, 0, 1:].unflatten(1, (3, 5)), rtol=1e-11)
    assert torch.allclose(attention_rollout(model, images, of=(2, 1)), whole[:, 1 + 2 * 5 + 1, 1:].unflatten(1, (3, 5)), rtol=1e-11)
    with pytest.raises(UsageError, match="patch \\(3, 0\\) of a grid of 3 x 5"):
        attention_rollout(model, images, of=(3, 0))
    with pytest.raises(UsageError, match="token 16 of a sequence of 16"):
        class_attention(model, images, of=16)


def test_what_the_head_reads_sums_to_one():
    for kind in KINDS:
        model = small(kind)
        with torch.no_grad():
            read = reading(model, model.tokens(pictures(model)))
        assert torch.allclose(read.sum(1), torch.ones((), dtype=torch.float64)), kind


def test_the_form_follows_from_the_size():
    assert cheapest_form(12, 8, 197, 768) == "matrix"  # B/16 at 224: 77 thousand numbers against 1.8 million
    assert cheapest_form(12, 1, 4097, 192) == "kept"  # Ti/16 at 1024
    assert cheapest_form(12, 64, 4097, 192) == "recomputed"


def test_a_model_without_a_head_has_rollout_but_no_class_to_explain():
    model = small("class token", classes=0)
    assert attention_rollout(model, pictures(model)).shape == (3, 3, 5)
    with pytest.raises(UsageError, match="no head"):
        gradient_rollout(model, pictures(model))


def test_an_unknown_form_is_refused_with_its_nearest():
    with pytest.raises(UsageError, match="did you mean 'matrix'"):
        attention_rollout(small("gap"), torch.zeros(1, 3, 12, 20), form="matrx")
