"""torch.compile changes no mathematics, and on a GPU not one bit of an interrupted run."""

import json

import pytest
import torch

from vitrail.config import from_dict
from vitrail.train.loop import train

TABLE = {
    "name": "tiny",
    "model": {"name": "mu/8", "image_size": [32, 32], "options": {"depth": 1, "dropout": 0.1, "drop_path": 0.1}},
    "data": {"train": "builtin:shapes?n=64&size=32&classes=4&test=16", "eval_split": "test", "workers": 0, "resident": False},
    "augment": {"mixup": 0.5},
    "ema": {"decay": 0.9},
}


@pytest.mark.scorecard
@pytest.mark.timeout(900)
def test_a_compiled_run_under_a_compiled_teacher_computes_what_the_plain_one_does(tmp_path):
    teacher = train(from_dict({**TABLE, "train": {"batch_size": 16, "steps": 1}}), tmp_path / "teacher", progress=False, device="cpu")
    found = []
    for on in (False, True):
        keys = {"batch_size": 16, "steps": 4, "log_every_steps": 1, "compile": on, "deterministic": True}
        given = {**TABLE, "train": keys, "objective": {"teacher": str(teacher.model), "distill": "soft"}}
        try:
            train(from_dict(given), tmp_path / str(on), progress=False, device="cpu")
        finally:
            torch.use_deterministic_algorithms(False)
        lines = (tmp_path / str(on) / "metrics.jsonl").read_text().splitlines()
        found.append([line["loss"] for line in map(json.loads, lines) if "loss" in line])
    assert len(found[0]) == 4 and found[1] == pytest.approx(found[0], rel=1e-5)


@pytest.mark.gpu
@pytest.mark.timeout(900)
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_compiled_run_in_bfloat16_that_is_stopped_and_killed_ends_with_the_same_bits(tiny, tmp_path):
    keys = ("train.precision=bf16", "train.compile=true", "train.deterministic=true", "data.resident=true", "train.micro_batch_size=16")
    whole, out = tmp_path / "whole", tmp_path / "run"
    assert tiny.run(whole, *keys, timeout_s=300).code == 0  # the compiler takes its time
    assert tiny.run(out, *keys, env={"VITRAIL_FAULT": "step.done:5=term"}, timeout_s=300).code == 75
    assert tiny.run(out, *keys, env={"VITRAIL_FAULT": "step.done:3=kill"}, timeout_s=300).code == -9
    done = tiny.run(out, *keys, timeout_s=300)
    assert done.code == 0, done.text
    assert tiny.digest(out) == tiny.digest(whole)
