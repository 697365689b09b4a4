"""A survey asks every image once: kept, resumed, shared, and never of another model's answers."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from vitrail.evaluate import survey as room
from vitrail.evaluate.classify import evaluate

DATA = "builtin:shapes?n=30&test=120&size=32&classes=3"


def counted(monkeypatch):
    """Images that are asked from now on."""
    asked = []
    whole = room.answers_of

    def asks(*args, **options):
        for part in whole(*args, **options):
            asked.append(len(part))
            yield part

    monkeypatch.setattr(room, "answers_of", asks)
    return asked


def test_a_second_call_asks_nothing_and_says_so(shapes_model, tmp_path, monkeypatch):
    first = evaluate(shapes_model, DATA, cache=tmp_path, workers=0, device="cpu", bootstrap=50)
    asked = counted(monkeypatch)
    again = evaluate(shapes_model, DATA, cache=tmp_path, workers=0, device="cpu", bootstrap=50)
    assert not asked and again.spent.passes == 0 and "kept from before" in str(again)
    told = [{**one.to_dict(), "cost": None} for one in (first, again)]
    assert told[0] == told[1]


def test_other_weights_views_or_classes_are_asked_anew(shapes_model, make_model, tmp_path, monkeypatch):
    options = {"cache": tmp_path, "workers": 0, "device": "cpu", "bootstrap": 0}
    evaluate(shapes_model, DATA, **options)
    asked = counted(monkeypatch)
    other = make_model(3, shapes_model.card.classes, seed=1)  # the same card, other weights
    evaluate(other, DATA, **options)
    evaluate(shapes_model, DATA, views="flip", **options)
    evaluate(shapes_model, DATA, precision="bf16", **options)
    assert sum(asked) == 3 * 120


def test_an_interrupted_survey_goes_on_where_it_stopped(shapes_model, tmp_path, monkeypatch):
    options = {"workers": 0, "device": "cpu", "batch_size": 16, "bootstrap": 0}
    plain = evaluate(shapes_model, DATA, **options)
    whole = room.answers_of

    def stops(*args, **kwargs):
        for number, part in enumerate(whole(*args, **kwargs)):
            if number == 4:
                raise KeyboardInterrupt
            yield part

    monkeypatch.setattr(room, "answers_of", stops)
    with pytest.raises(KeyboardInterrupt):
        evaluate(shapes_model, DATA, cache=tmp_path, **options)
    monkeypatch.setattr(room, "answers_of", whole)
    asked = counted(monkeypatch)
    resumed = evaluate(shapes_model, DATA, cache=tmp_path, **options)
    assert 0 < sum(asked) < 120
    assert resumed.to_dict()["top1"] == plain.to_dict()["top1"] and resumed.images == 120
    assert resumed.counts.nll == pytest.approx(plain.counts.nll, rel=1e-5)


def test_a_file_that_could_not_be_read_is_tried_again_next_time(shapes_model, noise, tmp_path, monkeypatch):
    folder = noise({"circle": 20, "square": 20, "triangle": 20})
    (folder / "test" / "square" / "7.png").write_bytes(b"broken")
    options = {"cache": tmp_path / "kept", "workers": 0, "device": "cpu", "bootstrap": 0, "allow": ("all",)}
    first = evaluate(shapes_model, str(folder), **options)
    assert first.images == 59 and "7.png" in first.unreadable_files[0]
    asked = counted(monkeypatch)
    evaluate(shapes_model, str(folder), **options)
    assert 0 < sum(asked) < 20  # only the part that holds it


def test_logits_that_are_no_numbers_stop_it(make_model):
    from vitrail.errors import NumericsError

    model = make_model(3, ("circle", "square", "triangle"), seed=5)
    with torch.no_grad():
        model.head.bias[1] = float("nan")
    with pytest.raises(NumericsError, match=r"the logits of \d+ of \d+ images are not numbers"):
        evaluate(model, DATA, workers=0, device="cpu")


WORKER = """
import json, torch
from vitrail.evaluate.classify import evaluate
from vitrail.model.variants import create_model
from vitrail.weights.card import card_of
from vitrail.runtime.distributed import group
model = create_model("mu/16", classes=3, image_size=32)
torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
model.card = card_of(model).replace(classes=("circle", "square", "triangle"))
with group():
    for cache in ({cache!r}, False):
        found = evaluate(model.eval(), {data!r}, cache=cache, workers=0, device="cpu", batch_size=8, bootstrap=20, out={out!r})
        assert found.images == 120 and found.spent.devices == 2
        print("found", json.dumps([found.top1.to_dict(), found.ece.to_dict(), found.counts.confusion.tolist()]))
"""


def test_two_ranks_share_the_images_and_agree_with_one(shapes_model, tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(cache=str(tmp_path / "cache"), data=DATA, out=str(tmp_path / "out")))
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    lines = {line for line in done.stdout.splitlines() if line.startswith("found")}
    assert done.stdout.count("found") == 4 and len(lines) == 1
    alone = evaluate(shapes_model, DATA, workers=0, device="cpu", bootstrap=20)
    assert json.loads(lines.pop().removeprefix("found "))[2] == alone.counts.confusion.tolist()
    assert (Path(tmp_path) / "out" / "result.json").is_file()
