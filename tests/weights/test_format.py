"""The interface of formats: how a file finds its origin, and what its shapes cannot say."""

from pathlib import Path

import pytest
import torch

from vitrail.errors import CheckpointError, UsageError
from vitrail.weights.archive import Archive, Entry
from vitrail.weights.format import Overrides, blocks_of, format_named, formats, heads_for, readable, recognise, renamed, shape_of, size_for
from vitrail.weights.sidecar import Sidecar


def declared(shapes):
    entries = {name: Entry(shape, torch.float32) for name, shape in shapes.items()}
    return Archive(Path("file"), "npz", entries, lambda name: torch.zeros(shapes[name]))


EMPTY = declared({})


def test_every_origin_has_a_name_a_title_and_marks():
    assert {"npz", "big_vision", "bit", "bit_paper", "bit_v1", "timm"} <= {form.name for form in formats()}
    for form in formats():
        assert form.title and form.container in ("npz", "safetensors", "pickle") and form.styles


def test_an_unknown_name_gets_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'timm'"):
        format_named("tim")
    with pytest.raises(UsageError) as refusal:
        format_named("pickle")
    assert str(refusal.value).endswith("one of: vitrail, npz, big_vision, bit, bit_paper, bit_v1, timm, hf, torchvision")  # once each


def test_an_unknown_file_is_told_apart_by_its_nearest_origin():
    near = declared(
        {"embedding/kernel": (4, 4, 3, 8), "Transformer/encoderblock_0/x": (8,), "Transformer/posembed_input/pos_embedding": (1, 2, 8)}
    )
    with pytest.raises(CheckpointError, match=r"nearest is Google's vit_jax, but the file lacks .*encoder_norm"):
        recognise(near, Sidecar())
    with pytest.raises(CheckpointError, match="no known origin"):
        recognise(declared({"nothing": (1,)}), Sidecar())


def test_what_a_file_lacks_or_has_too_much_is_named_as_it_would_be_called():
    timm = {"patch_embed.proj.weight": (8, 3, 4, 4), "blocks.0.norm1.weight": (8,)}
    with pytest.raises(CheckpointError, match=r"lacks blocks\.0\.attn\.qkv\.weight, blocks\.0\.mlp\.fc1\.weight, blocks"):
        recognise(declared(timm), Sidecar())
    whole = timm | {f"blocks.0.{name}.weight": (8, 8) for name in ("attn.qkv", "mlp.fc1", "mlp.fc2")}
    with pytest.raises(CheckpointError, match=r"but the file has rope\.freqs, which no such file has"):
        recognise(declared(whole | {"rope.freqs": (4,)}), Sidecar())
    for form in formats():
        assert not any(sign in readable(mark) for mark in form.marks for sign in "^$\\()?|"), form.name


@pytest.mark.parametrize(("width", "said", "heads"), [(768, None, 12), (192, None, 3), (48, 4, 4), (768, 16, 16)])
def test_heads_are_64_wide_unless_said(width, said, heads):
    assert heads_for(EMPTY, width, said) == heads


def test_a_width_that_is_no_multiple_of_64_must_be_told():
    with pytest.raises(CheckpointError, match="no multiple of 64") as refusal:
        heads_for(EMPTY, 80, None)
    assert "heads=" in str(refusal.value)
    with pytest.raises(CheckpointError, match="does not divide"):
        heads_for(EMPTY, 80, 7)


@pytest.mark.parametrize(
    ("positions", "wanted", "said", "expected"),
    [
        (16, None, None, ((32, 32), True)),
        (16, None, (16, 64), ((16, 64), True)),  # the sidecar is believed first
        (12, (24, 32), None, ((24, 32), True)),  # then image_size=, where it fits exactly
        (16, (64, 64), None, ((32, 32), True)),  # a square is a square; it is resampled afterwards
        (12, None, None, ((32, 24), False)),  # the first input settles it
        (None, None, None, ((224, 224), False)),
    ],
)
def test_the_size_of_a_table_of_positions(positions, wanted, said, expected):
    assert size_for(EMPTY, positions, (8, 8), Overrides(image_size=wanted), said) == expected


def test_a_size_that_does_not_fit_an_unknown_grid_is_refused():
    with pytest.raises(CheckpointError, match="12 positions are no square grid"):
        size_for(EMPTY, 12, (8, 8), Overrides(image_size=(64, 64)))


def test_a_view_renames_leaves_out_and_settles_shapes():
    view = renamed(declared({"p/a": (1, 1, 3), "q/b": (2,)}), lambda n: n[2:] if n.startswith("p/") else None, lambda _, s: s[-1:])
    assert view.shapes == {"a": (3,)} and view.read("a").shape == (3,)
    with pytest.raises(CheckpointError, match="the same parameter"):
        renamed(declared({"a/x": (1,), "b/x": (1,)}), lambda n: n[2:])


def test_blocks_are_counted_and_missing_arrays_named():
    assert blocks_of(declared({"b.0.x": (1,), "b.11.x": (1,)}), r"^b\.(\d+)\.") == 12
    assert blocks_of(EMPTY, r"^b\.(\d+)\.") == 0
    with pytest.raises(CheckpointError, match="x is missing"):
        shape_of(EMPTY, "x", 2)
    with pytest.raises(CheckpointError, match="not 2 axes"):
        shape_of(declared({"x": (1,)}), "x", 2)


def test_the_callers_word_goes_over_the_convention():
    assert Overrides(eps=1e-5).over(eps=1e-6, activation="gelu") == {"eps": 1e-5, "activation": "gelu"}
