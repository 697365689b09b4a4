"""`vtab` from fabricated TFDS folders to the score: rules, resume, absence."""

import importlib.util
import json
from pathlib import Path

import numpy as np
import pytest

from vitrail.cli import main
from vitrail.data.encode import encode_png
from vitrail.data.vtab import TASKS, find_task
from vitrail.errors import DataError, UsageError
from vitrail.model.variants import create_model
from vitrail.train import vtab as room
from vitrail.train.vtab import recipe_for, vtab
from vitrail.weights.store import save_model

_spec = importlib.util.spec_from_file_location("records", Path(__file__).parents[1] / "data" / "records.py")
records = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(records)

QUICK = ("train.steps=3", "train.batch_size=16", "schedule.warmup_steps=0", "train.sure=true", "train.log_every_steps=3")


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "m.safetensors"
    save_model(create_model("mu/8", classes=3, image_size=16), path)
    return str(path)


def bar(level, axis):
    """A bright bar, so that a classifier has something to see."""
    image = np.zeros((16, 16, 3), np.uint8)
    image[level : level + 2] = 255
    return encode_png(image if axis == 0 else image.transpose(1, 0, 2))


@pytest.fixture(scope="module")
def root(tmp_path_factory):
    """Two tasks: DTD, with 47 classes, and Camelyon, with 2; small test splits."""
    base = tmp_path_factory.mktemp("tfds")
    for name, version, classes in (("dtd", "3.0.1", 47), ("patch_camelyon", "2.0.0", 2)):
        made = lambda count, classes=classes: [{"image": bar(k % classes % 14, classes % 2), "label": k % classes} for k in range(count)]
        splits = {"train": [made(500), made(400)], "validation": [made(210)], "test": [made(94)]}
        records.write_tfds(base / name / version, name, splits, {"label": list(map(str, range(classes)))})
    return str(base)


def test_every_task_has_the_papers_setting(weights):
    from vitrail.weights.load import load_model

    model = load_model(weights)
    for task in TASKS:
        recipe = recipe_for(task, weights, model.config, model.card.transform(), f"vtab:{task.name}", 384, seed=2)
        assert (recipe.optim.name, recipe.optim.lr, recipe.optim.momentum, recipe.optim.clip_norm) == ("sgd", 0.01, 0.9, 1.0)
        assert (recipe.total_steps(), recipe.train.batch_size, recipe.schedule.decay, recipe.optim.weight_decay) == (
            2500,
            512,
            "cosine",
            0.0,
        )
        assert recipe.model.image_size == (384, 384) and recipe.model.new_head and recipe.train.seed == 2
        assert recipe.data.train_split == "train" and recipe.data.eval_mode == "squash"
        assert recipe.augment.flip == (0.5 if task.flip else 0.0)
        assert (recipe.data.crop, recipe.data.crop_resize) == (("resize_crop", 448) if task.crop else ("resize", None))
        assert recipe.data.crop_squash


def test_the_size_is_raised_as_the_paper_does_where_it_was_pretrained_small():
    from vitrail.model.variants import config_for

    sizes = {"B/16": (384, 384), "L/32": (384, 384), "B/16@384": (384, 384), "H/14": (378, 378)}
    assert {name: room.paper_size(config_for(name)) for name in sizes} == sizes


def test_runs_are_named_after_their_weights():
    names = {"B16.npz": "B16", "hub/x/L16.safetensors": "L16", "runs/photos/best.safetensors": "photos"}
    assert {name: room.short_name(name) for name in names} == names


def test_tasks_are_tuned_measured_listed_and_not_done_twice(weights, root, tmp_path, monkeypatch):
    said = []
    options = {"root": root, "out": tmp_path / "run", "overrides": QUICK, "device": "cpu", "progress": False, "say": said.append}
    score = vtab(weights, **options)
    assert [run.task for run in score.runs] == ["dtd", "camelyon"] and all(run.official and run.images == 94 for run in score.runs)
    assert len(score.absent) == 17 and all("TFDS" in reason for reason in score.absent.values())
    assert score.mean() is None and score.mean("natural") is None
    assert score.partial().value == pytest.approx(np.mean([run.top1.value for run in score.runs]))
    assert "not a VTAB score" in str(score) and "2 of 19" in str(score) and "train.steps=3" in str(score)
    assert not list((tmp_path / "run").rglob("*.safetensors"))  # weights go when they were measured
    monkeypatch.setattr(room, "train", lambda *a, **k: pytest.fail("trained again"))
    again = vtab(weights, **options)
    assert again.to_dict() == score.to_dict()
    with pytest.raises(UsageError, match="another --out"):
        vtab(weights, **{**options, "overrides": (*QUICK, "optim.lr=0.1")})


