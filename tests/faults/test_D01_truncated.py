"""D01: an image cut short is refused as truncated, counted once an epoch, and no part of it reaches the model."""

import numpy as np
import pytest
import torch
from photos import array, encode

from vitrail.data.crop import TrainView
from vitrail.data.decode import decode
from vitrail.data.loader import EvalStream, TrainStream
from vitrail.data.source import open_source
from vitrail.data.transform import Preprocess
from vitrail.errors import DecodeError

PICTURE = array(0, 96, 128)
FILES = {
    "JPEG": encode(PICTURE, "JPEG", quality=90),
    "progressive JPEG": encode(PICTURE, "JPEG", quality=90, progressive=True),
    "PNG": encode(PICTURE, "PNG"),
    "WebP": encode(PICTURE, "WebP", quality=90),
    "lossless WebP": encode(PICTURE, "WebP", lossless=True),
}


@pytest.mark.parametrize("percent", [1, 10, 50, 95, 99.9])
@pytest.mark.parametrize("name", FILES)
def test_a_cut_file_is_truncated(name, percent):
    data = FILES[name]
    cut = data[: min(len(data) - 1, max(1, int(len(data) * percent / 100)))]
    with pytest.raises(DecodeError) as error:
        decode(cut, where="cut")
    assert error.value.reason == "truncated", error.value
    assert error.value.where == "cut"


@pytest.mark.parametrize("name", FILES)
def test_the_whole_file_is_decoded(name):
    assert np.abs(decode(FILES[name]).astype(int) - PICTURE).mean() < 4


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_with_cut_files_completes_without_a_grey_pixel(workers):
    """Bright and dark pictures only, so that a codec's grey or black filling would stand out."""
    white = encode(np.full((48, 48, 3), 255, np.uint8), "JPEG")
    files = [white] * 200
    for k, percent in enumerate((1, 50)):
        files[17 + 60 * k] = white[: max(1, len(white) * percent // 100)]
    source = open_source((files, np.arange(200) % 4))
    with TrainStream(source, TrainView(16), batch_size=40, seed=0, workers=workers) as stream:
        for epoch in range(2):
            for _ in range(5):
                batch = next(stream)
                assert batch.images.min() == 255
            assert [e["id"] for e in stream.quarantine if e["epoch"] == epoch].count("17") == 1
        assert {e["reason"] for e in stream.quarantine} == {"truncated"} and len(stream.quarantine) == 4
    with EvalStream(source, Preprocess(16), batch_size=40, workers=workers) as stream:
        batches = list(stream)
        assert sum(int(b.valid.sum()) for b in batches) == 198
        assert torch.cat([b.images[b.valid] for b in batches]).min() == 255
        assert [e["id"] for e in stream.quarantine] == ["17", "77"]
