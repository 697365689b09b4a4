import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.data.resize import resize
from vitrail.data.transform import IMAGENET_MEAN, IMAGENET_STD, PRESETS, Preprocess, preset
from vitrail.errors import DecodeError, UsageError

GOLDEN = Path(__file__).parents[1] / "golden" / "p02"


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "arrays.npz") as file:
        return dict(file)


@pytest.fixture(scope="module")
def photo():
    rng = np.random.default_rng(0)
    return resize(rng.integers(0, 256, (9, 13, 3), dtype=np.uint8), (90, 130), "bicubic", True)


@pytest.mark.parametrize(("image", "small", "crop"), [(0, 28, 24), (1, 36, 32)])
def test_big_visions_evaluation_is_reproduced(golden, image, small, crop):
    ours = Preprocess((crop, crop), "resize_small_crop", small, "area")(golden[f"image{image}"])
    expected = golden[f"image{image}_bv_eval_pipeline_{small}x{crop}"]
    wrong = np.abs(ours.permute(1, 2, 0).numpy() - expected)
    assert (wrong > 1e-5).mean() <= 1e-3 and wrong.max() < 0.008  # a level is 1/127.5


def test_central_crop_is_big_visions(golden):
    for size in ((32, 32), (20, 31)):
        expected = golden[f"image0_bv_central_crop_{'32' if size == (32, 32) else '20x31'}"]
        image = golden["image0"]
        view = Preprocess(size, "resize_small_crop", resize=37 if size == (32, 32) else 20, rounding="truncate")
        rows, columns = view._plan(37, 53)[0]
        if (rows, columns) == (37, 53):
            assert (view.pixels(image) == expected).all()
        top, left = (37 - size[0]) // 2, (53 - size[1]) // 2
        assert (image[top : top + size[0], left : left + size[1]] == expected).all()


def test_the_value_range_is_the_papers(golden):
    image = torch.from_numpy(golden["image0"]).permute(2, 0, 1)[None]
    ours = Preprocess().normalise(image)[0].permute(1, 2, 0).numpy()
    assert np.abs(ours - golden["image0_bv_value_range_-1x1"]).max() < 1e-5
    ends = Preprocess().normalise(torch.tensor([0, 255], dtype=torch.uint8).view(1, 1, 1, 2).expand(1, 3, 1, 2))
    assert ends.min() == -1 and ends.max() == 1


def test_imagenet_mean_and_std_are_those_of_torchvision():
    image = torch.arange(3 * 4 * 5).view(1, 3, 4, 5).to(torch.uint8)
    ours = Preprocess(mean=IMAGENET_MEAN, std=IMAGENET_STD).normalise(image)
    mean, std = (torch.tensor(v).view(3, 1, 1) for v in (IMAGENET_MEAN, IMAGENET_STD))
    assert torch.allclose(ours, (image / 255 - mean) / std, atol=1e-6)


def test_vit_jax_squashes_and_keeps_fractions(photo):
    view = preset("vit_jax", 32)
    pixels = view.pixels(photo)
    assert pixels.dtype == np.float32 and (pixels != np.rint(pixels)).any()
    assert (pixels == resize(photo, (32, 32), "bilinear", False, "keep")).all()


@pytest.mark.parametrize(("crop", "resized"), [(0.875, 256), (0.9, 248), (1.0, 224)])
def test_timms_crop_is_torchvisions_steps(photo, crop, resized):
    """Resize(resized, bicubic) then CenterCrop(224), done with Pillow by hand."""
    from PIL import Image

    width = int(resized * 130 / 90)
    image = Image.fromarray(photo).resize((width, resized), Image.Resampling.BICUBIC)
    left, top = round((width - 224) / 2), round((resized - 224) / 2)
    theirs = np.asarray(image.crop((left, top, left + 224, top + 224))).astype(int)
    ours = preset("timm_augreg", 224, crop=crop).pixels(photo)
    assert ours.dtype == np.uint8 and (np.abs(ours - theirs) > 1).mean() < 1e-4


def test_bit_squashes_to_its_resize_and_crops_the_centre(photo):
    wide = preset("bit", 48, resize=56).pixels(photo)
    assert (wide == resize(photo, (56, 56), "bilinear", True)[4:52, 4:52]).all()
    assert (preset("bit", 48).pixels(photo) == resize(photo, (48, 48), "bilinear", True)).all()


@pytest.mark.parametrize("name", PRESETS)
@pytest.mark.parametrize("shape", [(1, 1), (7, 150), (150, 7), (61, 53)])
def test_every_convention_gives_its_size_for_any_image(name, shape):
    image = np.full((*shape, 3), 9, np.uint8)
    for size in ((32, 32), (24, 40), (40, 24)):
        view = preset(name, size)
        assert view.pixels(image).shape == (*size, 3)
        top, left, bottom, right = view.box(*shape)
        assert -1e-6 <= top < bottom <= shape[0] + 1e-6 and -1e-6 <= left < right <= shape[1] + 1e-6


def test_the_box_says_where_the_view_lies():
    assert preset("vit_jax", 224).box(300, 500) == (0, 0, 300, 500)
    top, left, bottom, right = preset("timm_augreg", 224, crop=0.875).box(256, 512)
    assert (top, left, bottom, right) == (16, 144, 240, 368)


def test_bytes_paths_arrays_and_pillow_images_agree(tmp_path, photo):
    from PIL import Image

    path = tmp_path / "a.png"
    Image.fromarray(photo).save(path)
    view = preset("vit_jax", 32)
    wanted = view(photo)
    assert wanted.shape == (3, 32, 32) and wanted.dtype == torch.float32
    for image in (path, str(path), path.read_bytes(), Image.open(path)):
        assert torch.equal(view(image), wanted)
    with pytest.raises(DecodeError, match=r"missing\.png"):
        view(tmp_path / "missing.png")


def test_grey_models_get_luma(photo):
    view = Preprocess(16, mean=(0.5,), std=(0.5,), channels=1)
    assert view(photo).shape == (1, 16, 16)
    flat = np.full((20, 20, 3), 90, np.uint8)
    assert torch.allclose(view(flat), torch.full((1, 16, 16), (90 - 127.5) / 127.5), atol=1e-5)


def test_a_preprocess_survives_json():
    for name in PRESETS:
        view = preset(name, (64, 48))
        assert Preprocess.from_dict(json.loads(json.dumps(view.to_dict()))) == view


def test_mistakes_are_named():
    with pytest.raises(UsageError, match="squash"):
        Preprocess(mode="squish")
    with pytest.raises(UsageError, match="smaller than the crop"):
        Preprocess(224, "shorter_crop", 200)
    with pytest.raises(UsageError, match="interpolation"):
        Preprocess.from_dict({"interpolaton": "bilinear"})
    with pytest.raises(UsageError, match="deit"):
        preset("diet")
