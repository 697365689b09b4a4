import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.data.mix import Mix, beta, erase, erased_boxes, mix, plan_mix, roll
from vitrail.kernels import draws

GOLDEN = Path(__file__).parents[1] / "golden" / "p04"
CASE = json.loads((GOLDEN / "case.json").read_text())
WORDS = draws.key(0, "mix")


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN / "arrays.npz") as file:
        return {name: torch.from_numpy(file[name]) for name in file}


@pytest.mark.parametrize("case", range(3))
def test_mixup_is_big_visions(golden, case):
    lam = CASE["config"]["cases"][case]["lam"]
    plan = Mix(np.full(6, lam, np.float32), np.zeros((6, 4), np.int64))
    images, labels = mix(golden["images"].permute(0, 3, 1, 2), golden["labels"], plan, group=6)
    assert (images.permute(0, 2, 3, 1) - golden[f"mixed_images_{case}"]).abs().max() < 2e-6
    assert (labels - golden[f"mixed_labels_{case}"]).abs().max() < 2e-6


def test_lambda_has_big_visions_distribution(golden):
    plan = plan_mix(0.2, 0, 1.0, 0.5, 0, np.arange(20_000), (8, 8))
    ours = np.quantile(plan.share, np.linspace(0, 1, 101))
    assert np.abs(ours - golden["lambda_quantiles_p0"].numpy()).max() < 0.02
    assert not plan.cuts


@pytest.mark.parametrize("alpha", [0.1, 0.5, 1.0, 3.0])
def test_beta_has_its_moments(alpha):
    sample = beta(alpha, draws.Streams(WORDS, np.arange(8000)), np.arange(8000))
    assert ((sample >= 0) & (sample <= 1)).all()
    assert abs(sample.mean() - 0.5) < 0.02
    assert abs(sample.var() - 1 / (4 * (2 * alpha + 1))) < 0.01


def test_partners_are_the_left_neighbours_of_their_group():
    assert roll(torch.arange(8), 4).tolist() == [3, 0, 1, 2, 7, 4, 5, 6]


def test_cutmix_pastes_a_box_and_counts_it_exactly():
    groups = np.repeat(np.arange(500), 2)
    plan = plan_mix(0, 1.0, 1.0, 0.5, 0, groups, (20, 30))
    images = torch.zeros(1000, 1, 20, 30)
    images[1::2] = 1
    targets = torch.eye(2).repeat(500, 1)
    mixed, labels = mix(images, targets, plan, 2)
    assert set(mixed.unique().tolist()) <= {0.0, 1.0}
    own = mixed[1::2].flatten(1).mean(1)  # what is left of the sample of ones
    assert torch.allclose(labels[1::2, 1], own, atol=1e-6) and torch.allclose(labels.sum(1), torch.ones(1000))
    assert 0.25 < 1 - own.mean() < 0.35  # half of the area, less what the border clips
    assert ((plan.share[::2] == plan.share[1::2]).all()) and (plan.box[::2] == plan.box[1::2]).all()


def test_probability_and_switch_are_kept():
    plan = plan_mix(0.8, 1.0, 0.6, 0.25, 0, np.arange(20_000), (16, 16))
    cut = plan.box[:, 2] > plan.box[:, 0]
    untouched = (plan.share == 1) & ~cut
    assert 0.38 < untouched.mean() < 0.43  # a box can also be empty
    assert abs(cut.mean() - 0.6 * 0.25) < 0.02


def test_erased_boxes_have_their_size_and_noise():
    images = torch.full((400, 3, 32, 32), 1000.0)
    erase(images, 0.25, 0, np.arange(400), (0.5, 0.4, 0.3), (0.2, 0.2, 0.2))
    hit = (images != 1000).flatten(1).any(1)
    assert abs(hit.float().mean() - 0.25) < 0.06
    area = (images[hit] != 1000)[:, 0].flatten(1).float().mean(1)
    assert area.min() > 0.01 and area.max() < 0.36
    noise = images[:, 0][images[:, 0] != 1000] / 255
    assert abs(noise.mean() - 0.5) < 0.01 and abs(noise.std() - 0.2) < 0.01


def test_draws_do_not_depend_on_the_split():
    whole = plan_mix(0.8, 1.0, 0.9, 0.5, 7, np.arange(64) // 8, (16, 16))
    part = plan_mix(0.8, 1.0, 0.9, 0.5, 7, np.arange(32, 48) // 8, (16, 16))
    assert (whole.share[32:48] == part.share).all() and (whole.box[32:48] == part.box).all()


def erased_box(probability, stream, size):
    """One sample's box, written plainly: the twin of `erased_boxes`."""
    if stream.uniform() >= probability:
        return 0, 0, 0, 0
    rows, columns = size
    for _ in range(10):
        area = stream.uniform(0.02, 1 / 3) * rows * columns
        aspect = math.exp(stream.uniform(math.log(0.3), math.log(1 / 0.3)))
        height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if height < rows and width < columns:
            top, left = stream.integer(rows - height + 1), stream.integer(columns - width + 1)
            return top, left, top + height, left + width
    return 0, 0, 0, 0


@pytest.mark.parametrize("size", [(24, 20), (224, 224), (3, 40), (1, 1)])
def test_boxes_to_erase_are_drawn_for_all_samples_as_for_one(size):
    positions = np.arange(5000, 5400)
    words = draws.key(7, "erase")
    expected = [erased_box(0.6, draws.Stream(words, int(p)), size) for p in positions]
    assert erased_boxes(0.6, 7, positions, size).tolist() == [list(box) for box in expected]
    assert not erased_boxes(0.0, 7, positions, size).any()
