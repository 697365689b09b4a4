"""D23: mutated files are decoded or refused; nothing else, nothing slow, nothing that stays in memory."""

import resource
import time

import numpy as np
import pytest
from hostile import cmyk, oriented
from photos import array, encode

from vitrail.data.decode import decode, probe
from vitrail.errors import DecodeError

PICTURE = array(5, 40, 56)
CORPUS = [
    encode(PICTURE, "JPEG", quality=90),
    encode(PICTURE, "JPEG", quality=80, progressive=True),
    oriented(PICTURE, 6, "JPEG"),
    cmyk(True)[0],
    encode(PICTURE, "PNG"),
    encode(np.dstack([PICTURE, PICTURE[..., :1]]), "PNG"),
    encode(PICTURE, "WebP", quality=80),
    encode(PICTURE, "WebP", lossless=True),
    encode(PICTURE, "GIF"),
    encode(PICTURE, "BMP"),
    encode(PICTURE, "TIFF"),
    encode(PICTURE, "TIFF", compression="tiff_lzw"),
    encode(PICTURE, "PPM"),
]


def mutate(rng, data):
    out = bytearray(data)
    for _ in range(int(rng.integers(1, 4))):
        kind, at = int(rng.integers(5)), int(rng.integers(len(out)))
        if kind == 0:
            out[at] ^= 1 << int(rng.integers(8))
        elif kind == 1:
            out[at : at + 4] = rng.bytes(4)
        elif kind == 2:  # a length that lies
            out[at : at + 4] = [b"\xff\xff\xff\xff", b"\0\0\0\0", b"\x7f\xff\xff\xff", b"\0\0\0\1"][int(rng.integers(4))]
        elif kind == 3:
            other = CORPUS[int(rng.integers(len(CORPUS)))]
            cut = int(rng.integers(len(other)))
            out[at:] = other[cut:]
        else:
            del out[at : at + int(rng.integers(1, 64))]
        if not out:
            return b""
    return bytes(out)


def fuzz(count, seed):
    rng = np.random.default_rng(seed)
    decoded, slowest, reasons = 0, 0.0, set()
    for i in range(count):
        data = mutate(rng, CORPUS[i % len(CORPUS)])
        begin = time.perf_counter()
        for function in (decode, probe):
            try:
                function(data)
                decoded += function is decode
            except DecodeError as error:
                reasons.add(error.reason)
        slowest = max(slowest, time.perf_counter() - begin)
    assert reasons <= set(DecodeError.REASONS)
    return decoded, slowest


def test_mutations_are_decoded_or_refused():
    decoded, slowest = fuzz(600, 0)
    assert 20 < decoded < 580 and slowest < 1


@pytest.mark.scorecard
@pytest.mark.timeout(900)
def test_twenty_thousand_mutations():
    fuzz(2000, 1)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    _, slowest = fuzz(18_000, 2)
    assert slowest < 1
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < 64


def test_the_corpus_itself_is_decoded():
    for data in CORPUS:
        assert decode(data).shape[2] == 3
