"""S17: what is served is what was measured: the same logits for every format, to the last bit at the same batch shape."""

import io
import json

import numpy as np
import pytest
import torch
from PIL import Image
from serving_harness import Client, Server, in_threads, picture

from vitrail.data.loader import EvalStream
from vitrail.data.source import open_source
from vitrail.evaluate.score import answers_of
from vitrail.weights.load import load_model

BATCH = 4
FORMATS = {
    "a.png": ("RGB", "PNG", {}),
    "b.jpg": ("RGB", "JPEG", {"quality": 80}),
    "c.jpg": ("CMYK", "JPEG", {}),
    "d.jpg": ("RGB", "JPEG", {"exif": 6}),  # lies on its side
    "e.webp": ("RGB", "WEBP", {}),
    "f.gif": ("P", "GIF", {}),
    "g.png": ("RGBA", "PNG", {}),
    "h.png": ("I;16", "PNG", {}),
    "i.tiff": ("RGB", "TIFF", {}),
    "j.bmp": ("RGB", "BMP", {}),
    "k.png": ("L", "PNG", {}),
    "l.jpg": ("RGB", "JPEG", {"progressive": True, "quality": 30}),
}


def written(number, mode, format, options) -> bytes:
    image = Image.fromarray(picture(number, (37 + 5 * number, 61)))
    if mode == "I;16":
        image = Image.fromarray(np.asarray(image.convert("L"), np.uint16) * 257)
    elif mode == "RGBA":
        image.putalpha(Image.fromarray(picture(99, image.size[::-1])[..., 0]))
    else:
        image = image.convert(mode)
    if "exif" in options:
        exif = Image.Exif()
        exif[0x0112] = options["exif"]
        options = {"exif": exif}
    out = io.BytesIO()
    image.save(out, format, **options)
    return out.getvalue()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """One image of each format, in a folder of one class."""
    root = tmp_path_factory.mktemp("mixed")
    (root / "ant").mkdir()
    for number, (name, made) in enumerate(FORMATS.items()):
        (root / "ant" / name).write_bytes(written(number, *made))
    return root


@pytest.fixture(scope="module")
def evaluated(weights, mixed):
    """name -> the logits that evaluation sees, in batches of 4."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)  # as the server under test
    try:
        model = load_model(weights)
        source = open_source(str(mixed), None, allow="all")
        with EvalStream(source, model.card.transform(), batch_size=BATCH, workers=0) as stream:
            parts = list(answers_of(model, stream, device="cpu", precision="fp32", classes=10, owner=None, keep_scores=True))
        rows = {source.id(int(i)).rsplit("/", 1)[-1]: row for part in parts for i, row in zip(part.index, part.scores)}
    finally:
        torch.set_num_threads(before)
    assert set(rows) == set(FORMATS)
    return rows


def served(server, mixed, name):
    status, body, _ = Client(server).post("/predict?logits=1", (mixed / "ant" / name).read_bytes(), "application/octet-stream")
    assert status == 200, (name, body)
    return np.asarray(json.loads(body)["logits"], np.float32)


def test_at_the_same_batch_shape_the_logits_are_equal_to_the_bit(server, mixed, evaluated):
    for name, expected in evaluated.items():
        assert np.array_equal(served(server, mixed, name), expected), name


def test_in_batches_of_any_size_they_agree_to_1e_5(weights, mixed, evaluated, tmp_path):
    free = Server(weights, options=("--max-batch", "12"), log=tmp_path / "log").ready()
    try:
        names = list(FORMATS) * 2
        for name, got in zip(names, in_threads(len(names), lambda k: served(free, mixed, names[k]))):
            assert np.abs(got - evaluated[name]).max() <= 1e-5 * np.abs(evaluated[name]).max(), name
    finally:
        assert free.stop() == 0
