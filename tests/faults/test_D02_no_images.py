"""D02: what is no image is refused with its reason, and the worker that met it goes on."""

import numpy as np
import pytest
from photos import png

from vitrail.data.crop import TrainView
from vitrail.data.decode import decode
from vitrail.data.loader import TrainStream
from vitrail.data.source import open_source
from vitrail.errors import DecodeError

FILES = {
    "nothing": (b"", "empty", "0 bytes"),
    "a web page": (b"<!DOCTYPE html><html><body>404</body></html>", "unrecognised", "HTML"),
    "an error as JSON": (b'{"error": "not found"}', "unrecognised", "JSON"),
    "random bytes": (np.random.default_rng(0).bytes(5000), "unrecognised", "begins with"),
    "zeros": (bytes(4096), "unrecognised", "zero"),
    "a zip archive": (b"PK\x03\x04" + bytes(100), "unrecognised", "zip"),
    "a large-file pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\n", "unrecognised", "git lfs pull"),
}


@pytest.mark.parametrize("name", FILES)
def test_it_is_refused_with_its_reason(name):
    data, reason, hint = FILES[name]
    with pytest.raises(DecodeError) as error:
        decode(data, where="x.jpg")
    assert error.value.reason == reason and hint in str(error.value) and "x.jpg" in str(error.value)


def test_an_image_is_not():
    assert decode(png(0)).shape == (16, 16, 3)


@pytest.mark.parametrize("workers", [0, 1])
def test_the_worker_goes_on(workers):
    files = [png(i) for i in range(100)]
    for at, (data, _, _) in zip((5, 41, 77), list(FILES.values())):
        files[at] = data
    source = open_source((files, np.zeros(100, int)))
    with TrainStream(source, TrainView(8), batch_size=50, seed=0, workers=workers) as stream:
        first = stream.worker_pids
        for _ in range(4):
            assert next(stream).valid.all()
        assert not first or stream.worker_pids == first
        assert {e["reason"] for e in stream.quarantine} == {"empty", "unrecognised"}
