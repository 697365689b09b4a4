"""Counts by hand, counts as sums of parts, average precision by hand."""

from itertools import pairwise

import numpy as np
import pytest

from vitrail.evaluate.metrics import Counts, average_precision, mean_average_precision, member


def rows(n=300, classes=7, seed=0):
    rng = np.random.default_rng(seed)
    labels = rng.integers(classes, size=n)
    guesses = np.stack([rng.permutation(classes)[:5] for _ in range(n)])
    return labels, guesses, rng.uniform(0.01, 1.0, n).astype(np.float32), rng.exponential(size=n)


def test_five_images_counted_by_hand():
    labels = np.array([0, 0, 1, 2, 2])
    guesses = np.array([[0, 1], [1, 0], [1, 2], [0, 1], [2, 0]])
    counts = Counts.of(labels, guesses, np.array([0.9, 0.6, 0.5, 0.7, 1.0]), np.zeros(5), classes=3)
    assert (counts.images, counts.top1, counts.top5) == (5, 3, 4)
    assert counts.confusion.tolist() == [[1, 1, 0], [0, 1, 0], [1, 0, 1]]
    assert counts.mean_per_class == pytest.approx((1 / 2 + 1 + 1 / 2) / 3)
    assert counts.per_class[0] == {"images": 2, "recall": 0.5, "precision": 0.5, "f1": 0.5}
    assert counts.confused() == [(0, 1, 1), (2, 0, 1)]
    # bins of 1/15: 0.9 (right), 0.6 (wrong), 0.5 (right), 0.7 (wrong), 1.0 (right) all fall apart
    assert counts.ece == pytest.approx((0.1 + 0.6 + 0.5 + 0.7 + 0.0) / 5)
    assert counts.worst_bin == pytest.approx(0.7)


def test_confidence_one_belongs_to_the_last_bin_and_zero_to_the_first():
    counts = Counts.of(np.zeros(2, int), np.zeros((2, 1), int), np.array([0.0, 1.0]), np.zeros(2), classes=1)
    assert counts.bins[:, 0].tolist() == [1.0] + [0.0] * 13 + [1.0]


@pytest.mark.parametrize("cuts", [(150,), (1, 2, 3), (10, 200), (0, 300)])
def test_parts_add_up_to_the_whole(cuts):
    labels, guesses, confidence, nll = rows()
    whole = Counts.of(labels, guesses, confidence, nll, 7)
    ends = [0, *cuts, 300]
    parts = [Counts.of(labels[a:b], guesses[a:b], confidence[a:b], nll[a:b], 7) for a, b in pairwise(ends)]
    total = sum(parts[1:], parts[0])
    assert (total.images, total.top1, total.top5) == (whole.images, whole.top1, whole.top5)
    assert (total.confusion == whole.confusion).all()
    assert total.ece == pytest.approx(whole.ece, rel=1e-12)
    assert total.nll == pytest.approx(whole.nll, rel=1e-12)


def test_a_class_without_images_has_no_recall_and_does_not_enter_the_mean():
    counts = Counts.of(np.array([0, 0]), np.array([[0], [1]]), np.array([0.5, 0.5]), np.zeros(2), classes=3)
    assert counts.per_class[2] == {"images": 0, "recall": None, "precision": None, "f1": None}
    assert counts.mean_per_class == 0.5


def test_real_counts_a_guess_in_the_set_and_skips_empty_sets():
    """The semantics of real.json: correct iff the first guess is in the list; images with an empty list are skipped."""
    correct, counted = member(np.array([3, 3, 1, 0]), [[3], [1, 2], [0, 1], []])
    assert counted.tolist() == [True, True, True, False]
    assert correct.tolist() == [True, False, True, False]
    assert correct.sum() / counted.sum() == pytest.approx(2 / 3)


def test_average_precision_by_hand():
    scores, targets = np.array([0.9, 0.8, 0.7, 0.6]), np.array([1, 0, 1, 0])
    assert average_precision(scores, targets) == pytest.approx((1 / 1 + 2 / 3) / 2)


def test_average_precision_does_not_depend_on_the_order_of_ties():
    targets = np.array([1, 0, 0, 1, 0, 1])
    scores = np.full(6, 0.5)
    assert average_precision(scores, targets) == pytest.approx(0.5)
    assert average_precision(scores, targets[::-1]) == pytest.approx(0.5)


def test_a_class_without_positives_is_left_out_of_map_and_shown_as_nan():
    mean, each = mean_average_precision(np.array([[0.9, 0.1], [0.2, 0.3]]), np.array([[1, 0], [0, 0]]))
    assert mean == 1.0
    assert np.isnan(each[1])


def test_ece_of_a_perfectly_calibrated_guess_is_small_and_of_a_bluff_is_large():
    rng = np.random.default_rng(0)
    confidence = rng.uniform(0.5, 1.0, 20000)
    right = rng.uniform(size=20000) < confidence
    labels = np.zeros(20000, int)
    guesses = np.where(right, 0, 1)[:, None]
    honest = Counts.of(labels, guesses, confidence, np.zeros(20000), 2)
    bluff = Counts.of(labels, guesses, np.full(20000, 0.99), np.zeros(20000), 2)
    assert honest.ece < 0.02
    assert bluff.ece == pytest.approx(0.99 - right.mean(), abs=1e-9)


def test_weights_count_rows_as_often_as_they_say():
    rng = np.random.default_rng(0)
    scores, targets, times = rng.integers(0, 6, 40).astype(float), rng.random(40) < 0.4, rng.integers(0, 3, 40)
    repeated = average_precision(np.repeat(scores, times), np.repeat(targets, times))
    assert average_precision(scores, targets, times) == pytest.approx(repeated)
