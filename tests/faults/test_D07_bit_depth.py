"""D07: 16 bits are scaled, never clipped; one bit is black and white; floating point is refused by name."""

import io

import numpy as np
import pytest
from hostile import png_bytes
from PIL import Image

from vitrail.data.decode import decode
from vitrail.errors import DecodeError

RAMP = np.linspace(0, 65535, 16 * 16).reshape(16, 16).astype(np.uint16)
SCALED = np.rint(RAMP / 65535 * 255)


def saved(image, format, **options):
    buffer = io.BytesIO()
    image.save(buffer, format, **options)
    return buffer.getvalue()


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_deep_grey_is_scaled(format):
    out = decode(saved(Image.fromarray(RAMP), format))
    assert out.shape == (16, 16, 3) and np.abs(out - SCALED[..., None]).max() <= 1


def test_deep_colour_is_scaled():
    rows = np.repeat(RAMP[..., None], 3, 2).astype(">u2")
    data = png_bytes(16, 16, 16, 2, b"".join(b"\0" + row.tobytes() for row in rows))
    assert np.abs(decode(data) - SCALED[..., None]).max() <= 1


def test_deep_colour_with_alpha_is_scaled_and_laid_over_the_background():
    rows = np.dstack([RAMP, RAMP, RAMP, np.full_like(RAMP, 65535)]).astype(">u2")
    data = png_bytes(16, 16, 16, 6, b"".join(b"\0" + row.tobytes() for row in rows))
    assert np.abs(decode(data) - SCALED[..., None]).max() <= 1


@pytest.mark.parametrize("format", ["PNG", "TIFF", "BMP", "PPM"])
def test_one_bit_is_black_and_white(format):
    bits = np.random.default_rng(0).integers(0, 2, (9, 17)).astype(bool)
    out = decode(saved(Image.fromarray(bits), format))
    assert np.array_equal(out, np.repeat(bits[..., None] * np.uint8(255), 3, 2))


def test_floats_are_refused_by_name():
    with pytest.raises(DecodeError, match="floating-point TIFF") as error:
        decode(saved(Image.fromarray(np.ones((4, 4), np.float32)), "TIFF"))
    assert error.value.reason == "format_refused"


def test_thirty_two_bit_integers_are_refused_by_name():
    with pytest.raises(DecodeError, match="32-bit") as error:
        decode(saved(Image.fromarray(np.ones((4, 4), np.int32)), "TIFF"))
    assert error.value.reason == "format_refused"


@pytest.mark.parametrize("format", ["PNG", "TIFF"])
def test_eight_bits_are_themselves(format):
    image = np.random.default_rng(0).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    assert np.array_equal(decode(saved(Image.fromarray(image), format)), image)
