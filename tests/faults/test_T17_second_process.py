"""T17: a second process on the same run is refused; the lock of a dead one is taken over."""

import signal


def test_a_second_process_is_refused_by_name_and_the_first_goes_on(tiny, tmp_path):
    out = tmp_path / "run"
    first = tiny.start(out, env={"VITRAIL_FAULT": "step.loss:9=hang"}).until("step 2/")
    second = tiny.run(out)
    assert second.code == 6 and f"in use by process {first.pid}" in second.text
    first.send(signal.SIGKILL)
    assert first.wait().code == -9
    third = tiny.run(out)
    assert third.code == 0, third.text
    assert tiny.digest(out) == tiny.digest(tiny.golden())
