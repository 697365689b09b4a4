"""T07: a run that stands still prints the stacks of all threads and ends with 6; never a silent freeze."""

import pytest


@pytest.mark.parametrize("point", ["step.gradient:3", "eval.batch:1", "commit.after_file:2"])
def test_a_hanging_main_thread_is_shown_and_ended(tiny, tmp_path, point):
    out = tmp_path / "run"
    done = tiny.run(out, "train.stall_timeout_s=1.5", env={"VITRAIL_FAULT": f"{point}=hang"}, timeout_s=30)
    assert done.code == 6, done.text
    assert "nothing finished for" in done.text and "faults.py" in done.text and "same command resumes" in done.text
    assert tiny.run(out).code == 0
    assert tiny.digest(out) == tiny.digest(tiny.golden())
