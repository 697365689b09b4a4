"""T21: the recorded loss curve of each family of models stays equal when the code changes: 100 steps in float32.

After a change that is meant to move them: python tests/faults/test_T21_recorded_loss.py records them again.
"""

import json
from pathlib import Path

import pytest
import torch

from vitrail.config import from_dict
from vitrail.train.loop import train

RECORD = Path(__file__).parents[1] / "golden" / "t21" / "losses.json"
VIT = {"name": "mu/8", "options": {"dropout": 0.1}}
ROUNDING = {"bit": 5e-4}  # convolutions are summed by what the processor has: 1.4e-4 was seen between two
FAMILIES = {
    "vit": {"model": VIT},
    "vit, mean of tokens, fixed positions": {"model": {"name": "mu/8", "options": {"pool": "gap", "position": "sincos2d"}}},
    "axial": {"model": {"name": "AxialViT-mu/8"}},
    "bit": {"model": {"name": "R50x1", "options": {"layers": [1, 1], "width_factor": 0.5, "root": "small"}}},
    "masked patches": {"model": VIT, "objective": {"loss": "masked_patches"}, "augment": {}},
}


def curve(out, family):
    """Means of ten steps each, on one thread."""
    table = {
        "data": {"train": "builtin:shapes?n=128&size=32&classes=4&test=8", "eval_split": "nothing", "workers": 0, "resident": False},
        "augment": {"mixup": 0.2},
        "optim": {"lr": 2e-3, "weight_decay": 0.1, "clip_norm": 1.0},
        "schedule": {"warmup_steps": 10},
        "train": {"batch_size": 8, "steps": 100, "precision": "fp32", "log_every_steps": 10, "save_every_steps": 1000},
        **family,
    }
    table["model"] = {**table["model"], "image_size": [32, 32]}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train(from_dict(table), out, progress=False, device="cpu")
    finally:
        torch.set_num_threads(threads)
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.skipif(not torch.__version__.startswith("2.13"), reason="recorded with torch 2.13; another torch draws other first weights")
@pytest.mark.parametrize("name", [name if name == "vit" else pytest.param(name, marks=pytest.mark.scorecard) for name in FAMILIES])
def test_the_curve_is_the_recorded_one(tmp_path, name):
    assert curve(tmp_path / "run", FAMILIES[name]) == pytest.approx(json.loads(RECORD.read_text())[name], rel=ROUNDING.get(name, 1e-4))


if __name__ == "__main__":
    import tempfile

    RECORD.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        found = {name: curve(Path(folder) / str(n), family) for n, (name, family) in enumerate(FAMILIES.items())}
    RECORD.write_text(json.dumps(found, indent=1) + "\n")
