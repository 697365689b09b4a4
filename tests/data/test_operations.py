import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageEnhance, ImageFilter, ImageOps

from vitrail.data import operations
from vitrail.data.operations import NAMES, Steps, run_each, run_together
from vitrail.errors import UsageError

GOLDEN = Path(__file__).parents[1] / "golden" / "p03"
CASE = json.loads((GOLDEN / "case.json").read_text())
OURS = {
    "AutoContrast": "autocontrast", "Equalize": "equalize", "Invert": "invert", "Rotate": "rotate",
    "Posterize": "posterize", "Solarize": "solarize", "Color": "colour", "Contrast": "contrast",
    "Brightness": "brightness", "Sharpness": "sharpness", "ShearX": "shear_x", "ShearY": "shear_y",
    "TranslateX": "translate_x", "TranslateY": "translate_y", "Cutout": "cutout", "SolarizeAdd": "solarize_add",
}  # fmt: skip
GREY = (128, 128, 128)


def steps(names, amounts, centres=None):
    centres = np.zeros((len(names), 2), np.int64) if centres is None else np.asarray(centres, np.int64)
    return Steps(np.array([NAMES.index(n) for n in names]), np.asarray(amounts, np.float32), centres)


def to_batch(images):
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).contiguous()


def to_arrays(batch):
    return batch.permute(0, 2, 3, 1).numpy().astype(int)


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "arrays.npz") as file:
        return dict(file)


@pytest.mark.parametrize("executor", [run_each, run_together], ids=["each", "together"])
def test_every_operation_is_tensorflows(golden, executor):
    keys = list(CASE["operations"])
    images = [golden["image_lowcontrast" if k.endswith("lowcontrast") else "image_natural"] for k in keys]
    info = [CASE["operations"][k] for k in keys]
    todo = steps([OURS[k.split("_")[0]] for k in keys], [i["amount"] for i in info], [i.get("centre", (0, 0)) for i in info])
    ours = to_arrays(executor(to_batch(images), todo, "tf", GREY, count_bug=True))
    assert len(keys) == 143
    for key, out in zip(keys, ours):
        wrong = np.abs(out - golden[key])
        exact = key.startswith(("Equalize", "Invert", "Posterize", "Solarize", "Shear", "Translate", "Cutout"))
        if key.startswith("Rotate"):
            assert (wrong.max(-1) > 0).mean() <= 0.005, key
        else:
            assert wrong.max() <= 1 and (wrong > 0).mean() <= (0 if exact else 1e-3), key


def test_contrast_without_the_bug_keeps_the_mean(golden):
    image = golden["image_natural"]
    for bug, stays in ((False, True), (True, False)):
        out = to_arrays(run_each(to_batch([image]), steps(["contrast"], [0.5]), "tf", GREY, count_bug=bug))[0]
        assert (abs(out.mean() - image.mean()) < 4) == stays


def pillow(name, amount, image):
    """The same with Pillow, as timm calls it."""
    picture = Image.fromarray(image)
    height, width = image.shape[:2]
    affine = {
        "shear_x": (1, amount, 0, 0, 1, 0),
        "shear_y": (1, 0, 0, amount, 1, 0),
        "translate_x": (1, 0, amount, 0, 1, 0),
        "translate_y": (1, 0, 0, 0, 1, amount),
    }
    enhance = {"colour": "Color", "contrast": "Contrast", "brightness": "Brightness", "sharpness": "Sharpness"}
    if name in affine:
        options = {"resample": Image.Resampling.BICUBIC, "fillcolor": GREY}
        return picture.transform((width, height), Image.Transform.AFFINE, affine[name], **options)
    if name == "rotate":
        return picture.rotate(amount, resample=Image.Resampling.BICUBIC, fillcolor=GREY)
    if name in enhance:
        return getattr(ImageEnhance, enhance[name])(picture).enhance(amount)
    table = np.arange(256)
    if name == "solarize_add":
        return picture.point(list(np.where(table < 128, np.clip(table + amount, 0, 255), table)) * 3)
    if name == "posterize" and amount == 0:
        return picture.point([0] * 768)
    if name == "solarize":
        return ImageOps.solarize(picture, int(amount))
    if name == "posterize":
        return ImageOps.posterize(picture, int(amount))
    return getattr(ImageOps, name)(picture)


