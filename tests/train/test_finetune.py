"""The practitioner's command from end to end, on a small machine's scale."""

import json
from pathlib import Path

import pytest

from vitrail.cli import main
from vitrail.config import AdaptSpec
from vitrail.evaluate.intervals import wilson
from vitrail.model.variants import create_model
from vitrail.train.finetune import FinetuneResult, finetune
from vitrail.train.proposal import Wishes
from vitrail.weights.load import load_model
from vitrail.weights.store import save_model

DATA = "builtin:shapes?n=240&size=32&classes=3"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "mu.safetensors"
    save_model(create_model("mu/16", classes=7, image_size=32, depth=2), path)
    return str(path)


def run(weights, out, **wishes):
    return finetune(weights, DATA, out=out, wishes=Wishes(steps=12, batch_size=16, **wishes), overrides=["data.workers=0"], progress=False)


def test_weights_and_pictures_become_a_model_a_number_and_a_page(weights, tmp_path, capsys):
    out = tmp_path / "run"
    arguments = ["finetune", "--model", weights, "--data", DATA, "--out", str(out), "--steps", "12", "--batch-size", "16"]
    assert main([*arguments, "data.workers=0", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["images"] == 60 or told["images"] > 0
    assert told["top1"]["low"] <= told["top1"]["value"] <= told["top1"]["high"]
    assert told["linear"] is not None and told["chosen"] == "last"
    model = load_model(told["weights"])
    assert model.card.classes == ("circle", "square", "triangle")
    assert model.card.recipe["optim"]["name"] == "sgd"
    page = (out / "report.html").read_text()
    assert "held-out images" in page and "data:image/png" in page and "src='http" not in page


def test_the_same_call_again_trains_nothing_and_says_the_same(weights, tmp_path):
    first, again = run(weights, tmp_path / "run"), run(weights, tmp_path / "run")
    assert first.accuracy == again.accuracy and first.steps == again.steps


def test_low_rank_updates_leave_a_plain_model(weights, tmp_path):
    result = run(weights, tmp_path / "run", adapt=AdaptSpec(train="lora", lora_rank=2))
    assert "rank-2" in " ".join(result.plan)
    assert not [name for name in load_model(result.weights).state_dict() if "parametrizations" in name]


def test_early_stopping_reports_the_best_weights_on_images_it_did_not_look_at(weights, tmp_path):
    result = run(weights, tmp_path / "run", early_stop=2)
    assert result.chosen == "best" and result.images > 0


@pytest.mark.parametrize(
    ("hits", "linear", "said"),
    [
        (90, 80, "lies above both"),
        (60, 80, "Yours is lower: try"),
        (35, 30, "not surely better than the first"),
        (95, None, "gives 33.0 %"),
    ],
)
def test_a_result_is_held_against_what_the_same_data_gives_without_training(hits, linear, said):
    measured = None if linear is None else wilson(linear, 100)
    result = FinetuneResult(
        "w", "d", Path("run"), wilson(hits, 100), 100, 0, "last", 0.33, measured, 10, 1.0, None, (), None
    )  # fmt: skip
    assert said in result.verdict()
    assert ("try" in result.verdict() or "right" in result.verdict()) == (hits in (60, 35))


def test_the_summary_says_where_everything_is_and_what_to_type_next(weights, tmp_path):
    result = run(weights, tmp_path / "run")
    text = str(result)
    assert str(result.weights) in text and "vitrail predict" in text and "95 % interval" in text
