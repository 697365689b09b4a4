"""Test-time augmentation against views cut and averaged by hand."""

import dataclasses

import numpy as np
import pytest
import torch

from vitrail.data.source import open_source
from vitrail.data.transform import Preprocess
from vitrail.errors import UsageError
from vitrail.evaluate.classify import evaluate
from vitrail.evaluate.views import Views

DATA = "builtin:shapes?n=30&test=30&size=40&classes=3"


def by_hand(model, name):
    source = open_source(DATA, "test")
    view = Views(name, (32, 32)).preprocess(model.card.transform())
    probabilities = []
    for i in range(len(source)):
        image = view(source.read(i).data)
        if name == "flip":
            seen = [image, image.flip(-1)]
        else:
            top = image.shape[-1] - 32
            corners = [(0, 0), (0, top), (top, 0), (top, top), (top // 2, top // 2)]
            seen = [image[:, y : y + 32, x : x + 32] for y, x in corners]
            seen += [one.flip(-1) for one in seen] if name == "ten" else []
        with torch.no_grad():
            probabilities.append(model(torch.stack(seen)).softmax(1).mean(0).numpy())
    return np.stack(probabilities), source


@pytest.mark.parametrize(("name", "passes"), [("flip", 2), ("five", 5), ("ten", 10)])
def test_probabilities_of_the_views_are_averaged(shapes_model, name, passes):
    expected, source = by_hand(shapes_model, name)
    result = evaluate(shapes_model, DATA, views=name, workers=0, device="cpu", batch_size=7, keep_answers=True, bootstrap=0)
    assert (result.answers.guesses[:, 0] == expected.argmax(1)).all()
    assert result.answers.confidence == pytest.approx(expected.max(1), abs=1e-5)
    assert result.counts.nll == pytest.approx(-np.log(expected[np.arange(30), source.labels]).sum(), rel=1e-4)
    assert result.spent.passes == 30 * passes and result.images == 30


def test_crops_come_from_the_view_before_its_own_crop():
    view = Preprocess((224, 224), mode="shorter_crop", resize=256)
    assert Views("five", (224, 224)).preprocess(view).image_size == (256, 256)
    squash = Preprocess((224, 224))
    assert Views("ten", (224, 224)).preprocess(squash).image_size == (256, 256)
    assert Views("flip", (224, 224)).preprocess(view) == view
    full = dataclasses.replace(view, resize=224)
    assert Views("five", (224, 224)).preprocess(full).image_size == (256, 256)
    with pytest.raises(UsageError, match="five"):
        Views("fives", (224, 224))
