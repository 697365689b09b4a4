"""The paper's choice of a learning rate: on images held out of training, then on all of them."""

import json
import socket

import pytest
import torch

from vitrail.cli import main
from vitrail.config import from_dict
from vitrail.errors import NumericsError, UsageError
from vitrail.model.variants import create_model
from vitrail.train.sweep import splits_for, sweep
from vitrail.weights.load import load_model
from vitrail.weights.store import save_model

DATA = "builtin:shapes?n=80&size=32&classes=4&test=16"


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def recipe(data=None, **sections):
    table = {
        "name": "tiny",
        "model": {"name": "mu/8", "image_size": [32, 32], "options": {"depth": 1}},
        "data": {"train": DATA, "workers": 0, "resident": False, **(data or {})},
        "eval": {"metric": "loss"},
        "train": {"batch_size": 16, "steps": 4, "log_every_steps": 2},
    }
    return from_dict({**table, **sections})


def run(out, grid=("1.0", "0.003"), **options):
    return sweep(recipe(), out, grid={"optim.lr": grid}, dev_percent=10, device="cpu", progress=False, **options)


def of_run(path):
    return json.loads((path / "run.json").read_text())


def test_the_best_point_is_trained_on_all_images_and_measured_on_others(tmp_path):
    result = run(tmp_path, seeds=2)
    one, three = result.trials
    assert result.best == three and three.value < one.value
    assert (three.images, result.finals[0].images) == (8, 16)
    trial, final = of_run(tmp_path / "trials/optim.lr=0.003"), of_run(tmp_path / "final/optim.lr=0.003/seed-1")
    assert trial["data"]["examples"] == 72 and trial["data"]["held_out"]["split"] == "train[90%:]"
    assert final["data"]["examples"] == 80 and final["data"]["held_out"]["split"] == "test" and final["seed"] == 1
    assert result.finals[0].value != result.finals[1].value
    assert result.mean.value == pytest.approx(sum(result.values) / 2) and result.deviation > 0
    assert result.weights.is_file() and not list((tmp_path / "trials").rglob("*.safetensors"))
    text = str(result)
    assert "* optim.lr=0.003" in text and "over 2 seeds" in text and f"vitrail inspect {result.weights}" in text
    assert json.loads(json.dumps(result.to_dict()))["best"]["point"] == {"optim.lr": 0.003}


def test_what_is_known_is_not_trained_again_and_a_longer_grid_adds_to_it(tmp_path):
    first = run(tmp_path, seeds=1)
    again = run(tmp_path, grid=("1.0", "0.003", "0.01"), seeds=1)
    assert again.trials[:2] == first.trials and len(again.trials) == 3
    with pytest.raises(UsageError, match=r"another recipe.*\n.*train.steps"):
        sweep(recipe(train={"batch_size": 16, "steps": 5}), tmp_path, grid={"optim.lr": (0.1,)}, dev_percent=10, device="cpu")
    with pytest.raises(UsageError, match="splits"):
        sweep(recipe(), tmp_path, grid={"optim.lr": (0.1,)}, dev_percent=20, device="cpu")


def test_a_point_that_is_not_finite_loses_and_is_written_down(tmp_path):
    result = run(tmp_path, grid=("1e30", "0.003"), seeds=0)
    assert result.best.point == {"optim.lr": 0.003} and result.trials[0].value is None and "step" in result.trials[0].failed
    assert "failed" in str(result) and result.finals == ()
    with pytest.raises(NumericsError, match="None of 1 points"):
        run(tmp_path / "other", grid=("1e30",), seeds=0)


def test_a_winner_at_the_end_of_the_grid_says_that_it_was_too_short(tmp_path):
    result = run(tmp_path, grid=("1.0", "0.1", "0.003"), seeds=0)
    assert any("smallest of the grid" in note for note in result.notes)


