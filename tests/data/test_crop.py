import io
import json
from pathlib import Path

import numpy as np
import pytest

from vitrail.config import DataSpec
from vitrail.data.crop import VARIANTS, TrainView, bit_sizes, inception_box, random_resized_box, variant
from vitrail.data.resize import resize
from vitrail.errors import UsageError
from vitrail.kernels import draws

GOLDEN = Path(__file__).parents[1] / "golden" / "p01"
CASE = json.loads((GOLDEN / "case.json").read_text())
WORDS = draws.key(0, "crop")


def distance(counts, expected):
    """Kolmogorov's distance of two histograms over the same bins."""
    return np.abs(np.cumsum(counts) / np.sum(counts) - np.cumsum(expected) / np.sum(expected)).max()


@pytest.mark.parametrize("size", [(224, 224), (375, 500), (96, 160)])
def test_the_inception_crop_is_tensorflows_distribution(size):
    height, width = size
    name = f"{height}x{width}"
    boxes = np.array([inception_box(height, width, draws.Stream(WORDS, i)) for i in range(100_000)])
    top, left, h, w = boxes.T
    with np.load(GOLDEN / "arrays.npz") as golden:
        area = np.histogram(h * w / (height * width), 50, (0, 1))[0]
        assert distance(area, golden[f"hist_area_{name}"]) < 0.01
        both = np.histogram2d(h / height, w / h, bins=(20, 12), range=((0, 1), (0.7, 1.4)))[0]
        expected = golden[f"hist2d_height_vs_aspect_{name}"]
        assert distance(both.sum(0), expected.sum(0)) < 0.01 and distance(both.sum(1), expected.sum(1)) < 0.01
        assert np.abs(both - expected).sum() / 100_000 < 0.06  # two exact samples of 100,000 differ by about 0.03
        for place, side, full, axis in ((top, h, height, "y"), (left, w, width, "x")):
            room = side < full
            relative = np.histogram(place[room] / (full - side[room]), 20, (0, 1))[0]
            assert distance(relative, golden[f"hist_relative_{axis}_{name}"]) < 0.01
    # never at the far border unless the box spans that side
    assert not ((top + h == height) & (h < height)).any() and not ((left + w == width) & (w < width)).any()
    least, most = 0.05 * height * width, height * width
    assert (h * w >= least).all() and (h * w <= most).all()


def test_torchvisions_crop_has_uniform_area_and_log_uniform_aspect():
    boxes = np.array([random_resized_box(224, 224, draws.Stream(WORDS, i), (0.08, 0.5), (3 / 4, 4 / 3)) for i in range(20_000)])
    area, aspect = boxes[:, 2] * boxes[:, 3] / 224**2, boxes[:, 3] / boxes[:, 2]
    assert distance(np.histogram(area, 20, (0.08, 0.5))[0], np.ones(20)) < 0.015
    assert distance(np.histogram(np.log(aspect), 20, (np.log(3 / 4), np.log(4 / 3)))[0], np.ones(20)) < 0.02
    assert (boxes[:, 0] + boxes[:, 2]).max() == 224  # reaches every border


def test_torchvisions_crop_falls_back_to_the_centre():
    assert random_resized_box(400, 10, draws.Stream(WORDS, 0), (0.9, 1.0)) == (193, 0, 13, 10)
    assert random_resized_box(10, 400, draws.Stream(WORDS, 0), (0.9, 1.0)) == (0, 193, 10, 13)


@pytest.fixture(scope="module")
def photo():
    rng = np.random.default_rng(0)
    return resize(rng.integers(0, 256, (9, 13, 3), dtype=np.uint8), (90, 130), "bicubic", True)


@pytest.mark.parametrize("crop", ["inception", "random_resized", "resize_crop", "pad_crop", "resize"])
@pytest.mark.parametrize("shape", [(1, 1), (1, 60), (60, 1), (90, 130), (31, 33)])
def test_every_crop_gives_its_size_for_any_image(crop, shape):
    image = np.full((*shape, 3), 77, np.uint8)
    for size in ((24, 24), (16, 32)):
        for antialias in (False, True):
            view = TrainView(size, crop, antialias=antialias)
            out = view.pixels(image, draws.Stream(WORDS, 3))
            assert out.shape == (*size, 3) and out.dtype == np.uint8
            assert (np.abs(out.astype(int) - 77) <= 1).all()


