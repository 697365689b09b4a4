"""Sets of ImageNet's family, fabricated, scored by their conventions."""

import numpy as np
import pytest

from vitrail.data.source import open_source
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.classify import evaluate
from vitrail.evaluate.imagenet import wnids

OPTIONS = {"workers": 0, "device": "cpu", "bootstrap": 0, "keep_answers": True}


@pytest.fixture(scope="module")
def thousand(make_model):
    return make_model(1000)


def test_of_200_classes_only_these_may_be_answered(thousand, noise, answer_by_hand):
    chosen = wnids()[3::5]
    folder = noise(dict.fromkeys(chosen, 1))
    logits = answer_by_hand(thousand, open_source(str(folder), "test"))
    result = evaluate(thousand, str(folder), protocol="imagenet-a", **OPTIONS)
    assert (result.answers.guesses[:, 0] == logits[:, 3::5].argmax(1)).all()
    assert result.top1.value == np.mean(logits[:, 3::5].argmax(1) == np.arange(200))
    assert any("7,500" in note for note in result.notes) and any("ImageNet's order" in note for note in result.notes)
    loose = evaluate(thousand, str(folder), protocol="imagenet-a", restrict=False, **OPTIONS)
    assert loose.top1.value == np.mean(logits.argmax(1) == np.arange(3, 1000, 5))


def test_imagenet_v2s_numbered_folders_take_all_thousand_answers(thousand, noise, answer_by_hand):
    folder = noise(dict.fromkeys(map(str, range(1000)), 1), size=8)
    source = open_source(str(folder), "test")
    logits = answer_by_hand(thousand, source)
    result = evaluate(thousand, str(folder), protocol="imagenet-v2", **OPTIONS)
    truth = np.array([int(source.classes[k]) for k in source.labels])
    assert result.images == 1000 and result.top1.value == np.mean(logits.argmax(1) == truth)
    said = np.array([int(source.classes[k]) for k in result.answers.guesses[:, 0]])
    assert (said == logits.argmax(1)).all()


def test_imagenette_needs_no_protocol_only_names(thousand, noise, answer_by_hand):
    ten = (0, 217, 482, 491, 497, 566, 569, 571, 574, 701)
    folder = noise({wnids()[m]: 2 for m in ten}, "val")
    logits = answer_by_hand(thousand, open_source(str(folder), "val"))
    result = evaluate(thousand, str(folder), **OPTIONS)
    assert (result.answers.guesses[:, 0] == logits[:, ten].argmax(1)).all() and result.split == "val"
    assert result.to_dict()["top1"] == evaluate(thousand, str(folder), protocol="imagenette", **OPTIONS).to_dict()["top1"]


def test_an_answer_outside_a_class_map_is_wrong_as_in_objectnet(thousand, noise, answer_by_hand):
    folder = noise({"chair": 10, "mug": 10})
    source = open_source(str(folder), "test")
    logits = answer_by_hand(thousand, source)
    best = logits.argmax(1)
    table = {"chair": sorted({int(best[0]), 423, 559}), "mug": [504]}  # the first picture is answered inside
    result = evaluate(thousand, str(folder), class_map=table, **OPTIONS)
    right = sum(best[i] in table[source.classes[source.labels[i]]] for i in range(20))
    assert right >= 1 and result.top1.value == right / 20
    outside = ~np.isin(best, [*table["chair"], *table["mug"]])
    assert (result.answers.guesses[outside, 0] == -1).all() and outside.any()
    among = evaluate(thousand, str(folder), class_map=table, restrict=True, **OPTIONS)
    assert (among.answers.guesses[:, 0] >= 0).all()
    five = [any(m in table[source.classes[source.labels[i]]] for m in np.argsort(-logits[i])[:2]) for i in range(20)]
    assert result.counts.depth == 2 and result.top5.value == np.mean(five)  # the paper's top-5 has as many guesses as there are classes


def test_a_set_that_is_not_what_it_is_called_is_refused(thousand, noise, make_model):
    folder = noise(dict.fromkeys(wnids()[:20], 1))
    with pytest.raises(DataError, match="20 classes, and imagenet-r has 200"):
        evaluate(thousand, str(folder), protocol="imagenet-r", **OPTIONS)
    with pytest.raises(UsageError, match="imagenet-a"):
        evaluate(thousand, str(folder), protocol="imagenet-aa", **OPTIONS)
    with pytest.raises(UsageError, match="75 data sets"):
        evaluate(thousand, str(folder), protocol="imagenet-c", **OPTIONS)
    with pytest.raises(DataError, match="unknown to"):
        evaluate(make_model(1000, tuple(f"other {k}" for k in range(1000))), str(folder), **OPTIONS)
