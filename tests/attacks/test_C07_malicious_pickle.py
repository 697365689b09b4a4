"""C07: a pickle is a program. None of these runs, whatever the file is called; the healthy twins load."""

import argparse
import io
import os
import pickle
import subprocess
import zipfile
from collections import OrderedDict

import numpy as np
import pytest
import torch

from vitrail.errors import CheckpointError
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build
from vitrail.weights.convert import convert
from vitrail.weights.load import load_model


class Call:
    """Pickles as a call of `function` with `arguments`."""

    def __init__(self, function, *arguments):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


class Spoofed(pickle.Pickler):
    """Names what it pickles in protocol 4, where a name is two strings on the stack."""


@pytest.fixture
def canary(tmp_path):
    return tmp_path / "canary"


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """The state dictionary of a small model under timm's names."""
    folder = tmp_path_factory.mktemp("healthy")
    model = build(ViTConfig(width=64, depth=1, heads=1, mlp_width=128, patch_size=8, image_size=16, classes=3))
    convert(model, folder / "timm", to="timm")
    from safetensors.torch import load_file

    return load_file(folder / "timm" / "model.safetensors")


def calls(canary):
    """One program for each way to write a file; the file says which ran."""
    mark = f"open({str(canary)!r}, 'w').close()"
    return {
        "system": Call(os.system, f"touch {canary}"),
        "eval": Call(eval, mark),
        "exec": Call(exec, mark),
        "popen": Call(subprocess.Popen, ["touch", str(canary)]),
        "open": Call(open, str(canary), "w"),
        "torch_load": Call(torch.load, str(canary)),
        "getattr": Call(getattr, os, "system"),
        "namespace": Call(argparse.Namespace, Call(os.system, f"touch {canary}")),
    }


NAMES = ["model.pt", "model.pth", "model.ckpt", "pytorch_model.bin", "model.safetensors", "model.npz", "weights"]


def written(path, content, protocol=2, zipped=True):
    torch.save(content, path, pickle_protocol=protocol, _use_new_zipfile_serialization=zipped)
    return path


@pytest.mark.parametrize("payload", ["system", "eval", "exec", "popen", "open", "torch_load", "getattr", "namespace"])
@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("protocol", [2, 4])
def test_a_program_in_a_torch_file_is_refused_and_does_not_run(payload, zipped, protocol, healthy, tmp_path, canary):
    if payload == "getattr" and not zipped:
        protocol = 4  # a module cannot be pickled otherwise; the call itself is what is tested
    try:
        path = written(tmp_path / "model.pth", {**healthy, "x": calls(canary)[payload]}, protocol, zipped)
    except TypeError:  # modules do not pickle
        path = written(tmp_path / "model.pth", {**healthy, "x": Call(getattr, "os", "system")}, protocol, zipped)
    with pytest.raises(CheckpointError, match="Nothing was loaded and nothing was run") as refusal:
        load_model(path)
    assert "torch.save" in str(refusal.value)  # how to convert it where it is trusted
    assert not canary.exists()


@pytest.mark.parametrize("name", NAMES)
def test_another_name_changes_nothing(name, tmp_path, canary):
    path = tmp_path / name
    path.write_bytes(pickle.dumps(calls(canary)["system"], protocol=2))
    with pytest.raises(CheckpointError):
        load_model(path)
    zipped = written(tmp_path / f"zipped-{name}", {"x": calls(canary)["system"]})
    with pytest.raises(CheckpointError):
        load_model(zipped)
    assert not canary.exists()


def test_old_opcodes_are_seen_too(tmp_path, canary):
    by_hand = {
        "inst": b"(S'touch " + str(canary).encode() + b"'\nios\nsystem\n.",
        "obj": b"(cos\nsystem\nS'touch " + str(canary).encode() + b"'\no.",
        "global": b"cos\nsystem\n(S'touch " + str(canary).encode() + b"'\ntR.",
        # the two strings of a name, fetched back from the memo in another order
        "memo": b"\x80\x04\x8c\x06system\x94\x8c\x05posix\x940h\x01h\x00\x93\x8c"
        + bytes([6 + len(str(canary))])
        + f"touch {canary}".encode()
        + b"\x85R.",
    }
    for name, program in by_hand.items():
        for suffix in ("pth", "bin"):
            path = tmp_path / f"{name}.{suffix}"
            path.write_bytes(program)
            with pytest.raises(CheckpointError):
                load_model(path)
    assert not canary.exists()


def test_a_pickle_inside_an_npz_is_never_opened(tmp_path, canary):
    np.savez(tmp_path / "model.npz", **{"Transformer/encoder_norm/scale": np.array([calls(canary)["system"]], dtype=object)})
    with pytest.raises(CheckpointError, match="Python objects"):
        load_model(tmp_path / "model.npz")
    assert not canary.exists()


def test_a_torchscript_program_is_no_weights(tmp_path):
    with zipfile.ZipFile(tmp_path / "model.pt", "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, protocol=2))
        archive.writestr("archive/code/__torch__.py", "def forward(self): pass")
        archive.writestr("archive/constants.pkl", pickle.dumps((), protocol=2))
    with pytest.raises(CheckpointError, match="TorchScript"):
        load_model(tmp_path / "model.pt")


def test_every_strange_name_is_listed(healthy, tmp_path, canary):
    both = {**healthy, "a": calls(canary)["system"], "b": calls(canary)["popen"]}
    with pytest.raises(CheckpointError, match=r"the pickle calls .*Popen, posix\.system\."):
        load_model(written(tmp_path / "model.pth", both))


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("nest", [lambda s: s, lambda s: {"model": s, "epoch": 3}, lambda s: {"state_dict": OrderedDict(s)}])
def test_the_healthy_twin_loads(nest, zipped, healthy, tmp_path):
    model = load_model(written(tmp_path / "model.pth", nest(healthy), zipped=zipped))
    assert torch.equal(model.norm.weight, healthy["norm.weight"])


def test_training_arguments_in_an_old_file_are_inert(healthy, tmp_path):
    arguments = argparse.Namespace(lr=1e-3, output=io.StringIO and "runs/1")
    model = load_model(written(tmp_path / "model.pth", {"model": healthy, "args": arguments}))
    assert torch.equal(model.cls, healthy["cls_token"])
    assert any("args" in note for note in model.card.notes)
