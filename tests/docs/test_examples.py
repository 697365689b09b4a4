"""The examples run, each as a reader would start it, and stay short."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitrail

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    here = tmp_path_factory.mktemp("examples")
    rng = np.random.default_rng(0)
    for name, level in (("day", 200), ("night", 40)):
        (here / "photos" / name).mkdir(parents=True)
        for number in range(12):
            pixels = np.clip(rng.normal(level, 20, (32, 40, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(here / "photos" / name / f"{number:02d}.png")
    vitrail.save_model(vitrail.create_model("mu/8", classes=["a", "b", "c"], image_size=32), here / "weights.safetensors")
    return here


ARGUMENTS = {
    "quickstart.py": ["0.1", "quick"],
    "finetune_photos.py": ["weights.safetensors", "photos", "0.05", "photos/day/00.png"],
    "own_loop.py": ["3", "own.safetensors"],
    "look_inside.py": ["weights.safetensors", "photos/day/00.png"],
    "convert_weights.py": ["weights.safetensors", "homes"],
}
LEAVES = {
    "quickstart.py": ["quick/last.safetensors", "quick/report.html", "quick/inside/report.html"],
    "finetune_photos.py": ["runs/weights-photos/last.safetensors"],
    "own_loop.py": ["own.safetensors"],
    "look_inside.py": ["rollout.png"],
    "convert_weights.py": ["homes/npz.npz", "homes/timm/model.safetensors", "homes/hf/config.json"],
}


def test_every_example_is_tried_here():
    assert {path.name for path in EXAMPLES.glob("*.py")} == set(ARGUMENTS)


@pytest.mark.parametrize("name", sorted(ARGUMENTS))
def test_an_example_runs(name, place, warm):
    done = warm.run([EXAMPLES / name, *ARGUMENTS[name]], timeout_s=120, cwd=place)
    assert done.code == 0, done.text
    assert done.text.strip()
    for file in LEAVES[name]:
        assert (place / file).is_file(), file


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.py")), ids=lambda path: path.name)
def test_an_example_fits_on_a_screen(path):
    assert len(path.read_text().splitlines()) <= 40
