"""The VTAB score as arithmetic: 19 tasks weigh the same, and what is missing is never averaged away."""

from statistics import fmean, stdev

import pytest

from vitrail.data.vtab import TASKS
from vitrail.evaluate.vtab import TaskRun, VtabScore, address_of

# ViT-H/14 of the paper's table 9, in the order of the tasks
H14 = [95.3, 85.5, 75.2, 99.7, 97.2, 65.0, 88.9, 83.3, 96.7, 91.4, 76.6, 91.7, 63.8, 53.1, 79.4, 63.3, 84.5, 33.2, 51.2]


def runs(values, seed=0, images=1000):
    return tuple(TaskRun(task.name, seed, round(10 * value), images, 0, True, "", 1.0, 0.5) for task, value in zip(TASKS, values))


def test_the_papers_row_gives_the_papers_mean():
    """77.6: the mean over the tasks; that over the groups' means would be another."""
    score = VtabScore("H/14", "as in Table 4", runs(H14), {})
    assert score.mean().value == pytest.approx(fmean(H14) / 100)
    assert round(100 * score.mean().value, 1) == 77.6
    groups = [score.mean(group).value for group in ("natural", "specialized", "structured")]
    assert groups == pytest.approx([fmean(H14[:7]) / 100, fmean(H14[7:11]) / 100, fmean(H14[11:]) / 100])
    assert fmean(groups) - score.mean().value > 0.01
    assert "mean of 19 tasks        77.63 %" in str(score)


def test_without_a_task_there_is_no_mean_but_of_the_groups_that_are_whole():
    short = VtabScore("m", "", runs(H14)[:-1], {"smallnorb-elevation": "no folder"})
    assert short.mean() is None and short.mean("structured") is None and short.mean("natural") is not None
    assert short.partial().value == pytest.approx(fmean(H14[:-1]) / 100)
    assert "absent: no folder" in str(short) and "18 of 19" in str(short) and "mean of 19" not in str(short)
    assert short.to_dict()["mean"] is None and short.to_dict()["tasks_measured"] == 18


def test_seeds_give_a_spread_of_the_mean_and_a_seed_that_lacks_a_task_does_not_count_as_measured():
    second = [value - 1 for value in H14[:-1]]
    unfinished = VtabScore("m", "", (*runs(H14), *runs(second, seed=1)), {})
    assert unfinished.mean() is None and len(unfinished.measured()) == 18
    score = VtabScore("m", "", (*runs(H14), *runs([*second, H14[-1]], seed=1)), {})
    means = [fmean(H14) / 100, fmean([*second, H14[-1]]) / 100]
    assert score.mean().value == pytest.approx(fmean(means)) and score.deviation == pytest.approx(stdev(means))
    assert "2 seeds" in str(score) and "±" in str(score)


def test_one_seeds_interval_is_that_of_independent_shares():
    score = VtabScore("m", "", runs([50.0] * 19), {})
    half = 1.96 * (0.25 / 1000 / 19) ** 0.5
    assert score.mean().high - score.mean().value == pytest.approx(half, rel=1e-3)


def test_addresses_say_where_the_data_come_from():
    task = TASKS[1]
    assert address_of(task) == "vtab:cifar100"
    assert address_of(task, root="/data/tfds") == "vtab:cifar100?root=/data/tfds"
    assert address_of(task, elsewhere="hf://datasets/cifar100", ids="x.json") == "vtab:cifar100?from=hf://datasets/cifar100&ids=x.json"
    assert TaskRun.from_dict(runs([1.0])[0].to_dict()) == runs([1.0])[0]
