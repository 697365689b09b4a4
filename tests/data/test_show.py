"""`data show`: a sheet that shows what training sees."""

import json

import numpy as np
import pytest
from photos import folder, jpeg

from vitrail.cli import main
from vitrail.config import AugmentSpec
from vitrail.data.crop import TrainView
from vitrail.data.decode import decode
from vitrail.data.show import show
from vitrail.kernels import draws


def test_images_lie_in_the_sheet_as_they_are_and_as_they_are_cropped(tmp_path):
    view = TrainView(image_size=(32, 32))
    result = show("builtin:shapes?n=8&size=32", tmp_path / "s.png", count=4, cell=34, view=view, views=2)
    sheet = decode((tmp_path / "s.png").read_bytes())
    assert sheet.shape == (result.height, result.width, 3) and (result.images, result.views) == (4, 2)
    from vitrail.data.source import open_source
    from vitrail.data.split import shuffled

    source = open_source("builtin:shapes?n=8&size=32", "train")
    first = source.read(int(shuffled(source.labels, 0)[0])).data
    assert np.array_equal(sheet[7:39, 7:39], first)
    cut = view.pixels(first, draws.Stream(draws.key(0, "crop"), 0))
    assert np.array_equal(sheet[7:39, 41:73], cut)


def test_a_recipes_augmentation(tmp_path, capsys):
    out = tmp_path / "s.png"
    arguments = ["data", "show", "builtin:fashion", "--out", str(out), "--count", "8", "--size", "28", "--cell", "32"]
    assert main([*arguments, "--recipe", "deit:S", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["views"] == 3
    spec = AugmentSpec(randaugment="tf", randaugment_layers=2, randaugment_magnitude=15, mixup=0.5)
    plain = show("builtin:fashion", out, count=8, cell=32, view=TrainView(28)) and out.read_bytes()
    strong = show("builtin:fashion", out, count=8, cell=32, view=TrainView(28), augment=spec) and out.read_bytes()
    again = show("builtin:fashion", out, count=8, cell=32, view=TrainView(28), augment=spec) and out.read_bytes()
    assert plain != strong == again


def test_several_labels_and_no_views(tmp_path):
    result = show("builtin:shapes?n=8&multilabel=1", tmp_path / "s.png", count=8, views=0)
    assert result.views == 0 and result.images == 8


def test_an_image_that_cannot_be_read_is_shown_as_such(tmp_path, capsys):
    folder(tmp_path / "in", ("a\nb", "caf\u00e9 \U0001f431"), count=2)
    (tmp_path / "in" / "a\nb" / "cut.jpg").write_bytes(jpeg(9, 64, 64)[:-200])
    assert main(["data", "show", str(tmp_path / "in"), "--out", str(tmp_path / "s.png"), "--size", "16", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["images"] == 5 and len(result["unreadable"]) == 1 and "truncated" in result["unreadable"][0]


@pytest.mark.parametrize("count", [1, 3, 33])
def test_any_number_of_images(tmp_path, count):
    assert show("builtin:shapes?n=40", tmp_path / "s.png", count=count, cell=32, views=1, augment=AugmentSpec()).images == count


def test_a_recipe_brings_its_size_and_its_grey(tmp_path, monkeypatch):
    recipe = tmp_path / "r.toml"
    recipe.write_text('[model]\nname = "Ti/16@48"\n[data]\nmean = [0.1, 0.2, 0.3]\n[augment]\nerasing = 0.5\n')
    asked = {}
    monkeypatch.setattr("vitrail.data.show.show", lambda *_args, **options: asked.update(options) or "")
    assert main(["data", "show", "builtin:fashion", "--recipe", str(recipe)]) == 0
    assert asked["view"].image_size == (48, 48) and asked["mean"] == (0.1, 0.2, 0.3)
    assert main(["data", "show", "builtin:fashion", "--recipe", str(recipe), "--size", "32"]) == 0
    assert asked["view"].image_size == (32, 32)


def test_the_name_decides_the_format_and_folders_are_made(tmp_path):
    show("builtin:shapes?n=4", tmp_path / "new" / "s.jpg", count=2, cell=32)
    assert (tmp_path / "new" / "s.jpg").read_bytes()[:2] == b"\xff\xd8"


def test_an_output_that_cannot_be_is_one_sentence(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert main(["data", "show", "builtin:shapes?n=4", "--out", str(tmp_path / "s.gif")]) == 2
    assert main(["data", "show", "builtin:shapes?n=4", "--out", str(tmp_path / "file" / "s.png")]) == 6
    error = capsys.readouterr().err
    assert "a .png or a .jpg" in error and "cannot be written" in error
