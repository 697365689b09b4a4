"""T10: NaN and Inf change no weight, are reported with the images, and end the run with 4."""

import json

import pytest
from safetensors.torch import load_file


def weights(out, step):
    folder = out / "checkpoints" / f"step-{step:08d}"
    return {name: load_file(folder / f"{name}.safetensors") for name in ("model", "optimizer", "ema")}


def same(a, b):
    return all(a[part][name].equal(b[part][name]) for part in a for name in a[part])


@pytest.mark.parametrize("poison", ["step.loss:9=nan", "step.loss:10=inf", "step.gradient:5=nan"])
def test_the_run_stops_with_the_weights_from_before(tiny, tmp_path, poison):
    """Each poisons step 4, counted from 0 (two micro-batches a step)."""
    out = tmp_path / "run"
    done = tiny.run(out, env={"VITRAIL_FAULT": poison})
    assert done.code == 4, done.text
    assert "step 4" in done.text and "no weight was changed" in done.text and "train.skip_nonfinite=1" in done.text
    entry = json.loads((out / "nonfinite.json").read_text())["steps"][0]
    assert entry["step"] == 4 and len(entry["samples"]) == 16 and all("train/" in name or name for name in entry["samples"])
    if "loss" in poison:
        assert len(entry["suspects"]) == 8  # the poisoned micro-batch
    clean = tmp_path / "clean"
    assert tiny.run(clean, env={"VITRAIL_FAULT": "step.done:4=term"}).code == 75
    assert tiny.checkpoints(out)[-1] == 4 and same(weights(out, 4), weights(clean, 4))


def test_without_the_cause_the_same_command_goes_on_to_the_same_end(tiny, tmp_path):
    out = tmp_path / "run"
    assert tiny.run(out, env={"VITRAIL_FAULT": "step.loss:9=nan"}).code == 4
    assert tiny.run(out).code == 0
    assert {**tiny.digest(out), "newest": ""} == {**tiny.digest(tiny.golden()), "newest": ""}


def test_an_allowance_passes_over_so_many_steps_and_no_more(tiny, tmp_path):
    out = tmp_path / "run"
    done = tiny.run(out, "train.skip_nonfinite=1", env={"VITRAIL_FAULT": "step.loss:9=nan"})
    assert done.code == 0 and "passed over (1 of 1)" in done.text
    other = tmp_path / "other"
    done = tiny.run(other, "train.skip_nonfinite=1", env={"VITRAIL_FAULT": "step.loss:9=nan,step.loss:13=nan"})
    assert done.code == 4 and [e["step"] for e in json.loads((other / "nonfinite.json").read_text())["steps"]] == [4, 6]


def test_a_step_passed_over_leaves_average_and_optimizer_alone(tiny, tmp_path):
    out = tmp_path / "run"
    given = ("train.skip_nonfinite=1", "train.save_every_steps=1", "train.keep_checkpoints=20")
    assert tiny.run(out, *given, env={"VITRAIL_FAULT": "step.loss:9=nan"}).code == 0
    assert same(weights(out, 4), weights(out, 5)) and not same(weights(out, 5), weights(out, 6))


def test_one_rank_is_enough_and_all_agree(tiny, tmp_path):
    out = tmp_path / "run"
    done = tiny.ranks(2, out, "train.micro_batch_size=4", env={1: {"VITRAIL_FAULT": "step.loss:9=nan"}})
    assert [d.code for d in done] == [4, 4], done[0].text + done[1].text
    entry = json.loads((out / "nonfinite.json").read_text())["steps"][0]
    assert entry["step"] == 4 and len(entry["samples"]) == 16 and len(entry["suspects"]) == 4


def test_an_overflow_that_the_scale_absorbs_is_not_reported(tiny, tmp_path):
    out = tmp_path / "run"
    done = tiny.run(out, "train.precision=fp16", env={"VITRAIL_FAULT": "step.gradient:3=inf"})
    assert done.code == 0 and not (out / "nonfinite.json").exists()
