"""What the README tells people to type works, as it stands there, and what it points at is there."""

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vitrail
from vitrail import cli
from vitrail.train.proposal import Wishes

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
HUB = re.compile(r"hf://google/vit-[\w-]+")


def block(language):
    """The first block of a language, without comments."""
    return re.search(rf"^```{language}\n(.*?)^```", README, re.S | re.M)[1]


def commands():
    lines = block("sh").splitlines()
    return [shlex.split(line, comments=True)[1:] for line in lines if line.startswith("vitrail ")]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder as the README's reader has one: photos/ with a folder a class, photo.jpg, weights."""
    here = tmp_path_factory.mktemp("readme")
    rng = np.random.default_rng(0)
    for name, level in (("day", 200), ("night", 40)):
        (here / "photos" / name).mkdir(parents=True)
        for number in range(20):
            pixels = np.clip(rng.normal(level, 20, (40, 48, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(here / "photos" / name / f"{number:02d}.jpg")
    (here / "photos" / "day" / "00.jpg").rename(here / "photo.jpg")
    weights = vitrail.create_model("mu/8", classes=5, image_size=32)
    vitrail.save_model(weights, here / "public.safetensors")
    vitrail.save_model(weights, here / "ViT-B_16.safetensors")
    return here


def test_the_commands_work_in_their_order_as_they_stand(place, warm):
    told = commands()
    assert [line[0] for line in told] == ["finetune", "eval", "predict", "inspect", "export", "serve"]
    for line in told[:-1]:
        line = [HUB.sub("public.safetensors", word) for word in line]
        if line[0] == "finetune":
            line += ["--steps", "30"]  # the schedule is not what is tested
        done = warm.run(line, timeout_s=120, cwd=place)
        assert done.code == 0, f"vitrail {shlex.join(line)}\n{done.text}"
        if line[0] == "predict":
            assert re.search(r"day|night", done.text), done.text
    assert (place / "inside" / "report.html").stat().st_size > 10_000
    assert (place / "photos.onnx").is_file()
    server = warm.start([*told[-1], "--port", "0"], cwd=place)
    server.until("http://127.0.0.1:")
    server.send(15)
    assert server.wait().code == 0


def test_the_python_lines_run_as_they_stand(place, monkeypatch, capsys):
    monkeypatch.chdir(place)
    code = block("python").replace("ViT-B_16.npz", "ViT-B_16.safetensors").replace('"photos/")', '"photos/", wishes=Wishes(steps=4))')
    code = code.replace('"B/16"', '"mu/16"')
    names: dict = {"Wishes": Wishes}
    exec(code, names)
    assert isinstance(names["logits"], torch.Tensor) and names["logits"].shape == (1, 5)
    assert "held-out images" in capsys.readouterr().out


def test_every_verb_it_names_exists_and_every_make_target_too():
    text = (ROOT / "Makefile").read_text()
    for verb in re.findall(r"`vitrail (\w+)", README):
        assert verb in cli.VERBS
    for target in re.findall(r"^make (\w+)", README, re.M):
        assert re.search(rf"^{target}:", text, re.M)


def pages():
    return [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")), ROOT / "ARCHITECTURE.md", ROOT / "CONTRIBUTING.md"]


@pytest.mark.parametrize("page", pages(), ids=lambda path: path.name)
def test_a_page_points_at_files_that_exist(page):
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} points at {target}"
