"""T12: a device that runs out of memory: the same batch in smaller pieces, or an error with a setting that fits."""

import numpy as np
import pytest
import torch

OOM = {"VITRAIL_FAULT": "step.loss:3=oom"}


def test_pieces_are_halved_and_the_batch_stays_the_batch(tiny, tmp_path):
    out = tmp_path / "run"
    whole = ("train.micro_batch_size=none", "train.precision=fp64", "train.log_every_steps=1")
    done = tiny.run(out, *whole, env=OOM)
    assert done.code == 0, done.text
    assert "8 images at once" in done.text
    ours, wanted = tiny.lines(out), tiny.lines(tiny.golden(*whole))
    losses = [[line["loss"] for line in lines if "loss" in line] for lines in (ours, wanted)]
    np.testing.assert_allclose(*losses, rtol=1e-12)


def test_a_size_that_was_asked_for_is_refused_with_one_that_fits(tiny, tmp_path):
    done = tiny.run(tmp_path / "run", env=OOM)
    assert done.code == 6
    assert "8 images of 32x32" in done.text and "peak" in done.text and "train.micro_batch_size=4" in done.text


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_with_a_small_allowance(tmp_path):
    from vitrail.config import load_recipe
    from vitrail.train.loop import train

    keys = ["model.name=S/4", "model.image_size=64", "data.train=builtin:shapes?n=512&size=64", "train.batch_size=256", "train.steps=3"]
    recipe = load_recipe("fashion-quick", [*keys, "schedule.warmup_steps=1", "train.compile=false", "model.options.width=384"])
    torch.cuda.set_per_process_memory_fraction(0.05)
    try:
        result = train(recipe, tmp_path / "run", progress=False)
    finally:
        torch.cuda.set_per_process_memory_fraction(1.0)
    assert result.steps == 3
