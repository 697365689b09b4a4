"""`vitrail eval --out`: files that other tools read, from the command line."""

import csv
import json

import numpy as np
import pytest
from PIL import Image

from vitrail.cli import main
from vitrail.data.source import open_source
from vitrail.errors import DataError, ResourceError, UsageError
from vitrail.evaluate.classify import evaluate
from vitrail.weights.store import save_model

DATA = "builtin:shapes?n=60&test=90&size=32&classes=3"


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def weights(shapes_model, tmp_path_factory):
    path = tmp_path_factory.mktemp("weights") / "m.safetensors"
    save_model(shapes_model, path, card=shapes_model.card)
    return str(path)


def test_the_folder_agrees_with_the_figures(weights, tmp_path, capsys):
    out = tmp_path / "out"
    options = ["--out", str(out), "--cache", str(tmp_path / "kept"), "--workers", "0", "--device", "cpu", "--bootstrap", "50"]
    assert main(["eval", weights, "--data", DATA, "--calibrate", "train", "--views", "flip", "--speed", *options]) == 0
    said = capsys.readouterr().out
    assert "90 images" in said and "temperature" in said and "one image" in said
    body = json.loads((out / "result.json").read_text())
    answers, per_class, confusion = (rows(out / f"{name}.csv") for name in ("answers", "per_class", "confusion"))
    source = open_source(DATA, "test")
    assert [row["image"] for row in answers] == [source.id(i) for i in range(90)]
    assert [row["is"] for row in answers] == [source.classes[k] for k in source.labels]
    assert sum(int(row["right"]) for row in answers) / 90 == body["top1"]["value"]
    assert all((row["guess1"] == row["is"]) == (row["right"] == "1") for row in answers)
    table = np.array([[int(row[name]) for name in source.classes] for row in confusion])
    assert table.sum() == 90 and np.trace(table) == sum(int(row["right"]) for row in answers)
    assert [int(row["images"]) for row in per_class] == table.sum(1).tolist()
    for row, line in zip(per_class, table):
        recall = np.diag(table)[per_class.index(row)] / line.sum()
        assert float(row["recall_low"]) <= recall <= float(row["recall_high"])
    for name in ("confusion.png", "reliability.png"):
        assert Image.open(out / name).size[0] > 300
    assert body["temperature"]["images"] == 60 and body["cost"]["passes"] == 2 * (90 + 60)


def test_json_on_the_command_line_is_the_result(weights, tmp_path, capsys):
    assert main(["eval", weights, "--data", DATA, "--no-cache", "--workers", "0", "--device", "cpu", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    assert body["images"] == 90 and len(body["per_class"]) == 3 and body["ece"]["how"].startswith("bootstrap")


def test_several_labels_an_image_are_ranked(make_model, tmp_path):
    from vitrail.evaluate.metrics import mean_average_precision

    data = "builtin:shapes?n=30&test=60&size=32&classes=3&multilabel=1"
    source = open_source(data, "test")
    model = make_model(len(source.classes), source.classes)
    result = evaluate(model, data, workers=0, device="cpu", bootstrap=30, out=tmp_path, keep_answers=True)
    expected, each = mean_average_precision(result.answers.scores, result.answers.labels)
    assert result.mean_ap.value == pytest.approx(expected) and result.mean_ap.low < expected < result.mean_ap.high
    assert [float(row["ap"]) for row in rows(tmp_path / "per_class.csv")] == pytest.approx(each, abs=1e-6)
    assert not (tmp_path / "confusion.csv").exists() and "mAP" in str(result)
    names = {row["is"] for row in rows(tmp_path / "answers.csv")}
    assert any("|" in name for name in names)


def test_a_temperature_is_not_judged_by_the_images_that_fitted_it(shapes_model):
    options = {"workers": 0, "device": "cpu", "bootstrap": 0}
    with pytest.raises(UsageError, match="share 45 images"):
        evaluate(shapes_model, DATA, split="test", calibrate="test[:50%]", **options)
    fine = evaluate(shapes_model, DATA, split="test[50%:]", calibrate="test[:50%]", **options)
    assert fine.scaling.images == 45 and fine.images == 45
    with pytest.raises(UsageError, match="one output"):
        evaluate(shapes_model, DATA, calibrate="train", class_map={"circle": [0], "square": [1], "triangle": [2]}, **options)


def test_what_is_wrong_is_said_before_anything_is_asked(shapes_model, tmp_path, monkeypatch):
    from vitrail.evaluate.survey import Asker

    monkeypatch.setattr(Asker, "survey", lambda *a, **k: pytest.fail("images were asked"))
    (tmp_path / "file").write_text("")
    for wrong in ({"calibrate": "test"}, {"real": tmp_path / "file"}, {"out": tmp_path / "file"}):
        with pytest.raises((UsageError, DataError, ResourceError)):
            evaluate(shapes_model, DATA, workers=0, device="cpu", **wrong)


def test_a_folder_that_cannot_be_written_is_named(shapes_model, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="choose another --out"):
        evaluate(shapes_model, DATA, workers=0, device="cpu", bootstrap=0, out=tmp_path / "file" / "out")
