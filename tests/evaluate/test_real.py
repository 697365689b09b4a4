"""ImageNet ReaL on fabricated labels: a guess in the set is right, an empty set is not counted."""

import json

import numpy as np
import pytest

from vitrail.errors import DataError
from vitrail.evaluate.classify import evaluate
from vitrail.evaluate.real import accepted_labels, score_real


def named(tmp_path, numbers, classes=("n00000001", "n00000002", "n00000003")):
    """Pictures called as ImageNet's, all of the first class."""
    from vitrail.data.encode import encode_png

    rng = np.random.default_rng(0)
    for k, name in enumerate(classes):
        (tmp_path / "val" / name).mkdir(parents=True)
        for number in numbers[k::3]:
            path = tmp_path / "val" / name / f"ILSVRC2012_val_{number:08d}.png"
            path.write_bytes(encode_png(rng.integers(255, size=(32, 32, 3), dtype=np.uint8)))
    return tmp_path


def test_a_guess_in_the_set_is_right_and_an_empty_set_is_not_counted():
    sets = [(0, 2), (), (1,), (2,)]
    told = score_real(np.array([2, 0, 1, 1]), np.arange(4), sets)
    assert (told.images, told.skipped) == (3, 1)
    assert told.top1.value == pytest.approx(2 / 3)
    part = score_real(np.array([1, 2]), np.array([2, 3]), sets)  # rows are looked up by the image's number
    assert part.top1.value == 1.0 and part.images == 2


def test_images_are_found_by_their_number_in_any_order_and_in_part(tmp_path):
    numbers = [5, 1, 9, 3, 7, 2]
    table = [[k % 3] for k in range(50)]
    (tmp_path / "real.json").write_text(json.dumps(table))
    from vitrail.data.source import open_source

    source = open_source(str(named(tmp_path / "d", numbers)), "val")
    sets = accepted_labels(tmp_path / "real.json", source)
    for i, accepted in enumerate(sets):
        number = int(source.id(i).split("_val_")[1][:8])
        assert accepted == ((number - 1) % 3,)


def test_evaluate_reports_it_beside_top1(tmp_path, make_model, answer_by_hand):
    from vitrail.data.source import open_source

    numbers = list(range(1, 31))
    folder = named(tmp_path / "d", numbers)
    model = make_model(3, ("n00000001", "n00000002", "n00000003"))
    source = open_source(str(folder), "val")
    guesses = answer_by_hand(model, source).argmax(1)
    table = [[] for _ in numbers]
    for i, guess in enumerate(guesses):  # everything the model says is accepted, but for image 4, which has no label
        number = int(source.id(i).split("_val_")[1][:8])
        table[number - 1] = [] if number == 4 else [int(guess), (int(guess) + 1) % 3]
    (tmp_path / "real.json").write_text(json.dumps(table))
    result = evaluate(model, str(folder), real=tmp_path / "real.json", workers=0, device="cpu")
    assert result.real.top1.value == 1.0 and result.real.images == 29 and result.real.skipped == 1
    assert "ReaL" in str(result) and result.to_dict()["real"]["images"] == 29


def test_labels_that_do_not_fit_the_data_are_refused(tmp_path):
    from vitrail.data.source import open_source

    source = open_source(str(named(tmp_path / "d", [1, 2, 3])), "val")
    for text, match in (("[[0], [7], [0]]", "another order"), ("[[0]]", "says nothing about 2"), ("{", "no accepted labels")):
        (tmp_path / "real.json").write_text(text)
        with pytest.raises(DataError, match=match):
            accepted_labels(tmp_path / "real.json", source)
