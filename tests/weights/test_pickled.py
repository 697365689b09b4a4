"""PyTorch files without running them: nests, prefixes, old formats (attacks are in tests/attacks)."""

import argparse
from collections import OrderedDict

import pytest
import torch
from torch import nn

from vitrail.errors import CheckpointError
from vitrail.weights.pickled import open_pickle

STATE = {"a.weight": torch.randn(2, 3), "a.bias": torch.zeros(2)}


def saved(content, path, **options):
    torch.save(content, path, **options)
    return open_pickle(path)


@pytest.mark.parametrize(
    "content",
    [
        STATE,
        OrderedDict(STATE),
        {"model": STATE, "optimizer": {"lr": 0.1}, "args": argparse.Namespace(lr=0.1)},
        {"teacher": {f"module.backbone.{n}": t for n, t in STATE.items()}, "student": {}},
        {"state_dict": {f"module.{n}": t for n, t in STATE.items()}},
        {n: nn.Parameter(t) for n, t in STATE.items()},
    ],
)
@pytest.mark.parametrize("zipped", [True, False])
def test_weights_are_found_in_the_usual_nests(content, zipped, tmp_path):
    archive = saved(content, tmp_path / "x.pth", _use_new_zipfile_serialization=zipped)
    assert archive.shapes == {"a.weight": (2, 3), "a.bias": (2,)}
    assert torch.equal(archive.read("a.weight"), STATE["a.weight"]) and not archive.read("a.weight").requires_grad


def test_what_is_left_out_is_noted(tmp_path):
    archive = saved({"model": STATE, "optimizer": {}, "epoch": 3}, tmp_path / "x.pth")
    assert archive.notes == ("read from the entry 'model'; left out: optimizer, epoch",)
    mixed = {**{f"backbone.{n}": t for n, t in STATE.items()}, "head.x": torch.zeros(1)}
    assert any("left out: head.x" in note for note in saved(mixed, tmp_path / "y.pth").notes)


@pytest.mark.parametrize("content", [[1, 2], {"model": [1]}, {}, torch.zeros(2), "text"])
def test_what_holds_no_named_tensors_is_refused(content, tmp_path):
    with pytest.raises(CheckpointError, match=r"not a mapping|no tensors"):
        saved(content, tmp_path / "x.pth")


def test_a_whole_module_is_a_program(tmp_path):
    torch.save(nn.Linear(2, 2), tmp_path / "x.pth")
    with pytest.raises(CheckpointError, match=r"the pickle calls .*torch\.nn\.modules\.linear\.Linear"):
        open_pickle(tmp_path / "x.pth")


@pytest.mark.parametrize("cut", [0.1, 0.5, 0.99])
@pytest.mark.parametrize("zipped", [True, False])
def test_a_cut_file_is_refused(cut, zipped, tmp_path):
    torch.save({"x": torch.randn(1000)}, tmp_path / "x.pth", _use_new_zipfile_serialization=zipped)
    data = (tmp_path / "x.pth").read_bytes()
    (tmp_path / "x.pth").write_bytes(data[: int(len(data) * cut)])
    with pytest.raises(CheckpointError):
        open_pickle(tmp_path / "x.pth")


def test_the_file_is_mapped_not_copied(tmp_path):
    torch.save({"x": torch.zeros(4)}, tmp_path / "x.pth")
    x = open_pickle(tmp_path / "x.pth").read("x")
    x.add_(1)  # copy on write
    assert not open_pickle(tmp_path / "x.pth").read("x").any()
