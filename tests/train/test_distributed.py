"""One, two and four gloo ranks, DDP and FSDP2: the same gradients, the same losses, checkpoints for one another."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file

STEPS = 50
LONG = (
    f"train.steps={STEPS}", "train.log_every_steps=1", "train.micro_batch_size=4", "optim.lr=1e-3", "train.save_every_steps=50",
    "eval.every_steps=50",
)  # fmt: skip


def losses(tiny, out):
    return np.array([line["loss"] for line in tiny.lines(out) if "loss" in line])


@pytest.mark.parametrize(
    ("ranks", "parallel"),
    [
        (2, "ddp"),
        pytest.param(2, "fsdp", marks=pytest.mark.scorecard),
        pytest.param(4, "ddp", marks=pytest.mark.scorecard),
        (4, "fsdp"),
    ],
)
def test_fifty_losses_in_float32_are_those_of_one_rank(tiny, tmp_path, ranks, parallel):
    out = tmp_path / "run"
    done = tiny.ranks(ranks, out, *LONG, f"train.parallel={parallel}")
    assert [d.code for d in done] == [0] * ranks, done[0].text
    one = tiny.golden(*LONG)
    wanted = losses(tiny, one)
    assert len(wanted) == STEPS and wanted.std() > 1e-3
    np.testing.assert_allclose(losses(tiny, out), wanted, rtol=1e-5)
    ours, theirs = tiny.lines(out)[-1]["eval"], tiny.lines(one)[-1]["eval"]
    assert ours["images"] == theirs["images"] == 16  # each image once, whatever the number of ranks
    assert ours["top1"] == theirs["top1"] and ours["loss"] == pytest.approx(theirs["loss"], rel=1e-5)


@pytest.mark.parametrize("count", [2, pytest.param(4, marks=pytest.mark.scorecard)])
def test_gradients_of_several_ranks_are_those_of_one(tiny, tmp_path, count):
    """The first moment after one step is (1 - beta1) times the clipped gradient."""
    given = ("train.precision=fp64", "train.micro_batch_size=4", "schedule.warmup_steps=0", "train.save_every_steps=1")
    for name, ranks, parallel in (("one", 1, "ddp"), ("ddp", count, "ddp"), ("fsdp", count, "fsdp")):
        stop = {"VITRAIL_FAULT": "step.done:1=term"}
        keys = (*given, f"train.parallel={parallel}")
        done = tiny.ranks(ranks, tmp_path / name, *keys, env=stop) if ranks > 1 else [tiny.run(tmp_path / name, *keys, env=stop)]
        assert {d.code for d in done} == {75}, done[0].text
    moments = {n: load_file(tmp_path / n / "checkpoints/step-00000001/optimizer.safetensors") for n in ("one", "ddp", "fsdp")}
    for name, wanted in moments["one"].items():
        for other in ("ddp", "fsdp"):
            scale = float(wanted.abs().max())
            assert float((moments[other][name] - wanted).abs().max()) <= 1e-10 * max(scale, 1e-12), (other, name)


def test_sharded_checkpoints_resume_on_another_world_size_and_end_as_one_file(tiny, tmp_path):
    given = ("train.precision=fp64", "train.micro_batch_size=4", "train.log_every_steps=1")
    sharded = ("train.parallel=fsdp", "train.sharded_checkpoints=true")
    out = tmp_path / "run"
    done = tiny.ranks(4, out, *given, *sharded, env={0: {"VITRAIL_FAULT": "step.done:5=term"}})
    assert [d.code for d in done] == [75] * 4, done[0].text
    folder = out / "checkpoints" / "step-00000005"
    assert list((folder / "shards").glob("*.distcp")) and not list(folder.glob("*.safetensors"))
    assert "shards/.metadata" in json.loads((folder / "MANIFEST.json").read_text())["files"]
    done = tiny.ranks(2, out, *given, *sharded, env={0: {"VITRAIL_FAULT": "step.done:3=term"}})
    assert [d.code for d in done] == [75] * 2, done[0].text
    assert tiny.checkpoints(out)[-1] == 8
    done = tiny.run(out, *given)  # one process, whole files from here on
    assert done.code == 0, done.text
    one = tiny.golden(*given)
    np.testing.assert_allclose(losses(tiny, out), losses(tiny, one), rtol=1e-6)
    ours, theirs = load_file(out / "last.safetensors"), load_file(one / "last.safetensors")
    assert ours.keys() == theirs.keys()
    assert all(float((ours[name] - theirs[name]).abs().max()) <= 1e-6 for name in ours)
