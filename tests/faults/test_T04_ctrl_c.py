"""T04: Ctrl-C once saves and stops (75); twice stops at once (130), and what was saved still loads."""

import signal


def test_once_saves(tiny, tmp_path):
    out = tmp_path / "run"
    done = tiny.run(out, env={"VITRAIL_FAULT": "step.gradient:5=int"})
    assert done.code == 75 and "Ctrl-C again stops at once" in done.text
    assert tiny.run(out).code == 0
    assert tiny.digest(out) == tiny.digest(tiny.golden())


def test_twice_stops_at_once_and_loses_nothing_saved(tiny, tmp_path):
    out = tmp_path / "run"
    child = tiny.start(out, env={"VITRAIL_FAULT": "step.loss:11=int,step.gradient:6=hang"}).until("SIGINT")
    child.send(signal.SIGINT)
    done = child.wait()
    assert done.code == 130, done.text
    assert tiny.checkpoints(out) == [3]
    assert tiny.run(out).code == 0
    assert tiny.digest(out) == tiny.digest(tiny.golden())
