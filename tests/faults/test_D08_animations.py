"""D08: of an animation the first frame is used, whatever its length."""

import time

import numpy as np
import pytest
from hostile import animation
from photos import array, encode

from vitrail.data.decode import decode, probe


@pytest.fixture(scope="module", params=["GIF", "WebP", "PNG"])
def animated(request):
    return request.param, animation(request.param)


def test_the_first_frame_comes_quickly(animated):
    format, data = animated
    name, width, height, frames = probe(data)
    assert (name, width, height) == (format, 16, 16) and frames > 100
    best = min(timed(data) for _ in range(3))
    assert best < 0.05
    assert np.abs(decode(data).astype(int) - (0, 90, 0)).max() <= 8  # what the first was painted, give or take WebP


def timed(data):
    begin = time.perf_counter()
    decode(data)
    return time.perf_counter() - begin


def test_a_still_picture_has_one_frame():
    for format in ("GIF", "WebP", "PNG"):
        assert probe(encode(array(0), format))[3] == 1


def test_the_frame_is_the_first_not_the_last():
    from io import BytesIO

    from PIL import Image

    frames = [Image.new("RGB", (8, 8), colour) for colour in ((250, 0, 0), (0, 250, 0))]
    for format in ("GIF", "PNG"):
        buffer = BytesIO()
        frames[0].save(buffer, format, save_all=True, append_images=frames[1:])
        assert np.abs(decode(buffer.getvalue()).astype(int) - (250, 0, 0)).max() <= 4
