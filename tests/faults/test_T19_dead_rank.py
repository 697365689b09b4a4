"""T19: a rank dies: the others leave within a minute, and a restart resumes."""

import time


def test_when_one_rank_is_killed_the_others_leave_and_a_restart_finishes(tiny, tmp_path):
    out = tmp_path / "run"
    given = ("train.micro_batch_size=4",)
    begin = time.monotonic()
    done = tiny.ranks(2, out, *given, env={1: {"VITRAIL_FAULT": "step.gradient:5=kill"}}, timeout_s=60)
    assert [d.code != 0 for d in done] == [True, True] and done[1].code == -9
    assert time.monotonic() - begin < 60
    assert tiny.checkpoints(out) == [3]
    again = tiny.ranks(2, out, *given)
    assert [d.code for d in again] == [0, 0], again[0].text
    assert "resuming from step 3" in again[0].text
