"""A map lands on the pixels it is about, through EXIF orientation, resize and crop."""

from __future__ import annotations

import io

import numpy as np
import pytest
from PIL import Image

from vitrail.data.decode import decode
from vitrail.data.transform import Preprocess
from vitrail.errors import UsageError
from vitrail.inspect.overlay import overlay, stretched

VIEWS = {
    "squash": Preprocess((32, 48), "squash"),
    "crop of a wide picture": Preprocess((32, 32), "shorter_crop", 40),
    "big_vision": Preprocess((24, 24), "resize_small_crop"),
    "not square": Preprocess((24, 40), "shorter_crop"),
    "bit": Preprocess((28, 28), "bit", 32),
}


def photo(orientation: int) -> bytes:
    """120 x 200, dark, with a bright square at rows 40-60, columns 90-110 of what the file stores."""
    pixels = np.full((120, 200, 3), 20, np.uint8)
    pixels[40:60, 90:110] = 250
    exif = Image.Exif()
    exif[0x0112] = orientation
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=95, exif=exif)
    return out.getvalue()


@pytest.mark.parametrize("orientation", [1, 3, 6, 8, 5])
@pytest.mark.parametrize("view", VIEWS)
def test_the_hot_spot_covers_the_bright_square_of_the_upright_original(view, orientation):
    preprocess, data = VIEWS[view], photo(orientation)
    original = decode(data)
    seen = preprocess.pixels(data).mean(2)  # what the model is given; its own brightness is the map
    bright = np.maximum(seen - 60, 0)
    alpha, _ = stretched(bright, original.shape[:2], preprocess.box(*original.shape[:2]))
    square = original.mean(2) > 128
    centre = lambda weights: np.array([(np.indices(weights.shape)[axis] * weights).sum() / weights.sum() for axis in (0, 1)])
    assert np.abs(centre(alpha) - centre(square)).max() < 1.5
    assert alpha[square].mean() > 0.7 and alpha[~square].mean() < 0.05


def test_what_the_model_did_not_see_is_dark_and_unmarked():
    original = np.full((100, 200, 3), 200, np.uint8)
    box = Preprocess((50, 50), "shorter_crop", 50).box(100, 200)
    drawn = overlay(original, np.ones((5, 5)), box)
    assert box == (0, 50, 100, 150)
    assert (drawn[:, :50] == 60).all() and (drawn[:, 150:] == 60).all()
    assert not (drawn[:, 50:150] == 60).all(-1).any()


def test_the_papers_style_is_the_image_lit_by_the_map():
    original = np.full((96, 96, 3), 255, np.uint8)
    spot = np.zeros((6, 6))
    spot[1, 4] = 3.0
    drawn = overlay(original, spot, style="paper")
    assert drawn.max() == 255 and drawn.min() == 0
    at = np.unravel_index(drawn[..., 0].argmax(), (96, 96))
    assert abs(at[0] - 24) < 8 and abs(at[1] - 72) < 8  # inside that patch


def test_a_map_of_zeros_marks_nothing():
    original = np.full((8, 8, 3), 77, np.uint8)
    assert (overlay(original, np.zeros((2, 2))) == 77).all()
    assert (overlay(original, np.zeros((2, 2)), style="paper") == 0).all()


def test_wrong_arguments_are_refused():
    with pytest.raises(UsageError, match="did you mean 'heat'"):
        overlay(np.zeros((4, 4, 3), np.uint8), np.ones((2, 2)), style="heta")
    with pytest.raises(UsageError, match="uint8 image"):
        overlay(np.zeros((4, 4, 3)), np.ones((2, 2)))
    with pytest.raises(UsageError, match="rows and columns"):
        overlay(np.zeros((4, 4, 3), np.uint8), np.ones((2, 2, 2)))
