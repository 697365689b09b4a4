"""BiT's files in their three spellings, against big_vision's and the released PyTorch network's own logits."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.errors import CheckpointError
from vitrail.weights.archive import open_archive
from vitrail.weights.format import Overrides, format_named
from vitrail.weights.load import load_model, plan_for
from vitrail.weights.npz import write_npz
from vitrail.weights.rules import their_tensors

GOLDEN = Path(__file__).parents[1] / "golden"
V1, TF = GOLDEN / "r01_bv_bit_v1", GOLDEN / "r02_bit_paper_tfnames"


def arrays(folder):
    return dict(np.load(folder / "arrays.npz"))


def image(folder):
    return torch.from_numpy(arrays(folder)["input"]).permute(0, 3, 1, 2).contiguous()


def meets(found, folder, name):
    expected = arrays(folder)[name]
    off = np.abs(found.detach().numpy().reshape(expected.shape) - expected).max() / np.abs(expected).max()
    assert off <= json.loads((folder / "case.json").read_text())["tolerance"]["rel"], f"{name}: {off:.1e}"


def stem(model, x):
    return model.root(x[:1]).permute(0, 2, 3, 1)


def test_version_1_gives_big_visions_numbers():
    model = load_model(V1 / "checkpoint.npz")
    meets(model(image(V1)), V1, "expected")
    meets(model.features(image(V1)), V1, "expected_pre_logits")
    meets(stem(model, image(V1)), V1, "expected_stem")
    assert model.card.origin == "bit_v1"


def test_released_files_pad_the_root_pool_with_zeros():
    model = load_model(TF / "checkpoint.npz")
    assert model.config.pool_pad == "zero"
    meets(model(image(TF)), TF, "expected_zero_pad")
    meets(model(image(TF)), TF, "expected_bit_pytorch")


@pytest.mark.parametrize("said", ["inf", "-inf", float("-inf")])
def test_pool_pad_can_be_overridden(said):
    model = load_model(TF / "checkpoint.npz", pool_pad=said)
    meets(model(image(TF)), TF, "expected")
    meets(model.features(image(TF)), TF, "expected_pre_logits")
    meets(stem(model, image(TF)), TF, "expected_stem")


def test_the_epsilon_of_the_group_norms_can_be_overridden(tmp_path):
    import vitrail

    for path in (V1 / "checkpoint.npz", vitrail.save_model(load_model(TF / "checkpoint.npz"), tmp_path / "ours.safetensors")):
        assert load_model(path, eps=1e-3).config.norm_eps == 1e-3


def bit_paper_names(source):
    """The conversion that big_vision does on load, written out by hand."""
    out = {}
    for name, array in source.items():
        name = name.removeprefix("resnet/").replace("head/conv2d", "head")
        if name == "root_block/standardized_conv2d/kernel":
            name = "root_block/conv_root/kernel"
        elif name.startswith("group_norm/"):
            name = name.replace("group_norm", "norm-pre-head")
        elif name.startswith("block"):
            block, unit, letter, *rest = name.split("/")
            n = "abc".index(letter) + 1
            kind = "conv_proj" if rest[0] == "proj" else f"conv{n}" if "conv" in rest[0] else f"gn{n}"
            name = f"{block}/{unit}/{kind}/{rest[-1]}"
        if name.endswith(("gamma", "beta")):
            name = name.replace("gamma", "scale").replace("beta", "bias")
            array = array[None, None, None]
        out[name] = array[0, 0] if name == "head/kernel" else array
    return out


@pytest.mark.parametrize("prefix", ["", "params/", "opt/target/"])
def test_the_names_of_bit_paper_pad_with_minus_infinity(prefix, tmp_path):
    renamed = {prefix + name: array for name, array in bit_paper_names(dict(np.load(TF / "checkpoint.npz"))).items()}
    np.savez(tmp_path / "paper.npz", **renamed)
    model = load_model(tmp_path / "paper.npz")
    assert model.card.origin == "bit_paper" and model.config.pool_pad == "inf"
    meets(model(image(TF)), TF, "expected")
    assert model.card.hashes == load_model(TF / "checkpoint.npz").card.hashes


def test_numbered_scopes_are_the_same_model(tmp_path):
    odd = {n.replace("c/standardized_conv2d/", "c/standardized_conv2d_2/"): a for n, a in np.load(TF / "checkpoint.npz").items()}
    np.savez(tmp_path / "odd.npz", **odd)
    assert load_model(tmp_path / "odd.npz").card.hashes == load_model(TF / "checkpoint.npz").card.hashes


@pytest.mark.parametrize(("folder", "name"), [(V1, "bit_v1"), (TF, "bit"), (TF, "bit_paper")])
def test_each_spelling_is_written_back(folder, name, tmp_path):
    model = load_model(folder / "checkpoint.npz")
    out = tmp_path / "out.npz"
    form = format_named(name)
    assert form.cannot_hold(model.config) == []
    with open(out, "wb") as stream:
        write_npz(stream, their_tensors(form.rules(model.config), dict(model.named_parameters())).items())
    again = load_model(out, pool_pad=model.config.pool_pad)
    assert again.card.origin == name
    assert again.card.hashes == model.card.hashes
    plan = plan_for(open_archive(folder / "checkpoint.npz"), Overrides())
    if plan.format.name == name:
        source, wrote = np.load(folder / "checkpoint.npz"), np.load(out)
        strip = lambda names: {n.removeprefix("params/"): n for n in names}
        assert all(np.array_equal(source[full], wrote[plain]) for plain, full in strip(source.files).items())


def test_a_unit_missing_in_the_middle_is_refused(tmp_path):
    kept = {n: a for n, a in np.load(V1 / "checkpoint.npz").items() if "block2/unit1/" not in n}
    np.savez(tmp_path / "cut.npz", **kept)
    with pytest.raises(CheckpointError, match="missing between"):
        load_model(tmp_path / "cut.npz")


def test_any_image_size_goes():
    model = load_model(V1 / "checkpoint.npz", image_size=96)
    assert model.config.image_size == (96, 96)
    assert model(torch.zeros(1, 3, 70, 50)).shape == (1, 10)
