"""D06: palette, grey and colour with transparency are laid over the declared background."""

import io

import numpy as np
import pytest
from PIL import Image

from vitrail.data.decode import decode

BACKGROUNDS = [(255, 255, 255), (0, 0, 0), (10, 200, 30)]


def saved(image, format="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("format", ["PNG", "WebP"])
def test_partial_alpha_is_mixed_and_clear_is_exactly_the_background(background, format):
    rng = np.random.default_rng(0)
    image = rng.integers(0, 256, (16, 16, 4), dtype=np.uint8)
    image[:4, :, 3], image[4:8, :, 3] = 0, 255
    out = decode(saved(Image.fromarray(image), format, **({"lossless": True, "exact": True} if format == "WebP" else {})),
                 background=background)  # fmt: skip
    alpha = image[..., 3:] / 255
    assert np.abs(out - (image[..., :3] * alpha + np.array(background) * (1 - alpha))).max() <= 1
    assert (out[:4] == background).all() and (out[4:8] == image[4:8, :, :3]).all()


@pytest.mark.parametrize("background", BACKGROUNDS)
def test_grey_with_alpha(background):
    image = np.dstack([np.full((8, 8), 90, np.uint8), np.linspace(0, 255, 64).reshape(8, 8).astype(np.uint8)])
    out = decode(saved(Image.fromarray(image, "LA")), background=background)
    alpha = image[..., 1:] / 255
    assert np.abs(out - (90 * alpha + np.array(background) * (1 - alpha))).max() <= 1


@pytest.mark.parametrize("background", BACKGROUNDS)
@pytest.mark.parametrize("format", ["PNG", "GIF"])
def test_a_clear_palette_entry_is_the_background(background, format):
    image = Image.new("P", (8, 8), 1)
    image.putpalette([200, 0, 0, 0, 0, 250] + [0] * 762)
    image.paste(0, (0, 0, 4, 8))
    out = decode(saved(image, format, transparency=0), background=background)
    assert (out[:, :4] == background).all() and (out[:, 4:] == (0, 0, 250)).all()


def test_a_palette_with_alpha_in_several_entries():
    image = Image.new("P", (2, 1))
    image.putpalette([100, 100, 100, 200, 200, 200] + [0] * 762)
    image.putpixel((1, 0), 1)
    out = decode(saved(image, transparency=bytes([128, 255])), background=(0, 0, 0))
    assert abs(int(out[0, 0, 0]) - 50) <= 1 and out[0, 1, 0] == 200


def test_one_clear_colour_of_an_rgb_picture():
    image = Image.new("RGB", (4, 1), (1, 2, 3))
    image.putpixel((0, 0), (9, 9, 9))
    out = decode(saved(image, transparency=(9, 9, 9)), background=(0, 255, 0))
    assert (out[0, 0] == (0, 255, 0)).all() and (out[0, 1:] == (1, 2, 3)).all()


def test_an_opaque_picture_does_not_care_about_the_background():
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    for background in BACKGROUNDS:
        assert np.array_equal(decode(saved(Image.fromarray(image)), background=background), image)
