"""T22: checkpoints of every earlier release resume, and end where that release itself ended.

At a release: python tests/faults/test_T22_earlier_releases.py stores a checkpoint of this version
and what became of it, in tests/golden/t22/VERSION.
"""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from vitrail.config import load_recipe
from vitrail.errors import Preempted
from vitrail.runtime import faults
from vitrail.train.loop import train

STORE = Path(__file__).parents[1] / "golden" / "t22"
RECIPE = """
paper = "tests"
[model]
name = "mu/8"
image_size = [32, 32]
options = { width = 16, mlp_width = 32, dropout = 0.1 }
[data]
train = "builtin:shapes?n=64&size=32&classes=4&test=16"
eval_split = "test"
workers = 0
resident = false
[augment]
mixup = 0.2
[optim]
lr = 1e-2
weight_decay = 0.1
clip_norm = 1.0
[ema]
decay = 0.9
[train]
batch_size = 16
steps = 12
log_every_steps = 1
keep_checkpoints = 1
precision = "fp32"
"""


def go(folder):
    return train(load_recipe(folder / "recipe.toml"), folder / "run", progress=False, device="cpu")


def losses(folder):
    lines = [json.loads(line) for line in (folder / "run" / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.parametrize("version", sorted(p.name for p in STORE.iterdir()))
def test_a_stored_checkpoint_goes_on_as_its_own_release_did(tmp_path, version):
    folder = tmp_path / version
    shutil.copytree(STORE / version, folder)
    result = go(folder)
    assert result.resumed_from == 6 and result.steps == 12
    assert losses(folder) == pytest.approx(json.loads((folder / "losses.json").read_text()), rel=1e-4)
    ours, theirs = load_file(folder / "run/last.safetensors"), load_file(folder / "end.safetensors")
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=1e-3, atol=1e-4)


def store():
    from vitrail import __version__

    folder = STORE / __version__
    folder.mkdir(parents=True)
    (folder / "recipe.toml").write_text(RECIPE)
    faults.arm("step.done:6=term")
    try:
        go(folder)
    except Preempted:
        faults.arm(None)
    scratch = folder.with_name("scratch")
    shutil.copytree(folder, scratch)
    go(scratch)
    (folder / "losses.json").write_text(json.dumps(losses(scratch)) + "\n")
    shutil.copy(scratch / "run/last.safetensors", folder / "end.safetensors")
    shutil.rmtree(scratch)
    for name in ("run.json", "best.safetensors"):
        (folder / "run" / name).unlink()


if __name__ == "__main__":
    store()
