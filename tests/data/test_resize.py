import json
from pathlib import Path

import numpy as np
import pytest

from vitrail.data.resize import resize, resize_float
from vitrail.errors import UsageError

GOLDEN = Path(__file__).parents[1] / "golden" / "p02"
CASE = json.loads((GOLDEN / "case.json").read_text())
FLOATS = {"bilinear_f32": ("bilinear", False), "bilinear_aa_f32": ("bilinear", True), "area_f32": ("area", False)}
CASTS = {
    "bv_resize": "bilinear",
    "bv_resize_small": "area",
    "bv_resize_small_bilinear": "bilinear",
    "bv_resize_long": "area",
}


def golden():
    with np.load(GOLDEN / "arrays.npz") as file:
        for i, (_, operations) in enumerate(CASE["spec"]):
            for name, argument in operations:
                size = "x".join(map(str, argument)) if isinstance(argument, list) else str(argument)
                yield name, file[f"image{i}"], file[f"image{i}_{name}_{size}"]


def test_float_results_equal_tensorflows():
    seen = 0
    for name, image, expected in golden():
        if name in FLOATS:
            filter, antialias = FLOATS[name]
            assert np.abs(resize_float(image, expected.shape[:2], filter, antialias) - expected).max() < 2e-3
            seen += 1
    assert seen == 6


def test_truncated_results_equal_big_visions():
    seen = 0
    for name, image, expected in golden():
        if name in CASTS:
            ours = resize(image, expected.shape[:2], CASTS[name], False, "truncate")
            wrong = np.abs(ours.astype(int) - expected)
            assert wrong.max() <= 1 and (wrong > 0).mean() <= 1e-3, name
            seen += 1
    assert seen == 6


@pytest.fixture(scope="module")
def photo():
    rng = np.random.default_rng(3)
    coarse = rng.integers(60, 196, (12, 16, 3), dtype=np.uint8)
    return np.clip(resize(coarse, (120, 160), "bicubic", True).astype(int) + rng.integers(-20, 20, (120, 160, 3)), 0, 255).astype(np.uint8)


@pytest.mark.parametrize("size", [(32, 32), (77, 45), (160, 200)])
@pytest.mark.parametrize("filter", ["bilinear", "bicubic", "lanczos"])
def test_antialiased_results_are_pillows_within_a_level(photo, filter, size):
    from PIL import Image

    how = getattr(Image.Resampling, filter.upper())
    theirs = np.asarray(Image.fromarray(photo).resize(size[::-1], how)).astype(int)
    assert np.abs(resize(photo, size, filter, True).astype(int) - theirs).max() <= 1
    slow = np.rint(np.clip(resize_float(photo, size, filter, True), 0, 255))
    assert np.abs(slow - theirs).max() <= 1


@pytest.mark.parametrize("filter", ["bilinear", "bicubic"])
def test_plain_results_are_torchs(photo, filter):
    import torch

    x = torch.from_numpy(photo).permute(2, 0, 1)[None].float()
    for size in ((50, 70), (130, 190)):
        theirs = torch.nn.functional.interpolate(x, size, mode=filter, align_corners=False)[0].permute(1, 2, 0)
        assert np.abs(resize_float(photo, size, filter) - theirs.numpy()).max() < 1e-3


def test_the_filters_differ_from_each_other(photo):
    results = [
        resize(photo, (40, 40), filter, antialias)
        for filter, antialias in (("bilinear", False), ("bilinear", True), ("bicubic", True), ("area", False), ("nearest", False))
    ]
    for i, a in enumerate(results):
        for b in results[:i]:
            assert (a != b).mean() > 0.1


def test_the_same_size_is_the_same_image(photo):
    assert (resize(photo, photo.shape[:2], "bicubic", True) == photo).all()
    assert resize(photo, photo.shape[:2], "bilinear", False, "keep").dtype == np.float32


@pytest.mark.parametrize("shape", [(1, 1), (1, 199), (199, 1), (2, 3), (13, 17)])
@pytest.mark.parametrize("filter", ["area", "bicubic", "bilinear", "lanczos", "nearest"])
@pytest.mark.parametrize("antialias", [False, True])
def test_flat_images_of_any_size_stay_flat(shape, filter, antialias):
    flat = np.full((*shape, 3), 201, np.uint8)
    for rounding in ("round", "truncate"):
        out = resize(flat, (8, 9), filter, antialias, rounding)
        assert out.shape == (8, 9, 3)
        assert np.abs(out.astype(int) - 201).max() <= (rounding == "truncate" and filter != "nearest")


def test_unknown_names_are_refused_with_the_nearest(photo):
    with pytest.raises(UsageError, match="bicubic"):
        resize(photo, (8, 8), "bicubics")
    with pytest.raises(UsageError, match="truncate"):
        resize(photo, (8, 8), rounding="truncated")