PILLOW = [
    ("autocontrast", 0), ("equalize", 0), ("invert", 0), ("posterize", 0), ("posterize", 3), ("solarize", 26), ("solarize", 256),
    ("solarize_add", 99), ("brightness", 0.3), ("brightness", 1.8), ("contrast", 0.1), ("contrast", 1.7), ("colour", 0.2),
    ("colour", 1.9), ("sharpness", 0.1), ("sharpness", 1.9), ("rotate", 27.0), ("rotate", -13.0), ("shear_x", 0.27),
    ("shear_y", -0.2), ("translate_x", 15.3), ("translate_y", -9.6),
]  # fmt: skip


@pytest.mark.parametrize(("name", "amount"), PILLOW)
@pytest.mark.parametrize("which", ["natural", "lowcontrast"])
def test_the_pillow_flavour_is_pillow(golden, name, amount, which):
    image = golden[f"image_{which}"]
    theirs = np.asarray(pillow(name, amount, image)).astype(int)
    ours = to_arrays(run_each(to_batch([image]), steps([name], [amount]), "pillow", GREY))[0]
    wrong = np.abs(ours - theirs)
    if name in operations.AFFINE:  # a border pixel may fall on the other side of the edge
        assert (wrong.max(-1) > 2).mean() < 0.01
    else:
        assert wrong.max() <= 1 and (wrong > 0).mean() < 2e-3


def test_blur_is_a_gaussian(golden):
    image = golden["image_natural"]
    ours = to_arrays(run_each(to_batch([image]), steps(["blur"], [1.5]), "pillow", GREY))[0]
    theirs = np.asarray(Image.fromarray(image).filter(ImageFilter.GaussianBlur(1.5))).astype(int)
    inner = np.abs(ours - theirs)[6:-6, 6:-6]
    assert inner.mean() < 1.5 and np.abs(ours - image)[6:-6, 6:-6].mean() > 3  # Pillow blurs with three boxes
    assert (np.abs(to_arrays(run_each(to_batch([image]), steps(["blur"], [0.1]), "pillow", GREY))[0] - image) <= 1).all()


@pytest.mark.parametrize("flavour", ["tf", "pillow"])
def test_company_and_executor_do_not_matter(golden, flavour):
    rng = np.random.default_rng(0)
    names = [n for n in NAMES if n != "identity"] * 3
    amounts = [{"posterize": 3, "solarize": 100, "solarize_add": 40, "rotate": 20, "cutout": 9}.get(n, 0.6) for n in names]
    amounts = [a * f for a, f in zip(amounts, rng.uniform(0.5, 1.5, len(names)))]
    images = to_batch([rng.permutation(golden["image_natural"], axis=1) for _ in names])
    todo = steps(names, amounts, rng.integers(0, 40, (len(names), 2)))
    together = run_together(images.clone(), todo, flavour, GREY)
    each = run_each(images.clone(), todo, flavour, GREY)
    assert torch.equal(together, each)
    some = np.array([3, 17, 4, 40])
    assert torch.equal(run_together(images[some].clone(), todo[some], flavour, GREY), together[some])


@pytest.mark.parametrize("size", [(1, 1), (2, 2), (1, 9), (9, 1)])
@pytest.mark.parametrize("flavour", ["tf", "pillow"])
def test_tiny_images_are_no_trouble(size, flavour):
    names = [n for n in NAMES if n != "blur"]
    images = torch.full((len(names), 3, *size), 5, dtype=torch.uint8)
    run_together(images, steps(names, np.ones(len(names))), flavour, GREY)


def test_only_uint8_colour_images_are_taken():
    with pytest.raises(UsageError, match="RGB"):
        run_each(torch.zeros(1, 1, 4, 4, dtype=torch.uint8), steps(["invert"], [0]), "tf", GREY)