def test_an_interrupted_score_goes_on_with_the_task_that_is_next(weights, root, tmp_path, monkeypatch):
    options = {"root": root, "out": tmp_path, "overrides": QUICK, "device": "cpu", "progress": False}
    whole, begun = room.train, []

    def stops(recipe, folder, **kwargs):
        begun.append(folder.parent.name)
        if len(begun) == 2:
            raise KeyboardInterrupt
        return whole(recipe, folder, **kwargs)

    monkeypatch.setattr(room, "train", stops)
    with pytest.raises(KeyboardInterrupt):
        vtab(weights, **options)
    score = vtab(weights, **options)
    assert begun == ["dtd", "camelyon", "camelyon"] and len(score.runs) == 2


def test_a_setting_can_be_chosen_without_the_test_images(weights, root, tmp_path, monkeypatch):
    seen = []
    whole = room.train
    monkeypatch.setattr(room, "train", lambda recipe, *a, **k: (seen.append(recipe.data.train_split), whole(recipe, *a, **k))[1])
    options = {"root": root, "out": tmp_path, "overrides": QUICK, "device": "cpu", "progress": False, "tasks": ["camelyon"]}
    score = vtab(weights, dev=True, **options)
    assert seen == ["train800"] and score.runs[0].images == 200 and "no test image" in str(score)
    with pytest.raises(UsageError, match="another --out"):
        vtab(weights, **options)


def test_frozen_features_give_a_score_in_moments(weights, root, tmp_path, capsys):
    arguments = [
        "vtab",
        weights,
        "--root",
        root,
        "--linear",
        "--out",
        str(tmp_path / "o"),
        "--device",
        "cpu",
        "--workers",
        "0",
        "--no-cache",
    ]
    assert main([*arguments, "--quiet"]) == 0
    text = capsys.readouterr().out
    assert "camelyon" in text and "absent" in text
    assert main([*arguments, "--json", "--tasks", "camelyon"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert list(body["tasks"]) == ["camelyon"] and body["tasks"]["camelyon"]["value"] == 1.0  # the bar tells
    assert body["mean"] is None and body["runs"][0]["images"] == 94


def test_data_that_were_asked_for_by_name_have_to_be_here(weights, root, tmp_path):
    with pytest.raises(DataError, match="svhn"):
        vtab(weights, root=root, tasks=["svhn"], out=tmp_path)
    with pytest.raises(DataError, match="none of the 19"):
        vtab(weights, root=str(tmp_path / "nothing"), out=tmp_path)
    with pytest.raises(UsageError, match="cifar100"):
        vtab(weights, root=root, tasks=["cifar1000"], out=tmp_path)
    with pytest.raises(UsageError, match="no recipe"):
        vtab(weights, root=root, linear=True, overrides=["optim.lr=1"], out=tmp_path)


def test_a_task_without_its_test_files_is_absent_before_anything_is_trained(weights, root, tmp_path):
    import shutil

    base = tmp_path / "tfds"
    shutil.copytree(root, base)
    (base / "dtd" / "3.0.1" / "dtd-test.tfrecord-00000-of-00001").unlink()
    score = vtab(weights, root=str(base), linear=True, out=tmp_path / "o", device="cpu", workers=0, cache=False)
    assert "00000-of-00001 of test is missing" in score.absent["dtd"] and [run.task for run in score.runs] == ["camelyon"]


def test_another_copy_is_measured_and_says_that_it_is_not_official(weights, tmp_path):
    rng = np.random.default_rng(0)
    for split, count in (("train", 520), ("test", 5)):
        for name in ("no", "yes"):
            (tmp_path / "d" / split / name).mkdir(parents=True)
            for k in range(count):
                (tmp_path / "d" / split / name / f"{split}-{name}-{k}.png").write_bytes(
                    encode_png(rng.integers(255, size=(8, 8, 3), dtype=np.uint8))
                )
    score = vtab(
        weights, tasks=["patch_camelyon"], elsewhere={"camelyon": str(tmp_path / "d")}, linear=True, out=tmp_path / "o", device="cpu",
        workers=0, cache=False,
    )  # fmt: skip
    assert not score.official and score.runs[0].images == 10 and "not comparable" in str(score)
    assert find_task("patch_camelyon").name == score.runs[0].task
