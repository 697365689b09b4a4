"""T16: a run directory that cannot be written is refused before the first step; one that disappears ends the run with 6."""


def test_a_place_that_cannot_hold_a_run_is_refused_before_step_one(tiny, tmp_path):
    (tmp_path / "file").write_text("in the way")
    done = tiny.run(tmp_path / "file" / "run")
    assert done.code == 6 and "cannot hold a run" in done.text and "step 1" not in done.text


def test_a_directory_that_disappears_ends_the_run_and_says_where_it_was(tiny, tmp_path):
    out = tmp_path / "run"
    child = tiny.start(out, "train.steps=100000", "schedule.decay=constant", "train.log_every_steps=1").until("step 1/")
    while not tiny.lines(out) or tiny.lines(out)[-1]["step"] < 4:
        assert child.alive()
    out.rename(tmp_path / "away")  # at once: a removal file by file may meet a new file and leave the directory
    done = child.wait()
    assert done.code == 6, done.text
    assert "is gone" in done.text and "The run was at step" in done.text
