"""Pictures: what is drawn is where it should be, for two classes and for a thousand."""

import numpy as np
import pytest

from vitrail.evaluate.charts import BLUE, PAPER, confusion_chart, reliability_chart
from vitrail.evaluate.metrics import BINS


def pixels_of(image, colour):
    return int((image == np.array(colour, np.uint8)).all(-1).sum())


def test_a_perfect_table_is_a_blue_diagonal():
    blue = [pixels_of(confusion_chart(np.eye(n, dtype=int) * 5, [f"class {k}" for k in range(n)]), BLUE) for n in (2, 10)]
    assert blue[0] > 2 * 30 * 30 and blue[1] > 10 * 30 * 30
    wrong = confusion_chart(np.roll(np.eye(10, dtype=int), 1, axis=1) * 5, list("abcdefghij"))
    assert pixels_of(wrong, BLUE) == 0


@pytest.mark.parametrize("count", [1, 26, 100, 1000])
def test_any_number_of_classes_fits_on_a_page(count):
    rng = np.random.default_rng(0)
    table = rng.integers(0, 3, (count, count))
    image = confusion_chart(table, [f"a rather long name of class {k} \U0001f408" for k in range(count)])
    assert image.dtype == np.uint8 and image.ndim == 3 and max(image.shape[:2]) < 2300


def test_reliability_bars_are_as_high_as_the_accuracy():
    bins = np.zeros((BINS, 3))
    bins[BINS - 1] = 100, 99, 50  # sure, and right half the time
    low = reliability_chart(bins, 0.49)
    bins[BINS - 1] = 100, 99, 100
    high = reliability_chart(bins, 0.01)
    bar = (150, 199, 226)
    assert pixels_of(high, bar) == pytest.approx(2 * pixels_of(low, bar), rel=0.1)
    both = reliability_chart(bins, 0.01, (bins, 0.0, 1.7))
    assert both.shape == high.shape and not np.array_equal(both, high)
    assert pixels_of(reliability_chart(np.zeros((BINS, 3)), float("nan")), PAPER) > 0
