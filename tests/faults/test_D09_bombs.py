"""D09: decompression bombs and headers that lie are refused before anything is allocated."""

import json
import subprocess
import sys
import time
import warnings
from pathlib import Path

import pytest
from hostile import bomb, liar
from PIL import Image

from vitrail.data.decode import MAX_PIXELS, decode
from vitrail.errors import DecodeError

LIARS = ["PNG", "GIF", "BMP", "TIFF", "WebP", "JPEG", "PPM"]


@pytest.mark.parametrize("side", [8_000, 20_000, 60_000])
def test_a_bomb_is_refused_at_once(side):
    data = bomb(side)
    assert len(data) < 600_000
    refused_quickly(data)


@pytest.mark.parametrize("format", LIARS)
def test_a_lying_header_is_refused_at_once(format):
    refused_quickly(liar(format))


def refused_quickly(data):
    best = 1.0
    for _ in range(3):
        begin = time.perf_counter()
        with warnings.catch_warnings():
            warnings.simplefilter("error", Image.DecompressionBombWarning)  # not how we notice
            with pytest.raises(DecodeError) as error:
                decode(data)
        best = min(best, time.perf_counter() - begin)
        assert error.value.reason == "too_many_pixels"
    assert best < 0.05


def test_an_icon_that_hides_a_bomb_is_no_format_of_ours():
    with pytest.raises(DecodeError) as error:
        decode(b"\0\0\1\0\1\0\0\0\0\0\1\0\x20\0" + (1000).to_bytes(4, "little") + (22).to_bytes(4, "little") + bomb(8_000))
    assert error.value.reason == "format_refused"


def test_the_limit_does_not_depend_on_pillows():
    before = Image.MAX_IMAGE_PIXELS
    try:
        Image.MAX_IMAGE_PIXELS = None
        refused_quickly(bomb(10_000))
    finally:
        Image.MAX_IMAGE_PIXELS = before
    assert decode(bomb(100), max_pixels=10_000).shape == (100, 100, 3)
    with pytest.raises(DecodeError):
        decode(bomb(100), max_pixels=9_999)


CHILD = """
import json, resource, sys
sys.path[:0] = sys.argv[1:]
from hostile import bomb, liar
from vitrail.data.decode import decode
from vitrail.errors import DecodeError
files = [bomb(60_000), bomb(8_000)] + [liar(f) for f in ("PNG", "GIF", "BMP", "TIFF", "WebP", "JPEG", "PPM")]
large = bomb(5_000)
decode(bomb(64)); decode(bomb(64, 8))
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
for data in files:
    try: decode(data)
    except DecodeError: pass
    else: raise SystemExit("not refused")
refused = peak() - before
image = decode(large)
print(json.dumps({"refused": refused, "large": peak() - before, "pixels": image.size // 3}))
"""


def test_memory_stays_small_on_refusal_and_in_proportion_otherwise():
    roots = [str(Path(__file__).parents[1] / "data"), str(Path(__file__).parents[2] / "src")]
    done = subprocess.run([sys.executable, "-c", CHILD, *roots], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout)
    assert found["refused"] <= 64  # MiB
    assert found["pixels"] == 25_000_000 < MAX_PIXELS
    assert found["large"] <= 4 * 25_000_000 / 2**20 + 64
