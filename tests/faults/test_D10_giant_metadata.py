"""D10: giant text, profiles and EXIF are decoded around or refused, in a second and bounded memory."""

import json
import struct
import subprocess
import sys
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from hostile import chunk, png_bytes
from photos import array, encode

from vitrail.data.decode import decode

GREY = b"".join(b"\0" + bytes(16) for _ in range(16))
MEGABYTES = 64


def with_chunk(name, body):
    return png_bytes(16, 16, 8, 0, GREY, chunk(name, body))


def exif(entries, nested=0):
    """A small TIFF with that many tags; `nested` directories that point at themselves."""
    tags = b"".join(struct.pack("<HHII", 1000 + i % 60000, 4, 1, i) for i in range(entries))
    return b"II*\0" + struct.pack("<IH", 8, entries & 0xFFFF) + tags + struct.pack("<I", 8 if nested else 0)


def jpeg_with(*segments):
    data = encode(array(0, 32, 32), "JPEG")
    return data[:2] + b"".join(struct.pack(">BBH", 0xFF, marker, len(body) + 2) + body for marker, body in segments) + data[2:]


def packed():
    return zlib.compress(bytes(MEGABYTES << 20), 9)


FILES = {
    "compressed text": lambda: with_chunk(b"zTXt", b"k\0\0" + packed()),
    "compressed international text": lambda: with_chunk(b"iTXt", b"k\0\1\0\0\0" + packed()),
    "plain text": lambda: with_chunk(b"tEXt", b"k\0" + bytes(MEGABYTES << 20)),
    "colour profile": lambda: with_chunk(b"iCCP", b"p\0\0" + packed()),
    "ten thousand tags": lambda: jpeg_with((0xE1, b"Exif\0\0" + exif(5000)), (0xE1, b"Exif\0\0" + exif(5000))),
    "directories in a circle": lambda: jpeg_with((0xE1, b"Exif\0\0" + exif(3, nested=1))),
    "a profile in 255 pieces": lambda: jpeg_with(*((0xE2, b"ICC_PROFILE\0" + bytes([i, 255]) + bytes(60_000)) for i in range(1, 256))),
    "EXIF in a PNG": lambda: with_chunk(b"eXIf", exif(60_000)),
}


@pytest.mark.parametrize("name", FILES)
def test_it_is_decoded_within_a_second(name):
    data = FILES[name]()
    begin = time.perf_counter()
    assert decode(data).shape in ((16, 16, 3), (32, 32, 3))
    assert time.perf_counter() - begin < 1


CHILD = """
import json, resource, sys
sys.path[:0] = sys.argv[1:]
from test_D10_giant_metadata import FILES
from vitrail.data.decode import decode
made = [make() for make in FILES.values()]
decode(made[-1])
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
before = peak()
for data in made: decode(data)
print(json.dumps(peak() - before))
"""


def test_memory_is_bounded():
    here = Path(__file__).parent
    roots = [str(here), str(here.parent / "data"), str(here.parents[1] / "src")]
    done = subprocess.run([sys.executable, "-c", CHILD, *roots], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) <= 128


def test_ordinary_metadata_is_no_trouble():
    from PIL import Image, PngImagePlugin

    info = PngImagePlugin.PngInfo()
    info.add_text("Author", "somebody")
    assert np.array_equal(decode(encode(array(0), "PNG", pnginfo=info)), array(0))
    tags = Image.Exif()
    tags[0x010E] = "a description"
    assert decode(encode(array(0), "JPEG", exif=tags)).shape == (16, 16, 3)
