"""D05: all eight EXIF orientations give the identical picture."""

import numpy as np
import pytest
from hostile import oriented
from photos import array

from vitrail.data.decode import decode, probe

PICTURE = array(1, 20, 36)


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("format", ["PNG", "WebP", "TIFF"])
def test_a_lossless_picture_is_identical(format, orientation):
    data = oriented(PICTURE, orientation, format)
    assert np.array_equal(decode(data), PICTURE)
    assert probe(data)[1:3] == (36, 20) or format == "TIFF"


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_jpeg_is_the_same_picture_as_upright(orientation):
    upright = decode(oriented(PICTURE, 1, "JPEG")).astype(int)
    assert np.abs(decode(oriented(PICTURE, orientation, "JPEG")) - upright).mean() < 3


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_orientation_that_does_not_exist_is_ignored(orientation):
    from PIL import Image

    exif = Image.Exif()
    exif[0x0112] = orientation
    from photos import encode

    assert np.array_equal(decode(encode(PICTURE, "PNG", exif=exif)), PICTURE)
