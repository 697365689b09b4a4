"""T03: SIGTERM and SIGUSR1 in a step, a wait for data, an evaluation, a save: saved at the next step, exit 75."""

import signal

import pytest

PREEMPTED = 75


@pytest.mark.parametrize(
    ("point", "action"), [("step.loss:2", "term"), ("data.wait:3", "usr1"), ("eval.batch:1", "term"), ("commit.after_file:2", "usr1")]
)
def test_a_signal_there_saves_and_stops_within_a_step(tiny, tmp_path, point, action):
    out = tmp_path / "run"
    done = tiny.run(out, env={"VITRAIL_FAULT": f"{point}={action}"})
    assert done.code == PREEMPTED, done.text
    assert "everything is saved" in done.text and "the same command goes on" in done.text
    assert tiny.run(out).code == 0
    assert tiny.digest(out) == tiny.digest(tiny.golden())


def test_a_signal_from_outside_is_obeyed_and_the_step_is_in_the_checkpoint(tiny, tmp_path):
    out = tmp_path / "run"
    child = tiny.start(out, "train.steps=2000", "schedule.decay=constant").until("step 2/")
    child.send(signal.SIGTERM)
    done = child.wait()
    assert done.code == PREEMPTED
    step = int(done.text.split("stopped at step ")[1].split()[0])
    assert tiny.checkpoints(out)[-1] == step


def test_without_a_signal_nobody_stops(tiny):
    tiny.golden()


def test_a_time_limit_of_its_own_stops_a_run_the_same_way(tiny, tmp_path):
    out = tmp_path / "run"
    done = tiny.run(out, "train.stop_after_minutes=0.001")
    assert done.code == PREEMPTED and "train.stop_after_minutes" in done.text
    assert tiny.run(out).code == 0
    assert tiny.digest(out) == tiny.digest(tiny.golden())
