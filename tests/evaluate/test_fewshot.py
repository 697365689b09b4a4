"""`fewshot` end to end: case f01 through the verb, and a model on data without features made for it."""

import json
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.source import open_source
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.features import Features
from vitrail.evaluate.fewshot import fewshot
from vitrail.model.variants import create_model
from vitrail.weights.card import card_of

GOLDEN = Path(__file__).parent.parent / "golden" / "fewshot"
CASE = json.loads((GOLDEN / "f01.json").read_text())
DATA = "builtin:shapes?n=120&test=60&size=32&classes=3"


def as_features(x, y, classes):
    return Features(x.astype(np.float32), y.astype(np.int64), np.arange(len(y)), tuple(map(str, range(classes))))


@pytest.fixture(scope="module")
def model():
    made = create_model("mu/16", classes=3, image_size=32)
    made.card = card_of(made, name="tiny")
    return made.eval()


def test_every_prediction_and_accuracy_of_case_f01():
    arrays = np.load(GOLDEN / "f01.npz")
    train = as_features(arrays["train_features"], arrays["train_labels"], 7)
    test = as_features(arrays["test_features"], arrays["test_labels"], 7)
    result = fewshot(train=train, test=test, shots=(1, 5, 10), seeds=(0, 1, 2), l2=(1024.0, 1.0), keep_predictions=True, device="cpu")
    assert len(result.runs) == len(CASE["results"]) == 18
    for row in CASE["results"]:
        run = next(r for r in result.runs if (r.shots, r.seed, r.l2) == (row["shots"], row["seed"], row["l2_reg"]))
        assert (run.predictions == arrays[f"pred_shots{run.shots}_seed{run.seed}_l2{int(run.l2)}"]).all()
        assert run.accuracy.value == pytest.approx(row["acc_float64"])
        assert run.train_images == row["n"]
    seeds = [row["acc_float64"] for row in CASE["results"] if row["shots"] == 5 and row["l2_reg"] == 1024]
    assert result.mean(5).value == pytest.approx(np.mean(seeds))
    assert json.loads(json.dumps(result.to_dict()))["test_images"] == 300


def test_a_model_on_data_sees_only_the_images_that_are_drawn(model, tmp_path, monkeypatch):
    from vitrail.evaluate import features as room

    seen = []
    extract = room.extract_features
    monkeypatch.setattr(room, "extract_features", lambda m, s, **o: (seen.append(len(s)), extract(m, s, **o))[1])
    result = fewshot(model, DATA, shots=(1, 4), seeds=(0, 1), cache=tmp_path, workers=0, device="cpu")
    assert seen[0] == 60 and seen[1] <= 2 * 4 * 3
    whole = extract(model, open_source(DATA, "train"), cache=False, workers=0, view="paper", device="cpu")
    test = extract(model, open_source(DATA, "test"), cache=False, workers=0, view="paper", device="cpu")
    direct = fewshot(train=whole, test=test, shots=(1, 4), seeds=(0, 1), device="cpu")
    assert [r.accuracy.value for r in result.runs] == [r.accuracy.value for r in direct.runs]
    assert "2 seeds" in str(result)


def test_drawn_images_that_cannot_be_read_are_left_out_and_counted(model):
    from vitrail.data.encode import encode_png

    rng = np.random.default_rng(0)
    files = [encode_png(rng.integers(255, size=(32, 32, 3), dtype=np.uint8)) for _ in range(40)]
    files[3] = b""
    source = open_source((files, np.arange(40) % 2), classes=("a", "b"))
    result = fewshot(model, source, shots=(20,), seeds=(0,), cache=False, workers=0, device="cpu")
    assert result.runs[0].train_images == 39
    assert any("1 drawn training images" in note for note in result.notes)


def test_small_classes_several_labels_and_nonsense_are_told(model):
    few = fewshot(model, "builtin:shapes?n=9&test=9&size=32&classes=3", shots=(25,), seeds=(0,), cache=False, workers=0, device="cpu")
    assert any("fewer than 25" in note for note in few.notes)
    with pytest.raises(DataError, match="several labels"):
        fewshot(model, "builtin:shapes?n=20&size=32&classes=3&multilabel=1", cache=False, workers=0)
    with pytest.raises(UsageError):
        fewshot(model, DATA, shots=(0,))


def test_features_that_separate_are_separated():
    rng = np.random.default_rng(0)
    y = np.arange(90) % 3
    x = np.eye(3)[y] @ rng.normal(size=(3, 16)) * 4 + rng.normal(size=(90, 16)) * 0.1
    result = fewshot(train=as_features(x, y, 3), test=as_features(x, y, 3), shots=(1, 5), device="cpu")
    assert all(run.accuracy.value == 1.0 for run in result.runs)
