import numpy as np
import pytest

from vitrail.config import AugmentSpec, load_recipe
from vitrail.data.operations import NAMES
from vitrail.data.randaugment import LEVELS, TF, TIMM, colour_jitter, level, randaugment, three_augment
from vitrail.errors import UsageError

MANY = np.arange(40_000)
SIZE = (224, 160)


def amounts(which, name, magnitude, std=0.0):
    (step,) = randaugment(which, 1, magnitude, std, 0, MANY, SIZE)
    return step.amount[step.name == NAMES.index(name)]


def test_the_lists_are_the_originals():
    assert len(TF) == 16 and set(TF) - set(TIMM) == {"cutout"} and len(TIMM) == 15


def test_tf_applies_each_of_its_operations_equally_often():
    first, second = randaugment("tf", 2, 10, 0, 0, MANY, SIZE)
    counts = np.bincount(first.name, minlength=len(NAMES))
    used = [NAMES.index(n) for n in TF]
    assert counts.sum() == counts[used].sum() == len(MANY)
    assert (np.abs(counts[used] / (len(MANY) / 16) - 1) < 0.08).all()
    assert abs((first.name == second.name).mean() - 1 / 16) < 0.01  # layers are independent


def test_timm_applies_half_of_them():
    (step,) = randaugment("timm", 1, 9, 0.5, 0, MANY, SIZE)
    assert abs((step.name == 0).mean() - 0.5) < 0.01


@pytest.mark.parametrize(
    ("name", "magnitude", "expected"),
    [
        ("posterize", 0, {0}), ("posterize", 10, {4}), ("posterize", 15, {6}), ("posterize", 20, {8}),
        ("solarize", 10, {256}), ("solarize", 15, {384}), ("solarize_add", 15, {165}), ("cutout", 15, {60}),
        ("rotate", 15, {45, -45}), ("translate_x", 20, {200, -200}), ("shear_y", 20, {0.6, -0.6}),
        ("colour", 0, {0.1}), ("brightness", 10, {1.9}), ("sharpness", 20, {3.7}),
    ],
)  # fmt: skip
def test_tf_magnitudes_are_big_visions(name, magnitude, expected):
    assert set(np.round(amounts("tf", name, magnitude).astype(float), 4)) == expected


def test_timm_strength_grows_with_its_magnitude():
    assert set(np.round(amounts("timm", "colour", 9).astype(float), 3)) == {0.19, 1.81}
    assert set(amounts("timm", "posterize", 10)) == {0} and set(amounts("timm", "posterize", 0)) == {4}
    assert set(amounts("timm", "solarize", 10)) == {0} and set(amounts("timm", "solarize_add", 10)) == {110}
    assert np.allclose(np.abs(amounts("timm", "translate_x", 10)), 0.45 * 160)
    spread = np.abs(amounts("timm", "rotate", 5, std=0.5)) / 3
    assert abs(spread.mean() - 5) < 0.05 and abs(spread.std() - 0.5) < 0.03
    assert np.abs(amounts("timm", "rotate", 10, std=0.5)).max() <= 30


def test_a_sample_gets_the_same_in_any_company():
    whole = randaugment("timm", 2, 9, 0.5, 3, np.arange(100), SIZE)
    part = randaugment("timm", 2, 9, 0.5, 3, np.arange(40, 50), SIZE)
    for a, b in zip(whole, part):
        assert (a.name[40:50] == b.name).all() and (a.amount[40:50] == b.amount).all()


def test_three_augment_is_one_of_three():
    (step,) = three_augment(0, MANY)
    names, counts = np.unique(step.name, return_counts=True)
    assert {NAMES[n] for n in names} == {"colour", "solarize", "blur"}
    assert (np.abs(counts / len(MANY) - 1 / 3) < 0.01).all()
    sigma = step.amount[step.name == NAMES.index("blur")]
    assert 0.1 <= sigma.min() < 0.12 and 1.98 < sigma.max() <= 2


def test_colour_jitter_does_all_three_in_any_order():
    steps = colour_jitter(0.3, 0, MANY)
    names = np.stack([s.name for s in steps])
    assert (np.sort(names, 0) == np.sort([NAMES.index(n) for n in ("brightness", "contrast", "colour")])[:, None]).all()
    assert len({tuple(c) for c in names.T}) == 6
    factors = np.concatenate([s.amount for s in steps])
    assert 0.7 <= factors.min() < 0.71 and 1.29 < factors.max() <= 1.3


@pytest.mark.parametrize("name", LEVELS)
def test_augregs_levels_are_those_of_its_recipes(name):
    spec = AugmentSpec(**level(name))
    recipe = load_recipe("augreg:B/16-" + name) if f"augreg:B/16-{name}" in _recipes() else None
    if recipe is not None:
        assert (spec.randaugment, spec.mixup) == (recipe.augment.randaugment, recipe.augment.mixup)
        if spec.randaugment != "none":
            assert spec.randaugment_magnitude == recipe.augment.randaugment_magnitude
    assert (spec.randaugment_layers if spec.randaugment != "none" else 0, spec.mixup) == (LEVELS[name][0], LEVELS[name][2])


def _recipes():
    from vitrail.config import list_recipes

    return list_recipes()


def test_unknown_names_are_refused_with_the_nearest():
    with pytest.raises(UsageError, match="strong2"):
        level("strong3")
    with pytest.raises(UsageError, match="timm"):
        randaugment("tim", 1, 1, 0, 0, MANY[:2], SIZE)
