"""T09: a run that goes 1 -> 4 -> 2 ranks keeps its samples, its draws, and its loss."""

import numpy as np

LEARNS = ("optim.lr=1e-2", "train.micro_batch_size=4", "train.log_every_steps=1")


def losses(tiny, out):
    return np.array([line["loss"] for line in tiny.lines(out) if "loss" in line])


def test_from_one_to_four_to_two_ranks_in_double_precision(tiny, tmp_path):
    given = (*LEARNS, "train.precision=fp64")
    out = tmp_path / "run"
    assert tiny.run(out, *given, env={"VITRAIL_FAULT": "step.done:4=term"}).code == 75
    stopped = tiny.ranks(4, out, *given, env={1: {"VITRAIL_FAULT": "step.done:4=term"}})
    assert [done.code for done in stopped] == [75] * 4, stopped[0].text
    assert tiny.checkpoints(out)[-1] == 8
    done = tiny.ranks(2, out, *given)
    assert [d.code for d in done] == [0, 0], done[0].text
    wanted = losses(tiny, tiny.golden(*given))
    np.testing.assert_allclose(losses(tiny, out), wanted, rtol=1e-6)
    assert wanted.max() - wanted.min() > 0.01  # something was learned, so there was something to get wrong
