"""D04: CMYK, inverted CMYK and YCCK JPEGs become the RGB they stand for."""

import numpy as np
import pytest
from hostile import cmyk
from photos import array, encode

from vitrail.data.decode import decode


@pytest.mark.parametrize("inverted", [False, True], ids=["plain ink", "Adobe's inverted ink"])
def test_ink_becomes_colour(inverted):
    data, reference = cmyk(inverted)
    assert np.abs(decode(data) - reference).mean() <= 3


def test_ycck_is_turned_back_first():
    """YCCK is inverted CMYK through the YCbCr transform; the mark's transform byte says so."""
    picture = array(3, 48, 48)
    data, reference = cmyk(True, picture)
    at = data.index(b"\xff\xee")
    if data[at + 15] == 2:
        assert np.abs(decode(data) - reference).mean() <= 3
        return
    # Pillow wrote plain CMYK; its planes, read as YCCK, are another picture: what libjpeg's own conversion gives
    import io

    from PIL import Image

    ycck = data[: at + 15] + b"\x02" + data[at + 16 :]
    ink = 255 - np.asarray(Image.open(io.BytesIO(ycck)).convert("CMYK")).astype(int)
    assert np.abs(decode(ycck) - ink[..., :3] * ink[..., 3:] / 255).mean() <= 3
    assert np.abs(decode(ycck).astype(int) - decode(data)).mean() > 3  # the transform was not ignored


def test_an_rgb_jpeg_is_left_alone():
    picture = array(3, 48, 48)
    assert np.abs(decode(encode(picture, "JPEG", quality=95)).astype(int) - picture).mean() < 3
