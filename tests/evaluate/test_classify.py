"""`evaluate` on real data through a saved model: denominators, classes by name, files that cannot be read."""

import json

import numpy as np
import pytest
import torch

from vitrail.data.source import open_source
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.classes import owner_by_map, owner_by_name, read_map
from vitrail.evaluate.classify import evaluate
from vitrail.model.variants import create_model
from vitrail.weights.load import load_model
from vitrail.weights.store import save_model

CLASSES = ("circle", "square", "triangle")
DATA = "builtin:shapes?n=60&size=32&classes=3"


@pytest.fixture(scope="module")
def weights(tmp_path_factory):
    """A tiny model with a random head, so that its answers differ from image to image."""
    model = create_model("mu/16", classes=3, image_size=32)
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    path = tmp_path_factory.mktemp("model") / "m.safetensors"
    save_model(model, path)
    loaded = load_model(path)
    save_model(loaded, path, card=loaded.card.replace(classes=CLASSES, name="tiny"))
    return path


def by_hand(weights, source):
    model = load_model(weights)
    view = model.card.transform()
    with torch.no_grad():
        return model(torch.stack([view(source.read(i).data) for i in range(len(source))])).argmax(1).numpy()


def test_every_number_is_that_of_counting_by_hand(weights):
    source = open_source(DATA, split="test")
    guesses = by_hand(weights, source)
    result = evaluate(str(weights), DATA, workers=0, batch_size=7)
    assert result.split == "test"
    assert result.images == len(source) and result.unreadable == 0
    assert result.top1.value == pytest.approx(np.mean(guesses == source.labels))
    assert result.top1.low < result.top1.value < result.top1.high
    assert result.counts.confusion.sum() == len(source)
    assert json.loads(json.dumps(result.to_dict()))["images"] == len(source)
    assert f"{len(source)} images" in str(result)


def test_a_subset_of_the_classes_is_matched_by_name(weights, tmp_path):
    model = load_model(weights)
    wide = create_model("mu/16", classes=4, image_size=32)
    with torch.no_grad():
        state = model.state_dict()
        state["head.weight"] = torch.cat([torch.zeros(1, 32), state["head.weight"].flip(0)])
        state["head.bias"] = torch.cat([torch.full((1,), 1e3), state["head.bias"].flip(0)])  # the stranger would always win
        wide.load_state_dict(state)
    path = tmp_path / "wide.safetensors"
    save_model(wide, path, card=model.card.replace(classes=("stranger", *reversed(CLASSES)), model={}))
    plain, subset = evaluate(str(weights), DATA, workers=0), evaluate(str(path), DATA, workers=0)
    assert subset.top1.value == plain.top1.value
    assert evaluate(str(path), DATA, workers=0, restrict=False).top1.value == 0.0


def test_classes_the_model_does_not_know_are_refused_by_name(weights):
    with pytest.raises(DataError, match="star"):
        evaluate(str(weights), "builtin:shapes?n=60&size=32&classes=8", workers=0)


def test_a_map_lets_several_outputs_stand_for_one_class(tmp_path):
    path = tmp_path / "map.json"
    path.write_text(json.dumps({"chair": [3, "stool"], "pen": 0}))
    owner = owner_by_map(read_map(path), ["ballpoint", "stool", "cup", "armchair"], 4, ["pen", "chair", "lamp"])
    assert owner.tolist() == [0, 1, -1, 1]
    with pytest.raises(UsageError, match="stol"):
        owner_by_map({"chair": ["stol"]}, ["stool"], 1, ["chair"])
    with pytest.raises(UsageError, match="output 0"):
        owner_by_map({"a": [0], "b": [0]}, [], 1, ["a", "b"])


def test_equal_names_in_another_order_are_matched():
    assert owner_by_name(("b", "a"), ("a", "b"), "m", "d").tolist() == [1, 0]
    assert owner_by_name(("a", "b"), ("a", "b"), "m", "d") is None


def test_an_unreadable_file_is_named_and_not_in_the_denominator(weights, tmp_path):
    from PIL import Image

    rng = np.random.default_rng(0)
    for name in CLASSES:
        (tmp_path / "test" / name).mkdir(parents=True)
        for i in range(40):
            Image.fromarray(rng.integers(0, 255, (32, 32, 3), dtype=np.uint8)).save(tmp_path / "test" / name / f"{i}.png")
    (tmp_path / "test" / "circle" / "0.png").write_bytes(b"not an image")
    result = evaluate(str(weights), str(tmp_path), workers=0)
    assert result.images == 119
    assert len(result.unreadable_files) == 1 and "0.png" in result.unreadable_files[0]
