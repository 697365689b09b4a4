"""Intervals against closed forms and tables, never against themselves."""

import math

import numpy as np
import pytest

from vitrail.evaluate.intervals import bootstrap, bootstraps, difference, over_seeds, student_quantile, wilson


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    # Wilson 1927's closed form; ends published in Newcombe 1998, table I (methods 3), four digits
    [(81, 263, 0.2553, 0.3662), (15, 148, 0.0624, 0.1605), (0, 20, 0.0, 0.1611), (1, 29, 0.0061, 0.1718)],
)
def test_wilson_gives_the_published_ends(hits, n, low, high):
    interval = wilson(hits, n)
    assert interval.low == pytest.approx(low, abs=5e-5)
    assert interval.high == pytest.approx(high, abs=5e-5)


def test_wilson_ends_are_where_the_score_test_just_rejects():
    interval = wilson(37, 120, confidence=0.9)
    for p in (interval.low, interval.high):
        assert abs(37 / 120 - p) / math.sqrt(p * (1 - p) / 120) == pytest.approx(1.6448536269514722, rel=1e-9)


@pytest.mark.parametrize("n", [1, 7, 1000])
def test_wilson_stays_inside_zero_and_one_and_is_symmetric(n):
    nothing, everything = wilson(0, n), wilson(n, n)
    assert nothing.low == 0.0 and everything.high == pytest.approx(1.0)
    assert everything.low == pytest.approx(1 - nothing.high)


def test_nothing_measured_is_nan_and_not_a_number_that_looks_fine():
    assert math.isnan(wilson(0, 0).value)
    assert wilson(0, 0).to_dict()["value"] is None


@pytest.mark.parametrize(
    ("p", "df", "quantile"),  # any table of Student's t
    [(0.975, 1, 12.7062), (0.975, 2, 4.30265), (0.975, 4, 2.77645), (0.995, 10, 3.16927), (0.975, 1000, 1.96234)],
)
def test_student_quantile_agrees_with_the_tables(p, df, quantile):
    assert student_quantile(p, df) == pytest.approx(quantile, abs=2e-5 * quantile)


def test_three_seeds_get_students_interval():
    interval = over_seeds([0.80, 0.82, 0.84])
    assert interval.value == pytest.approx(0.82)
    assert interval.high - interval.value == pytest.approx(4.302653 * 0.02 / math.sqrt(3), rel=1e-6)


def test_one_run_has_no_interval_and_says_so():
    assert math.isnan(over_seeds([0.8]).low)
    assert "no interval" in over_seeds([0.8]).percent()


def test_welch_of_equal_spread_and_size_is_the_pooled_t():
    a, b = [1.0, 2.0, 3.0], [2.0, 3.0, 4.0]
    gap = difference(a, b)
    assert gap.value == pytest.approx(-1.0)
    assert gap.high - gap.value == pytest.approx(student_quantile(0.975, 4) * math.sqrt(2 / 3), rel=1e-9)


def test_bootstrap_of_a_mean_approaches_the_normal_interval():
    values = np.tile([0.0, 0.0, 1.0, 1.0, 1.0], 200)  # n = 1000, p = 0.6
    interval = bootstrap(lambda rows: float(values[rows].mean()), 1000, draws=2000)
    half = 1.959964 * math.sqrt(0.6 * 0.4 / 1000)
    assert interval.low == pytest.approx(0.6 - half, abs=0.004)
    assert interval.high == pytest.approx(0.6 + half, abs=0.004)


def test_bootstrap_is_a_function_of_its_seed():
    values = np.arange(50.0)
    statistic = lambda rows: float(values[rows].mean())
    assert bootstrap(statistic, 50, draws=50) == bootstrap(statistic, 50, draws=50)
    assert bootstrap(statistic, 50, draws=50) != bootstrap(statistic, 50, draws=50, seed=1)


def test_wilson_covers_the_truth_about_as_often_as_it_promises():
    rng = np.random.default_rng(3)
    hits = rng.binomial(200, 0.3, size=2000)
    covered = np.mean([wilson(int(h), 200).low <= 0.3 <= wilson(int(h), 200).high for h in hits])
    assert 0.93 < covered < 0.97


def test_bootstrap_of_a_share_is_the_binomials_interval():
    rows = np.arange(400) < 120
    interval = bootstrap(lambda chosen: rows[chosen].mean(), 400, draws=2000)
    half = 1.96 * math.sqrt(0.3 * 0.7 / 400)
    assert interval.value == 0.3
    assert (interval.low, interval.high) == (pytest.approx(0.3 - half, abs=0.006), pytest.approx(0.3 + half, abs=0.006))


def test_several_statistics_share_their_draws():
    values = np.random.default_rng(0).normal(size=50)
    one, two = bootstraps(lambda chosen: [values[chosen].mean(), -values[chosen].mean()], 50, draws=200)
    assert (one.low, one.high) == pytest.approx((-two.high, -two.low))
    assert one == bootstrap(lambda chosen: values[chosen].mean(), 50, draws=200)
