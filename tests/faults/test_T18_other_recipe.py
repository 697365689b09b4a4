"""T18: a recipe that differs on resume: what cannot change is refused, what changes the weights needs --override."""

import json

import numpy as np
import pytest
from PIL import Image


@pytest.fixture(scope="module")
def stopped(tiny, tmp_path_factory):
    out = tmp_path_factory.mktemp("T18") / "run"
    assert tiny.run(out, env={"VITRAIL_FAULT": "step.done:4=term"}).code == 75
    return out


@pytest.mark.parametrize("change", ["model.options.depth=3", "train.batch_size=32", "train.seed=1", "optim.name=sgd", "ema.decay=0.99"])
def test_what_the_checkpoint_depends_on_is_refused(tiny, stopped, change):
    for flags in ((), ("--override",)):
        done = tiny.run(stopped, change, *flags)
        assert done.code == 2 and change.split("=")[0] in done.text and "cannot change on the way" in done.text


def test_a_rate_needs_override_and_the_difference_is_printed(tiny, stopped):
    done = tiny.run(stopped, "optim.lr=1e-4")
    assert done.code == 2 and "optim.lr: 0.003 -> 0.0001" in done.text and "--override" in done.text
    done = tiny.run(stopped, "optim.lr=1e-4", "--override", env={"VITRAIL_FAULT": "step.done:1=term"})
    assert done.code == 75 and "changed on resume: optim.lr" in done.text
    assert json.loads((stopped / "run.json").read_text())["recipe"]["optim"]["lr"] == 1e-4


def test_logging_and_saving_may_change_freely(tiny, stopped):
    done = tiny.run(
        stopped, "optim.lr=1e-4", "train.log_every_steps=1", "train.save_every_steps=1", env={"VITRAIL_FAULT": "step.done:1=term"}
    )
    assert done.code == 75, done.text


def test_other_data_is_refused_until_accepted(tiny, tmp_path):
    out = tmp_path / "run"
    assert tiny.run(out, env={"VITRAIL_FAULT": "step.done:4=term"}).code == 75
    state = out / "checkpoints/step-00000004/state.json"
    saved = json.loads(state.read_text())
    changed = json.dumps({**saved, "data": {**saved["data"], "fingerprint": "0" * 32}})
    _rewrite(out / "checkpoints/step-00000004", changed)
    done = tiny.run(out)
    assert done.code == 5 and "--accept-dataset-change" in done.text
    assert tiny.run(out, "--accept-dataset-change").code == 0


def test_the_same_images_may_lie_somewhere_else(tiny, tmp_path):
    """A checkpoint that was carried to another machine finds its data under another address."""
    for place in ("here", "there"):
        for number in range(24):
            path = tmp_path / place / "photos" / f"{number % 4}" / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), np.uint8)
            Image.fromarray(pixels).save(path)
    out = tmp_path / "run"
    keys = ("train.sure=true", "data.eval_split=train[:8]", "data.train_split=train[8:]")
    assert tiny.run(out, f"data.train={tmp_path}/here/photos", *keys, env={"VITRAIL_FAULT": "step.done:4=term"}).code == 75
    done = tiny.run(out, f"data.train={tmp_path}/there/photos", *keys)
    assert done.code == 0, done.text
    assert tiny.run(out, f"data.train={tmp_path}/there/photos", *keys[:-1], "data.train_split=train[9:]").code == 5


def _rewrite(folder, text):
    """Another state.json, and a manifest that agrees with it."""
    import hashlib

    (folder / "state.json").write_text(text)
    manifest = json.loads((folder / "MANIFEST.json").read_text())
    manifest["files"]["state.json"] = {"size": len(text.encode()), "sha256": hashlib.sha256(text.encode()).hexdigest()}
    (folder / "MANIFEST.json").write_text(json.dumps(manifest))
