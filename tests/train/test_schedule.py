"""Learning rates: the originals' numbers, and the promises of warm-up, cooldown and stairs."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

from vitrail.config import ScheduleSpec, load_recipe
from vitrail.errors import UsageError
from vitrail.train.plan import plan_run
from vitrail.train.schedule import schedule

HERE = Path(__file__).parents[1] / "golden" / "o02"
CASE = json.loads((HERE / "case.json").read_text())
ARRAYS = np.load(HERE / "arrays.npz")


@pytest.mark.parametrize("name", CASE["config"])
def test_rates_are_the_originals(name):
    given = CASE["config"][name]["kw"]
    spec = ScheduleSpec(
        decay=given["decay_type"],
        warmup_steps=given["warmup_steps"],
        cooldown_steps=given.get("cooldown_steps", 0),
        timescale_steps=given.get("timescale", 10_000),
        stair_steps=tuple(given.get("steps", ())),
        stair_factors=tuple(given.get("mults", ())),
    )
    rate = schedule(spec, base=given["base"], steps=given["total_steps"])
    theirs = ARRAYS[name][: given["total_steps"] + 1]  # past its end theirs goes on falling below zero
    ours = [rate(step) for step in range(len(theirs))]
    np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6 * given["base"])


@pytest.mark.parametrize("decay", ["linear", "cosine", "rsqrt", "constant"])
def test_a_warmed_run_starts_at_zero_and_reaches_its_base(decay):
    rate = schedule(ScheduleSpec(decay=decay, warmup_steps=10), base=0.3, steps=1000)
    assert rate(0) == 0.0 and rate(5) == pytest.approx(0.15, rel=1e-2) and rate(10) == pytest.approx(0.3)
    assert all(rate(step) >= rate(step + 1) for step in range(10, 999))


def test_a_cooldown_ends_at_zero():
    rate = schedule(ScheduleSpec(decay="rsqrt", cooldown_steps=100), base=1.0, steps=1000)
    assert rate(1000) == 0.0 and rate(950) == pytest.approx(0.5 / math.sqrt(1 + 950 / 10_000))


def test_a_stair_of_fractions_drops_at_parts_of_the_run():
    spec = ScheduleSpec(decay="stair", stair_fractions=(0.3, 0.6, 0.9), stair_factors=(0.1, 0.01, 0.001))
    rate = schedule(spec, base=1.0, steps=500)
    assert [rate(s) for s in (149, 150, 299, 300, 450)] == [1.0, 0.1, 0.1, 0.01, 0.001]


def test_a_crooked_stair_is_refused():
    with pytest.raises(UsageError, match="as many factors"):
        schedule(ScheduleSpec(decay="stair", stair_steps=(5, 3), stair_factors=(0.1, 0.01)), base=1.0, steps=10)


def test_a_plan_knows_when_to_measure_and_save():
    recipe = load_recipe("fashion-quick", ["train.epochs=2", "train.batch_size=128", "eval.every_epochs=1", "train.save_every_steps=50"])
    plan = plan_run(recipe, 10_000)
    assert plan.steps == 156 and plan.eval_every == 78
    assert [plan.evaluates(n) for n in (77, 78, 156)] == [False, True, True]
    assert [plan.saves(n) for n in (49, 50, 156)] == [False, True, True]
