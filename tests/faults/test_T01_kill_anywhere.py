"""T01: SIGKILL at every named point of the loop; the same command gives the same bits."""

import pytest

from vitrail.runtime.faults import POINTS as ALL

KILLED = -9
POINTS = [point for point in ALL if not point.startswith("predict.")]  # those are ship/predict.py's
GROUPS = [POINTS[start::4] for start in range(4)]  # strided, so that not all kills of a group come after a commit


def kill_at(tiny, out, point, count=1):
    done = tiny.run(out, env={"VITRAIL_FAULT": f"{point}:{count}=kill"})
    assert done.code == KILLED, done.text


@pytest.mark.parametrize("points", GROUPS, ids=lambda points: points[0])
def test_kills_at_these_points_one_after_another_cost_nothing(tiny, tmp_path, points):
    out = tmp_path / "run"
    kill_at(tiny, out, "step.done", 5)  # after the first checkpoint, so that there is something to lose
    for point in points:
        kill_at(tiny, out, point)
    done = tiny.run(out)
    assert done.code == 0, done.text
    assert tiny.digest(out) == tiny.digest(tiny.golden())


def test_at_most_save_every_steps_are_lost(tiny, tmp_path):
    kill_at(tiny, tmp_path / "run", "step.done", 8)
    assert tiny.checkpoints(tmp_path / "run") == [3, 6]
    assert "resuming from step 6 of 12" in tiny.run(tmp_path / "run").text


@pytest.mark.scorecard
@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("count", [1, 2, 5])
def test_a_kill_at_this_point_costs_nothing(tiny, tmp_path, point, count):
    out = tmp_path / "run"
    if point == "resume.loaded":
        kill_at(tiny, out, "step.done", 5)
    done = tiny.run(out, env={"VITRAIL_FAULT": f"{point}:{count}=kill"})
    assert done.code in (KILLED, 0), done.text  # 0: a run does not pass this point so often
    assert tiny.run(out).code == 0
    assert tiny.digest(out) == tiny.digest(tiny.golden())
