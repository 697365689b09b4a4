"""A model's card as a README: what is known is said, what is not known is said to be unknown."""

import json

import pytest
import torch
from PIL import Image

from vitrail.commands.card import command
from vitrail.model.config import ResNetConfig, ViTConfig
from vitrail.model.variants import build, config_to_dict
from vitrail.ship.readme import UNSAID, render, write_readme
from vitrail.weights.card import Card, card_of
from vitrail.weights.store import save_model

CONFIG = ViTConfig(width=32, depth=1, heads=2, mlp_width=64, patch_size=8, image_size=32, classes=3)
TOLD = Card(
    name="pets-small",
    model=config_to_dict(CONFIG),
    classes=("cat", "dog", "newt"),
    license="apache-2.0",
    data="3,000 photographs of pets",
    metrics={"top1": 91.25, "interval": {"low": 90.1, "high": 92.3}},
    recipe={"steps": 500},
    notes=("Trained for a test",),
)


@pytest.fixture
def model():
    made = build(CONFIG, seed=0)
    made.card = TOLD
    return made


def test_the_card_is_told_in_full(model):
    text = render(card_of(model))
    for said in ("# pets-small", "3,000 photographs of pets", "| top1 | 91.25 |", "| interval.low | 90.1 |", "2. newt", '"steps": 500',
                 "Trained for a test.", "## Limits", "## What it costs", "32 x 32"):  # fmt: skip
        assert said in text, said
    parameters = sum(p.numel() for p in model.parameters())
    assert f"| parameters | {parameters:,} |" in text


def test_the_front_matter_is_what_a_hub_reads(model):
    import yaml  # comes with huggingface_hub

    front = yaml.safe_load(render(card_of(model), library="timm").split("---")[1])
    assert front["license"] == "apache-2.0" and front["library_name"] == "timm" and front["pipeline_tag"] == "image-classification"


def test_what_nobody_said_is_not_left_out():
    made = build(CONFIG, seed=0)
    made.card = Card(name="plain", model=config_to_dict(CONFIG))
    text = render(card_of(made))
    assert text.count(UNSAID) == 3, "data, measurements and classes"
    assert "license" not in text.split("---")[1]


@pytest.mark.parametrize("config", [CONFIG, ResNetConfig(layers=(1,), width_factor=0.5, image_size=(32, 32), classes=4)])
def test_figures_lie_beside_the_readme_and_are_shown_in_it(config, tmp_path):
    made = build(config, seed=0)
    with torch.no_grad():
        made.head.weight.normal_(generator=torch.Generator().manual_seed(0))
    written = write_readme(made, tmp_path)
    assert written.figures == (("filters.png", "positions.png") if isinstance(config, ViTConfig) else ("filters.png",))
    for name in written.figures:
        assert f"]({name})" in written.path.read_text()
        assert Image.open(tmp_path / name).size[0] > 50


def test_the_command_prints_the_readme_or_the_card_and_writes_where_it_is_told(model, tmp_path):
    from click.testing import CliRunner

    weights = tmp_path / "m.safetensors"
    save_model(model, weights, card=TOLD)
    run = lambda *arguments: CliRunner().invoke(command, [str(weights), *arguments], catch_exceptions=False).output
    assert "# pets-small" in run()
    assert json.loads(run("--json"))["classes"] == ["cat", "dog", "newt"]
    run("--out", str(tmp_path / "CARD.md"), "--no-figures")
    assert "pets-small" in (tmp_path / "CARD.md").read_text() and not (tmp_path / "filters.png").exists()