def test_a_crop_is_a_function_of_its_stream(photo):
    view = TrainView(32)
    a, b, c = (view.pixels(photo, draws.Stream(WORDS, i)) for i in (7, 7, 8))
    assert (a == b).all() and (a != c).any()


def test_inception_pixels_are_the_box_resized_and_truncated(photo):
    top, left, h, w = inception_box(90, 130, draws.Stream(WORDS, 5))
    expected = resize(photo[top : top + h, left : left + w], (32, 32), "bilinear", False, "truncate")
    assert (TrainView(32).pixels(photo, draws.Stream(WORDS, 5)) == expected).all()


def test_bit_crops_from_the_squashed_image(photo):
    view = TrainView(28, "resize_crop", crop_resize=32, crop_squash=True)
    squashed = resize(photo, (32, 32), "bilinear", False, "truncate")
    found = set()
    for i in range(60):
        out = view.pixels(photo, draws.Stream(WORDS, i))
        places = [(t, l) for t in range(5) for l in range(5) if (squashed[t : t + 28, l : l + 28] == out).all()]
        assert len(places) == 1
        found.add(places[0])
    assert len(found) > 15


def test_pad_crop_reflects(photo):
    view = TrainView((90, 130), "pad_crop", crop_pad=4)
    padded = np.pad(photo, ((4, 4), (4, 4), (0, 0)), mode="reflect")
    out = view.pixels(photo, draws.Stream(WORDS, 1))
    assert any((padded[t : t + 90, l : l + 130] == out).all() for t in range(9) for l in range(9))


def test_scaled_decoding_shows_nearly_the_same_view():
    from PIL import Image

    rng = np.random.default_rng(1)
    large = resize(rng.integers(0, 256, (9, 12, 3), dtype=np.uint8), (900, 1200), "bicubic", True)
    buffer = io.BytesIO()
    Image.fromarray(large).save(buffer, "JPEG", quality=95)
    for crop in ("inception", "random_resized", "resize_crop"):
        exact = TrainView(64, crop, antialias=True)
        fast = TrainView(64, crop, antialias=True, dct_scale=True)
        for i in range(5):
            a, b = (v.pixels(buffer.getvalue(), draws.Stream(WORDS, i)).astype(int) for v in (exact, fast))
            assert np.abs(a - b).mean() < 6  # boxes fall on whole pixels of the smaller image; another crop gives about 80


def test_the_documented_ways_to_fine_tune():
    train, evaluate = variant("bit", 384)
    assert (train.crop, train.crop_resize, train.crop_squash) == ("resize_crop", 448, True)
    assert evaluate.box(300, 500) == (0, 0, 300, 500)
    train, evaluate = variant("vit_jax", 384)
    assert (train.crop, train.crop_area, train.antialias, evaluate.mode) == ("inception", (0.05, 1.0), False, "squash")
    for name in VARIANTS:
        train, evaluate = variant(name, 48)
        assert train.image_size == evaluate.image_size == (48, 48)
    assert variant("big_vision_resmall_crop", 384)[1].resize == 448
    assert bit_sizes(32, 32) == (160, 128) and bit_sizes(96, 96) == (448, 384)


def test_a_recipe_describes_its_view():
    view = TrainView.of(DataSpec(crop="resize_crop", crop_resize=40, interpolation="area"), (32, 32))
    assert (view.image_size, view.crop, view.resized, view.interpolation) == ((32, 32), "resize_crop", 40, "area")


def test_mistakes_are_named():
    with pytest.raises(UsageError, match="inception"):
        TrainView(32, "incption")
    with pytest.raises(UsageError, match="smaller than the crop"):
        TrainView(32, "resize_crop", crop_resize=20)
    with pytest.raises(UsageError, match="crop_area"):
        TrainView(32, crop_area=(0.5, 0.1))
    with pytest.raises(UsageError, match="crop_pad"):
        TrainView(8, "pad_crop", crop_pad=8)
    with pytest.raises(UsageError, match="vit_jax"):
        variant("vit_jacks")
