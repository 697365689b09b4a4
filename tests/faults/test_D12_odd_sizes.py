"""D12: odd sizes give a result or one clear refusal, never a crash further on."""

import struct

import numpy as np
import pytest
from photos import encode

from vitrail.data.crop import TrainView
from vitrail.data.decode import decode
from vitrail.data.transform import PRESETS, preset
from vitrail.errors import DecodeError
from vitrail.kernels import draws

STREAM = draws.key(0, "crop")


@pytest.mark.parametrize("size", [(1, 1), (1, 150), (150, 1), (13, 17), (2, 3), (97, 101)])
def test_every_view_of_a_small_picture_has_its_size(size):
    data = encode(np.full((*size, 3), 200, np.uint8))
    for crop in ("inception", "random_resized", "resize_crop", "pad_crop", "resize"):
        for i in range(3):
            assert TrainView((24, 32), crop).pixels(data, draws.Stream(STREAM, i)).shape == (24, 32, 3)
    for name in PRESETS:
        assert preset(name, (24, 32)).pixels(data).shape == (24, 32, 3)


@pytest.mark.parametrize("size", [(1, 20_000), (20_000, 1)])
def test_a_strip_is_refused_before_it_becomes_gigabytes(size):
    with pytest.raises(DecodeError) as error:
        decode(encode(np.zeros((*size, 3), np.uint8)))
    assert error.value.reason == "bad_dimensions"


@pytest.mark.parametrize(("width", "height"), [(0, 10), (10, 0), (0, 0)])
def test_nothing_wide_is_refused(width, height):
    gif = b"GIF89a" + struct.pack("<HHBBB", width, height, 0, 0, 0) + b"," + struct.pack("<HHHHB", 0, 0, width, height, 0)
    png = encode(np.zeros((4, 4, 3), np.uint8))
    for data in (gif + b"\x02\0;", png[:16] + struct.pack(">II", width, height) + png[24:]):
        with pytest.raises(DecodeError) as error:
            decode(data)
        assert error.value.reason == "bad_dimensions"


def test_a_long_but_sane_panorama_is_taken():
    assert decode(encode(np.zeros((10, 1500, 3), np.uint8))).shape == (10, 1500, 3)
