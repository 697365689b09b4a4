"""The report: everything a model can have, nothing it cannot, as arrays, files and a page that stands alone."""

from __future__ import annotations

import csv
import io
import json
import re

import numpy as np
import pytest
import torch
from kinds import KINDS, small
from PIL import Image

from vitrail import cli
from vitrail.errors import DataError, ResourceError, UsageError
from vitrail.inspect.figures import figures
from vitrail.inspect.maps import attention_rollout, gradient_rollout
from vitrail.inspect.page import page, payload
from vitrail.inspect.report import inspect
from vitrail.model.config import ResNetConfig
from vitrail.model.resnet import ResNet


def jpeg(pixels, orientation=1):
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", exif=exif)
    return out.getvalue()


def noise(seed, height=30, width=50):
    return np.random.default_rng(seed).integers(0, 256, (height, width, 3), dtype=np.uint8)


@pytest.fixture
def photos(tmp_path):
    """Two classes, one picture turned by EXIF, one file that is no image."""
    for k, name in enumerate(("cat", "dog")):
        (tmp_path / "photos" / name).mkdir(parents=True)
        for i in range(4):
            (tmp_path / "photos" / name / f"{i}.jpg").write_bytes(jpeg(noise(10 * k + i), orientation=6 if i == 1 else 1))
    (tmp_path / "photos" / "cat" / "broken.jpg").write_bytes(b"\xff\xd8\xff nothing")
    return tmp_path / "photos"


@pytest.mark.parametrize("kind", [*KINDS, "axial"])
def test_every_kind_of_model_gets_a_page(kind):
    model = small(kind, classes=3).float()
    report = inspect(model, "builtin:shapes?size=12x20&n=9&test=9&classes=3", count=9, show=2, tsne=False)
    assert report.attention is not None and report.shown.rollout is not None and report.shown.gradient is not None and report.positions
    assert report.shown.heads.shape[:2] == (2, len(report.attention.layers))
    assert "/*" not in page(report)[:2000] and not model.training


@pytest.mark.parametrize("kind", ["class token", "axial"])
def test_the_figures_and_numbers_are_written(kind, tmp_path):
    report = inspect(small(kind, classes=3).float(), "builtin:shapes?size=12x20&test=9&classes=3", out=tmp_path, count=9, show=2)
    names = {path.name for path in tmp_path.iterdir()}
    assert {"report.html", "report.json", "attention.csv", "filters.csv", "images.csv", "maps.npz"} <= names
    assert {f"{name}.png" for name in figures(report)} <= names
    assert {"filters", "filters_raw", "positions", "attention_distance", "attention_entropy", "token_colours", "rollout"} <= set(
        figures(report)
    )
    assert len(json.loads((tmp_path / "report.json").read_text())["attention"]) == report.attention.distance.numel()


def test_the_arrays_are_those_of_the_functions_on_the_same_images(tmp_path):
    model = small("class token").float()
    report = inspect(model, "builtin:shapes?size=12x20&test=9&classes=5", count=9, show=3, out=tmp_path)
    views = torch.stack([report.pictures.read(place).view for place in report.shown.places])
    assert torch.equal(report.shown.rollout, attention_rollout(model, views))
    assert torch.equal(report.shown.gradient, gradient_rollout(model, views))
    saved = np.load(tmp_path / "maps.npz")
    assert np.array_equal(saved["rollout"], report.shown.rollout.numpy()) and saved["distance"].shape == (4, 3)
    rows = list(csv.DictReader((tmp_path / "attention.csv").open()))
    assert float(rows[5]["distance_px"]) == pytest.approx(report.attention.distance[1, 2].item())


def test_the_page_stands_alone_and_shows_names_only_as_data(tmp_path):
    model = small("gap", classes=2).float()
    images = [noise(i) for i in range(4)]
    nasty = ("</script><img src=x onerror=alert(1)>", "https://elsewhere.example/x.js")
    from vitrail.data.source import open_source

    inspect(model, open_source((images, [0, 1, 0, 1]), classes=nasty), out=tmp_path, show=2)
    html = (tmp_path / "report.html").read_text()
    assert "<img src=x" not in html and html.count("</script>") == 2
    markup = re.sub(r'<script id="data".*?</script>', "", html, flags=re.S)
    assert not re.search(r"""(?:src|href)\s*=\s*["']?(?:https?:|//)|url\(|@import|\bfetch\(|XMLHttpRequest""", markup)
    assert "default-src 'none'" in html and "/*DATA*/" not in html
    assert (tmp_path / "report.html").stat().st_size < 1_000_000


