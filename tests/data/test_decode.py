import io

import numpy as np
import pytest
from hostile import cmyk, oriented
from photos import array, encode
from PIL import Image

from vitrail.data import decode as module
from vitrail.data.decode import decode, pixels, probe, to_rgb
from vitrail.errors import DecodeError, ResourceError

simplejpeg = pytest.importorskip("simplejpeg")


def photo(seed=0, height=120, width=170):
    noise = np.random.default_rng(seed).integers(-12, 13, (height, width, 3))
    return np.clip(array(seed, height, width).astype(int) + noise, 0, 255).astype(np.uint8)


KINDS = {
    "4:2:0": {"subsampling": 2},
    "4:2:2": {"subsampling": 1},
    "4:4:4": {"subsampling": 0},
    "progressive": {"progressive": True},
    "optimised": {"optimize": True},
    "restart markers": {"restart_marker_rows": 1},
    "low quality": {"quality": 20},
}
JPEGS = {name: encode(photo(), "JPEG", **{"quality": 90, **options}) for name, options in KINDS.items()}
JPEGS["grey"] = encode(photo()[..., 0], "JPEG", quality=90)


@pytest.mark.parametrize("name", JPEGS)
def test_the_fast_path_is_pillows_to_the_bit(name, monkeypatch):
    fast = decode(JPEGS[name])
    monkeypatch.setattr(module, "simplejpeg", None)
    assert np.array_equal(fast, decode(JPEGS[name]))
    assert np.array_equal(fast, np.asarray(Image.open(io.BytesIO(JPEGS[name])).convert("RGB")))


BOXES = [(0, 0, 120, 170), (0, 0, 1, 1), (10, 20, 40, 50), (119, 169, 1, 1), (60, 0, 60, 170), (0, 5, 103, 9), (7, 3, 96, 80)]


@pytest.mark.parametrize("box", BOXES)
@pytest.mark.parametrize("name", JPEGS)
def test_a_crop_has_the_pixels_of_the_whole(name, box):
    top, left, height, width = box
    whole = decode(JPEGS[name])
    part = decode(JPEGS[name], crop=lambda rows, columns: box if (rows, columns) == (120, 170) else None)
    assert np.array_equal(part, whole[top : top + height, left : left + width])


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WebP"])
@pytest.mark.parametrize("orientation", [1, 3, 6, 8])
def test_a_crop_is_asked_for_in_upright_pixels(format, orientation):
    data = oriented(photo(1, 40, 60), orientation, format)
    sizes = []

    def crop(rows, columns):
        sizes.append((rows, columns))
        return 4, 30, 10, 20

    assert np.array_equal(decode(data, crop=crop), decode(data)[4:14, 30:50])
    assert sizes == [(40, 60)]


def test_a_crop_of_cmyk_and_of_arrays():
    data, _ = cmyk(True)
    assert np.array_equal(decode(data, crop=lambda *_: (3, 4, 5, 6)), decode(data)[3:8, 4:10])
    image = photo()
    assert np.array_equal(pixels(image, crop=lambda *_: (3, 4, 5, 6)), image[3:8, 4:10])


def test_a_damaged_stream_is_not_taken_for_a_short_one():
    """Above the crop: refused or the same pixels as the whole gives, never something else."""
    data = JPEGS["4:2:0"]
    start = data.index(b"\xff\xda") + 20
    reasons = []
    for at in range(start, len(data) - 2, 97):
        broken = data[:at] + b"\xff\x01" + data[at + 2 :]
        try:
            part = decode(broken, crop=lambda *_: (0, 0, 60, 170))
        except DecodeError as error:
            reasons.append(error.reason)
            continue
        assert np.array_equal(part, decode(data)[:60]) or np.array_equal(part, _whole(broken)[:60])
    assert set(reasons) <= {"corrupt", "truncated"} and len(reasons) > 5


def _whole(data):
    try:
        return decode(data)
    except DecodeError:
        return np.zeros((0, 0, 3), np.uint8)


@pytest.mark.parametrize(("least", "size"), [(60, (60, 85)), (61, (120, 170)), (30, (30, 43)), (1, (15, 22)), ((15, 90), (120, 170))])
def test_scaled_decoding_never_goes_below_the_least(least, size):
    assert decode(JPEGS["4:2:0"], min_size=least).shape[:2] == size


def test_scaling_respects_orientation():
    data = oriented(photo(1, 64, 128), 6, "JPEG")
    assert decode(data, min_size=(32, 64)).shape == (32, 64, 3)


def test_limits_are_those_asked_for():
    with pytest.raises(DecodeError) as error:
        decode(JPEGS["4:2:0"], max_bytes=100, where="a.jpg")
    assert error.value.reason == "too_many_bytes" and "a.jpg" in str(error.value)
    with pytest.raises(DecodeError) as error:
        decode(JPEGS["4:2:0"], max_pixels=1000)
    assert error.value.reason == "too_many_pixels"


def test_arrays_of_any_channels_become_rgb():
    grey = np.arange(12, dtype=np.uint8).reshape(3, 4)
    for image in (grey, grey[..., None]):
        assert np.array_equal(to_rgb(image), np.repeat(grey[..., None], 3, 2))
    clear = np.zeros((2, 2, 4), np.uint8)
    assert (to_rgb(clear, background=(1, 2, 3)) == (1, 2, 3)).all()
    for bad in (np.zeros((2, 2), np.float32), np.zeros((2, 2, 5), np.uint8), np.zeros(4, np.uint8)):
        with pytest.raises(DecodeError):
            to_rgb(bad)


def test_probe_tells_without_decoding():
    assert probe(JPEGS["4:2:0"]) == ("JPEG", 170, 120, 1)
    assert probe(oriented(photo(1, 40, 60), 6, "JPEG"))[1:3] == (60, 40)
    assert probe(JPEGS["4:2:0"][:1000])[1:3] == (170, 120)


def test_a_pillow_without_a_codec_says_what_to_install(monkeypatch):
    monkeypatch.setitem(module._PLUGINS, "WebP", ("PIL.NoSuchPlugin", "X"))
    with pytest.raises(ResourceError, match="cannot read WebP"):
        decode(encode(photo(), "WebP"))


def test_pillows_settings_are_left_alone():
    from PIL import ImageFile

    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    for data in JPEGS.values():
        decode(data)
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