def test_a_sweep_killed_anywhere_goes_on_to_the_same_end(tiny, tmp_path):
    def command(out):
        keys = ["optim.lr=0.001,0.003", "train.steps=6", "train.save_every_steps=2", "eval.metric=loss"]
        return ["sweep", tiny.recipe, *keys, "--out", out, "--dev-percent", "10", "--seeds", "2", "--json"]

    whole = tiny.warm.run(command(tmp_path / "whole"))
    assert whole.code == 0, whole.text
    for point, code in (("step.done:3=kill", -9), ("step.done:8=kill", -9), ("step.done:3=term", 75), ("finish.before:1=kill", -9)):
        done = tiny.warm.run(command(tmp_path / "run"), env={"VITRAIL_FAULT": point})
        assert done.code == code, done.text
    assert tiny.warm.run(command(tmp_path / "run")).code == 0
    ours, theirs = (json.loads((tmp_path / name / "sweep.json").read_text()) for name in ("run", "whole"))
    value = lambda book: {name: trial["value"] for part in ("trials", "finals") for name, trial in book[part].items()}
    assert value(ours) == value(theirs) and len(value(ours)) == 4


@pytest.mark.parametrize(
    ("data", "percent", "said"),
    [
        ({}, 2.0, ("train[:98%]", "train[98%:]", "train", "test")),
        ({}, 0.0, ("train[:90%]", "train[90%:]", "train", "test")),  # by the size of the data
        (
            {"eval_split": "train[50%:]", "train_split": "train[:50%]"},
            10.0,
            ("train[:50%][:90%]", "train[:50%][90%:]", "train[:50%]", "train[50%:]"),
        ),
    ],
)
def test_nothing_that_is_reported_was_chosen_by(data, percent, said):
    splits = splits_for(recipe(data), percent)
    assert (splits.search, splits.dev, splits.train, splits.test) == said


def test_images_without_a_test_set_hold_one_out(tmp_path):
    from PIL import Image

    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(20):
            Image.new("RGB", (8, 8), (i, 0, 0)).save(tmp_path / name / f"{i}.png")
    splits = splits_for(recipe({"train": str(tmp_path)}), 10.0)
    assert (splits.train, splits.test) == ("train[:90%]", "train[90%:]") and splits.dev == "train[:90%][90%:]"


def test_nothing_to_choose_between_is_a_usage_error(tmp_path, capsys):
    assert main(["sweep", "fashion-quick", "--out", str(tmp_path / "run")]) == 2
    assert "optim.lr=0.003,0.01,0.03" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_weights_and_pictures_alone_are_swept_over_the_rates_of_table_4(tmp_path, capsys):
    path = save_model(create_model("mu/16", classes=7, image_size=32, depth=1), tmp_path / "mu.safetensors")
    arguments = ["sweep", "--model", str(path), "--data", DATA, "data.workers=0", "train.batch_size=16", "--steps", "2", "--seeds", "1"]
    assert main([*arguments, "--out", str(tmp_path / "run"), "--quiet", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rates = [trial["point"]["optim.lr"] for trial in told["trials"]]
    assert len(rates) == 4 and [rate / rates[0] for rate in rates] == pytest.approx([1, 3, 10, 30])
    assert told["splits"]["dev"] == "train[90%:]" and told["splits"]["test"] == "test" and told["finals"][0]["images"] == 16
    assert load_model(told["weights"]).card.classes == ("circle", "square", "triangle", "cross")


def test_two_ranks_share_every_run_of_a_sweep(tiny, tmp_path):
    command = [
        "sweep",
        tiny.recipe,
        "optim.lr=0.001,0.003",
        "train.steps=3",
        "--seeds",
        "1",
        "--dev-percent",
        "25",
        "--out",
        tmp_path / "run",
    ]
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    where = {"WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [tiny.warm.start(command, env={**where, "RANK": rank, "LOCAL_RANK": rank}) for rank in range(2)]
    done = [child.wait(120) for child in ranks]
    assert [d.code for d in done] == [0, 0], done[0].text
    assert "over 1 seed" in done[0].text and "mean" not in done[1].text
    book = json.loads((tmp_path / "run" / "sweep.json").read_text())
    assert len(book["trials"]) == 2 and len(book["finals"]) == 1
    assert of_run(tmp_path / "run/trials/optim.lr=0.001")["world"] == 2