def test_a_folder_of_photos_with_exif_a_broken_file_and_labels(photos, tmp_path):
    report = inspect(small("class token", classes=2).float(), photos, out=tmp_path / "out", show=8)
    assert len(report.images.ids) == 8 and len(report.shown.pictures) == 8
    assert any("1 images could not be read" in note and "broken.jpg" in note for note in report.notes)
    shapes = {picture.id: picture.original.shape[:2] for picture in report.shown.pictures}
    assert shapes["cat/0.jpg"] == (30, 50) and shapes["cat/1.jpg"] == (50, 30)
    assert report.wrong[1] == 8 and {row["truth"] for row in report.to_dict()["mistakes"]} <= {"cat", "dog"}
    entry = payload(report)["pictures"][1]
    assert entry["size"] == [400, 240] or entry["box"] == [0, 0, *entry["size"]]


def test_mistakes_are_the_most_confident_wrong_answers():
    model = small("class token", classes=3).float()
    report = inspect(model, "builtin:shapes?size=12x20&test=30&classes=3", count=30, show=1)
    said = report.images.logits.argmax(1).numpy()
    assert report.wrong == (int((said != report.images.labels).sum()), 30)
    confidence = [mistake.confidence for mistake in report.mistakes]
    wrong = report.images.logits.softmax(1).max(1).values[torch.from_numpy(said != report.images.labels)]
    assert confidence == pytest.approx(sorted(wrong.tolist(), reverse=True)[:8])
    assert report.mistakes[0].said_map.shape == (3, 5) and report.mistakes[0].truth != report.mistakes[0].said


def test_a_resnet_has_filters_and_features_and_says_what_is_missing(tmp_path):
    model = ResNet(ResNetConfig(layers=(1, 1), width_factor=0.5, image_size=(32, 32), classes=2)).initialise(0).eval()
    report = inspect(model, [noise(i, 32, 32) for i in range(4)], out=tmp_path)
    assert report.attention is None and report.shown.rollout is None and not report.positions
    assert report.filters.layer == "first convolution" and report.shown.colours.shape[0] == 4
    assert any("no self-attention" in note for note in report.notes)
    assert (tmp_path / "report.html").exists() and not (tmp_path / "rollout.png").exists()


def test_what_a_model_lacks_is_left_out_with_a_reason():
    report = inspect(small("gap", position="none", classes=0).float(), [noise(0)])
    assert not report.positions and report.shown.gradient is None and report.images.flat is None
    assert any("bag of patches" in note for note in report.notes) and any("no head" in note for note in report.notes)


def test_without_images_shapes_are_drawn_and_the_report_says_so():
    report = inspect(small("class token").float(), count=8, show=1)
    assert len(report.images.ids) == 8 and any("shapes were drawn" in note for note in report.notes)


def test_another_size_than_the_weights_can_be_looked_at(tmp_path, photos):
    from vitrail.weights.store import save_model

    save_model(small("class token", classes=4).float(), tmp_path / "model.safetensors")
    report = inspect(tmp_path / "model.safetensors", photos / "dog" / "2.jpg", image_size=(24, 40))
    assert report.model["grid"] == [6, 10] and report.shown.rollout.shape == (1, 6, 10)
    with pytest.raises(UsageError, match="image_size="):
        inspect(small("class token").float(), photos, image_size=24)


def test_one_image_file_is_enough(photos):
    report = inspect(small("map").float(), photos / "dog" / "2.jpg")
    assert report.images.labels is None and report.shown.rollout.shape == (1, 3, 5)


def test_a_folder_without_classes_will_do(photos):
    report = inspect(small("map").float(), photos / "dog", count=3, show=1)
    assert len(report.images.ids) == 3 and report.wrong is None


def test_only_unreadable_images_are_an_error_of_the_data():
    with pytest.raises(DataError, match="none of the images can be read"):
        inspect(small("gap").float(), [b"no image", b"neither"])


def test_an_empty_list_and_a_file_that_is_not_there_are_refused(tmp_path):
    with pytest.raises(UsageError, match="empty list"):
        inspect(small("gap").float(), [])
    with pytest.raises(DataError, match=r"nothing\.png"):
        inspect(small("gap").float(), [tmp_path / "nothing.png"])


def test_a_place_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ResourceError, match="cannot be written"):
        inspect(small("gap").float(), [noise(0)], out=tmp_path / "file" / "below")


def test_the_command_writes_the_page_and_prints_json(tmp_path, capsys, monkeypatch):
    from vitrail.weights.store import save_model

    save_model(small("class token", classes=4).float(), tmp_path / "model.safetensors")
    monkeypatch.chdir(tmp_path)
    assert (
        cli.main(
            [
                "inspect",
                "model.safetensors",
                "--images",
                "builtin:shapes?size=24&classes=4",
                "--count",
                "8",
                "--show",
                "2",
                "--image-size",
                "16x20",
                "--json",
            ]
        )
        == 0
    )
    printed = json.loads(capsys.readouterr().out)
    assert printed["page"] == "inspect-model/report.html" and (tmp_path / printed["page"]).exists()
    assert len(printed["attention"]) == 12 and printed["images"] == 8 and printed["model"]["grid"] == [4, 5]
    assert cli.main(["inspect", "no-such-file"]) == 5
