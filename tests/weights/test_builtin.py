"""Any safetensors in weights/builtin is a model in the box: it answers where no weights are named."""

import json
import subprocess
import sys

import numpy as np
import pytest
from click.testing import CliRunner
from PIL import Image

from vitrail.commands import inspect as inspect_command
from vitrail.commands import predict as predict_command
from vitrail.commands import serve as serve_command
from vitrail.errors import UsageError
from vitrail.model.variants import create_model
from vitrail.ship.predict import load_predictors
from vitrail.train.finetune import default_model
from vitrail.weights import hub
from vitrail.weights.card import Card
from vitrail.weights.load import load_model
from vitrail.weights.store import save_model


@pytest.fixture
def photo(tmp_path):
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 52, 3), np.uint8)).save(tmp_path / "photo.jpg")
    return str(tmp_path / "photo.jpg")


@pytest.fixture
def box(tmp_path, monkeypatch):
    """An installation with one packaged model."""
    (tmp_path / "builtin").mkdir()
    monkeypatch.setattr(hub, "BUILTIN", tmp_path / "builtin")
    model = create_model("mu/16", image_size=32, classes=3, seed=0)
    save_model(model, tmp_path / "builtin" / "small.safetensors", card=Card(name="small", classes=("ant", "bee", "cat")))
    return tmp_path


@pytest.fixture
def empty_box(tmp_path, monkeypatch):
    monkeypatch.setattr(hub, "BUILTIN", tmp_path / "nothing")


def test_packaged_weights_load_by_name(box):
    model = load_model("builtin:small")
    assert model.card.name == "small" and model.config.classes == 3
    with pytest.raises(UsageError, match="did you mean 'small'") as error:
        load_model("builtin:smal")
    assert "builtin:small" in error.value.hint


def test_the_packaged_model_answers_where_none_is_named(box, photo):
    assert hub.default_model() == default_model() == "builtin:small", "the default of finetune too"
    assert list(load_predictors([])) == ["small"], "the default of serve"
    done = CliRunner().invoke(predict_command.command, [photo, "--json"], catch_exceptions=False)
    body = json.loads(done.stdout)
    assert {c["class"] for c in body["predictions"][0]["classes"]} == {"ant", "bee", "cat"}
    assert "builtin:small answers" in done.stderr
    out = box / "report"
    CliRunner().invoke(inspect_command.command, ["--images", photo, "--out", str(out), "--count", "1"], catch_exceptions=False)
    assert json.loads((out / "report.json").read_text())["name"] == "small"


def test_the_chosen_default_comes_before_others(box):
    for name in ("a-first", hub.DEFAULT_MODEL.removeprefix("builtin:")):
        (box / "builtin" / f"{name}.safetensors").write_bytes(b"")
    assert hub.default_model() == hub.DEFAULT_MODEL


@pytest.mark.parametrize(
    ("command", "arguments"),
    [(predict_command.command, ["photo.jpg"]), (inspect_command.command, []), (serve_command.command, ["--port", "0"])],
)
def test_with_an_empty_box_one_sentence_says_what_to_name(empty_box, command, arguments):
    error = CliRunner().invoke(command, arguments).exception
    assert isinstance(error, UsageError)
    assert "no weights were named" in error.message and "timm://" in error.hint


def test_asking_for_the_default_loads_no_torch():
    """The parent of `vitrail serve` asks, and stays small."""
    code = "import sys; from vitrail.weights.hub import builtin_names; builtin_names(); sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize(
    "weights", ["timm://vit_tiny_patch16_224", "hf://google/vit-base-patch16-224", "m.safetensors", "builtin:small", "run"]
)
def test_weights_without_images_are_asked_for_images(box, weights, monkeypatch):
    monkeypatch.chdir(box)
    (box / "run").mkdir()
    (box / "run" / "model.safetensors").write_bytes(b"")
    error = CliRunner().invoke(predict_command.command, [weights]).exception
    assert isinstance(error, UsageError) and error.message == f"which images should {weights} answer?"
