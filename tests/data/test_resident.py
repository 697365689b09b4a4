import io

import numpy as np
import pytest
import torch

from vitrail.data import resident
from vitrail.data.crop import TrainView
from vitrail.data.loader import TrainStream
from vitrail.data.resident import ResidentStream
from vitrail.data.resize import resize
from vitrail.data.source import open_source
from vitrail.errors import DataError


def photos(count, sizes=((40, 52), (33, 29), (64, 64))):
    rng = np.random.default_rng(0)
    return [resize(rng.integers(0, 256, (7, 9, 3), dtype=np.uint8), sizes[i % len(sizes)], "bicubic", True) for i in range(count)]


@pytest.fixture(scope="module")
def source():
    return open_source((photos(24), np.arange(24) % 3))


VIEWS = {
    f"{crop}-{filter}{'-antialias' if antialias else ''}": TrainView(
        24, crop, interpolation=filter, antialias=antialias, crop_squash=squash, crop_pad=3
    )
    for crop, squash in (("inception", False), ("random_resized", False), ("resize_crop", True), ("resize_crop", False),
                         ("pad_crop", False), ("resize", False))
    for filter, antialias in (("bilinear", False), ("bilinear", True), ("bicubic", True), ("bicubic", False), ("area", False),
                              ("nearest", False), ("lanczos", True))
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_it_shows_what_the_loader_shows(source, name):
    options = {"batch_size": 12, "seed": 2}
    with TrainStream(source, VIEWS[name], workers=0, **options) as host:
        with ResidentStream(source, VIEWS[name], device="cpu", **options) as device:
            a, b = next(host), next(device)
    for field in ("labels", "index", "position", "valid"):
        assert torch.equal(getattr(a, field), getattr(b, field))
    wrong = (a.images.int() - b.images.int()).abs()
    assert wrong.max() <= (0 if "nearest" in name else 2 if "bicubic" in name else 1)
    exact = name.endswith(("bilinear", "nearest", "lanczos-antialias"))  # the others round between rows and columns
    assert (wrong > 0).float().mean() < (0.05 if exact else 0.2)


def test_ranks_steps_and_seeks_are_those_of_the_loader(source):
    view = TrainView(16)
    whole = ResidentStream(source, view, device="cpu", batch_size=8, seed=0)
    parts = [ResidentStream(source, view, device="cpu", batch_size=8, seed=0, rank=r, world=2, start_step=5) for r in range(2)]
    whole.seek(5)
    batch, halves = next(whole), [next(p) for p in parts]
    assert torch.equal(batch.images, torch.cat([h.images for h in halves]))
    assert whole.step == 6 and whole.epoch() == 2


@pytest.mark.parametrize("piece", [1, 4, 64])
def test_a_bad_file_is_named_and_its_slot_goes_to_the_same_sample_as_in_the_loader(piece, monkeypatch):
    from PIL import Image

    monkeypatch.setattr(resident, "PIECE", piece)

    files = []
    for image in photos(30):
        buffer = io.BytesIO()
        Image.fromarray(image).save(buffer, "PNG")
        files.append(buffer.getvalue())
    files[7] = files[7][:60]
    source = open_source((files, np.arange(30) % 3))
    with TrainStream(source, TrainView(16), batch_size=30, seed=1, workers=0) as host:
        with ResidentStream(source, TrainView(16), device="cpu", batch_size=30, seed=1) as device:
            a, b = next(host), next(device)
            assert a.index.tolist() == b.index.tolist() and (a.images.int() - b.images.int()).abs().max() <= 1
            assert [e["id"] for e in device.quarantine] == ["7"] == [e["id"] for e in host.quarantine]


def test_whether_it_fits_is_judged_by_the_pixels(source):
    pixels = sum(p.size for p in photos(24))
    assert ResidentStream.fits(source, TrainView(16), 2 * pixels)
    assert not ResidentStream.fits(source, TrainView(16), pixels // 2)
    assert not ResidentStream.fits(source, TrainView(16, dct_scale=True), 1 << 40)


def test_a_set_of_bad_files_is_refused():
    source = open_source(([b"no image"] * 8, np.zeros(8, int)))
    with pytest.raises(DataError, match="could not be read"):
        ResidentStream(source, TrainView(16), device="cpu", batch_size=4, seed=0)


def test_several_steps_at_once_are_the_same_batches():
    source = open_source("builtin:shapes?n=60&size=24&classes=3", split="train")
    make = lambda: ResidentStream(source, TrainView((16, 16)), device="cpu", batch_size=8, seed=0)
    together, alone = make().several(3), make()
    for number in range(3):
        batch, piece = next(alone), slice(8 * number, 8 * number + 8)
        for name in ("images", "labels", "index", "position", "valid"):
            assert torch.equal(getattr(together, name)[piece], getattr(batch, name)), name
