"""Temperature scaling against what is known of it: it undoes a scaling, and changes no first guess."""

import numpy as np
import pytest

from vitrail.errors import DataError
from vitrail.evaluate.calibration import bins_at, expected_error, fit_temperature, log_softmax, scale


def calibrated(n=20_000, classes=5, seed=0):
    """Scores whose softmax is the truth: labels are drawn from it."""
    rng = np.random.default_rng(seed)
    scores = 2 * rng.normal(size=(n, classes))
    p = np.exp(log_softmax(scores, 1.0))
    return scores, (p.cumsum(1) < rng.random((n, 1))).sum(1).clip(max=classes - 1)


@pytest.mark.parametrize("hot", [0.25, 1.0, 3.0])
def test_the_temperature_that_was_put_in_is_found(hot):
    scores, labels = calibrated()
    assert fit_temperature(hot * scores, labels) == pytest.approx(hot, rel=0.03)


def test_it_is_the_minimum_of_the_loss():
    scores, labels = calibrated(500)
    best = fit_temperature(3 * scores, labels)
    loss = lambda t: -np.take_along_axis(log_softmax(3 * scores, t), labels[:, None], 1).mean()
    assert loss(best) < min(loss(0.97 * best), loss(1.03 * best))


def test_scaling_mends_the_error_and_the_loss_of_other_images():
    scores, labels = calibrated()
    half = len(labels) // 2
    t = fit_temperature(4 * scores[:half], labels[:half])
    told = scale(t, "val", half, 4 * scores[half:], labels[half:])
    assert told.ece_before > 0.1 and told.ece_after < 0.02 and told.loss_after < told.loss_before
    assert f"fitted on {half:,} images of val" in str(told)


def test_the_error_is_that_of_counting_by_hand():
    confidence = np.array([0.95, 0.95, 0.95, 0.95, 0.55, 0.55])
    right = np.array([1, 1, 1, 0, 1, 0])
    logit = np.log(confidence / (1 - confidence))
    scores = np.stack([logit, np.zeros(6)], 1)
    labels = np.where(right, 0, 1)
    bins = bins_at(1.0, scores, labels)
    assert bins[:, 0].sum() == 6 and bins[:, 2].sum() == 4
    assert expected_error(bins) == pytest.approx((4 * abs(0.75 - 0.95) + 2 * abs(0.5 - 0.55)) / 6)


def test_images_without_a_label_neither_fit_nor_count():
    scores, labels = calibrated(400)
    more, unknown = np.concatenate([scores, 50 * scores]), np.concatenate([labels, np.full(400, -1)])
    assert fit_temperature(more, unknown) == fit_temperature(scores, labels)
    assert bins_at(1.0, more, unknown)[:, 0].sum() == 400
    with pytest.raises(DataError):
        fit_temperature(scores, np.full(400, -1))
