"""Cosine similarity of position embeddings, for every kind and any grid."""

from __future__ import annotations

import pytest
import torch
from kinds import small

from vitrail.errors import UsageError
from vitrail.inspect.positions import position_similarity


def cosine(a, b):
    return float((a @ b) / (a.norm() * b.norm()))


@pytest.mark.parametrize("position", ["learned", "learned2d", "sincos2d"])
def test_a_tile_holds_the_cosine_with_every_patch_of_a_grid_that_is_not_square(position):
    model = small("class token", position=position)
    found = position_similarity(model)
    vectors = model.position.patches().detach()
    assert found.grid == (3, 5) and found.similarity.shape == (15, 3, 5) and found.queries[7] == (1, 2)
    for query in (0, 7, 14):
        for key in range(15):
            expected = cosine(vectors[query], vectors[key])
            assert found.similarity[query, key // 5, key % 5].item() == pytest.approx(expected, rel=1e-9)
        assert found.similarity[query, query // 5, query % 5].item() == pytest.approx(1)


def test_relative_positions_compare_each_offset_with_none():
    model = small("relative")
    found = position_similarity(model, layer=2)
    table, tokens = model.blocks[2].attention.relative.table.detach(), model.config.tokens
    assert found.tables == 4
    for query, key in [(0, 0), (3, 11), (14, 2)]:
        expected = cosine(table[query - key + tokens - 1], table[tokens - 1])
        assert found.similarity[query, key // 5, key % 5].item() == pytest.approx(expected, rel=1e-9)


def test_every_layer_has_its_own_table_or_all_share_one():
    model = small("positions at every layer")
    first, third = position_similarity(model), position_similarity(model, layer=2)
    assert first.tables == 4 and not torch.allclose(first.similarity, third.similarity)
    assert position_similarity(small("positions shared")).tables == 1
    with pytest.raises(UsageError, match="layer 4 of a model with 4"):
        position_similarity(model, layer=4)


def test_no_positions_are_refused_in_one_sentence():
    with pytest.raises(UsageError, match="bag of patches"):
        position_similarity(small("gap", position="none"))


def test_a_large_grid_shows_some_of_its_patches_spread_over_it():
    found = position_similarity(small("gap", image_size=(64, 128)), tiles=4)
    assert found.similarity.shape == (16, 16, 32)
    assert found.queries[0] == (0, 0) and found.queries[-1] == (15, 31) and found.queries[1] == (0, 10)


def test_scores_tell_a_model_of_rows_from_one_of_columns():
    model = small("class token", position="learned2d", image_size=(24, 24))
    with torch.no_grad():  # columns say nothing: what is left is the row
        model.position.columns.zero_()
    found = position_similarity(model).scores
    assert found["same_row"] == pytest.approx(1) and abs(found["same_column"]) < 0.5 and abs(found["elsewhere"]) < 0.5


def test_sincos_is_smooth_before_any_training():
    found = position_similarity(small("gap", image_size=(32, 32))).scores
    assert found["neighbours"] > found["same_row"] > found["elsewhere"]
