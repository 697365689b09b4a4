"""`Predictor`: one model, many threads; what it says of itself."""

import io
import threading

import numpy as np
import pytest
from PIL import Image
from serving_harness import CLASSES, encoded, picture, png

from vitrail.errors import NumericsError, UsageError
from vitrail.inspect.maps import attention_rollout
from vitrail.model.config import ResNetConfig
from vitrail.model.variants import build
from vitrail.ship.predictor import Predictor
from vitrail.weights.load import load_model


@pytest.fixture
def predictor(weights):
    return Predictor(load_model(weights), device="cpu")


def test_looking_and_answering_at_once_disturb_neither(predictor):
    batch = np.stack([predictor.pixels(png(k)) for k in range(3)])
    logits, look = predictor.forward(batch), predictor.attention(png(5))
    wrong, done = [], threading.Event()

    def answer():
        while not done.is_set():
            try:
                if not np.array_equal(predictor.forward(batch), logits):
                    wrong.append("other logits")
            except Exception as error:
                wrong.append(repr(error))

    thread = threading.Thread(target=answer)
    thread.start()
    for _ in range(15):
        assert predictor.attention(png(5)) == look
    done.set()
    thread.join()
    assert wrong == []


def test_the_watched_model_has_the_same_parameters_and_no_copy_of_them(predictor):
    for own, watched in zip(predictor.model.parameters(), predictor.watched.parameters(), strict=True):
        assert own is watched
    assert all(own is not watched for own, watched in zip(predictor.model.modules(), predictor.watched.modules(), strict=True))


def test_an_overlay_has_the_upright_pictures_size_and_attention_is_the_rollout(predictor):
    exif = Image.Exif()
    exif[0x0112] = 6  # lies on its side
    photo = encoded(picture(3, (40, 60)), "JPEG", quality=95, exif=exif)
    shown = Image.open(io.BytesIO(predictor.overlay(photo)))
    assert shown.size == (40, 60)
    look = predictor.attention(photo)
    image = predictor.images(predictor.pixels(photo)[None])
    assert np.allclose(look["rollout"], attention_rollout(predictor.model, image)[0], atol=1e-5)
    left, top, width, height = look["box"]
    assert left >= 0 and top >= 0 and left + width <= 1 + 1e-9 and top + height <= 1 + 1e-9
    assert np.asarray(look["layers"]).shape[-2:] == tuple(look["grid"])


def test_a_resnet_answers_and_has_no_attention_to_show():
    bit = Predictor(build(ResNetConfig(layers=(1,), width_factor=0.5, image_size=(32, 32), classes=4)), device="cpu")
    assert len(bit(picture(0))[0]) == 4
    with pytest.raises(UsageError, match="is a ResNet"):
        bit.attention(png())


def test_images_in_memory_are_answered_by_name(predictor):
    answers = predictor([png(0), picture(1)], top=3)
    assert [len(answer) for answer in answers] == [3, 3]
    assert all(c["class"] in CLASSES and 0 <= c["probability"] <= 1 for answer in answers for c in answer)


def test_independent_classes_have_probabilities_of_their_own(weights):
    several = Predictor(load_model(weights), device="cpu", independent=True)
    chances = several.probabilities(np.array([[4.0, -4.0, 4.0] + [0.0] * 7], np.float32))[0]
    assert chances[0] == chances[2] == pytest.approx(1 / (1 + np.exp(-4))) and chances.sum() > 1


def test_logits_that_are_no_numbers_are_no_answer(predictor):
    with pytest.raises(NumericsError, match="not numbers"):
        predictor.answer(np.array([np.nan] * 10, np.float32))


def test_the_identity_changes_with_the_weights_and_with_nothing_else(weights):
    first, same, other = (Predictor(load_model(weights), device="cpu") for _ in range(3))
    other.model.head.bias.data[0] += 1
    assert first.identity == same.identity != other.identity
