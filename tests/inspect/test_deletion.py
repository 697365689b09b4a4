"""Maps mean something: on a model trained here, taking away what they mark hurts the answer more than taking away anything else.

The task: among noise and three grey patches, one patch of 36 has a colour, and the colour is the class.
The trained weights lie in tests/golden; `python tests/inspect/test_deletion.py` trains them again.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from vitrail.inspect.deletion import STEPS, curve, deletion, maps_of, orders_of
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build

COLOURS = torch.tensor([[1.0, -1, -1], [-1, 1, -1], [-1, -1, 1], [1, 1, -1]])
GOLDEN = Path(__file__).parents[1] / "golden" / "coloured_patch" / "weights.npz"
CONFIG = ViTConfig(width=32, depth=2, heads=2, mlp_width=64, patch_size=4, image_size=24, classes=4)


def task(count, seed):
    """(images, classes, the patch that has the colour)."""
    generator = torch.Generator().manual_seed(seed)
    images = torch.randn(count, 3, 36, 16, generator=generator) * 0.2
    places = torch.rand(count, 36, generator=generator).argsort(1)[:, :4]
    labels = torch.randint(4, (count,), generator=generator)
    rows = torch.arange(count)
    images[rows[:, None], :, places[:, 1:]] += torch.rand(count, 3, 1, 1, generator=generator) + 0.5
    images[rows, :, places[:, 0]] += COLOURS[labels][..., None]
    return images.unflatten(2, (6, 6)).unflatten(4, (4, 4)).permute(0, 1, 2, 4, 3, 5).reshape(count, 3, 24, 24), labels, places[:, 0]


def trained():
    model = build(CONFIG, seed=0)
    optimiser = torch.optim.AdamW(model.parameters(), 2e-3)
    for step in range(220):
        images, labels, _ = task(64, step)
        loss = F.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model.eval()


@pytest.fixture(scope="module")
def model():
    model = build(CONFIG)
    model.load_state_dict({name: torch.from_numpy(array).float() for name, array in np.load(GOLDEN).items()})
    return model.eval()


def test_the_stored_model_knows_the_task(model):
    images, labels, _ = task(200, 10_000)
    with torch.no_grad():
        assert (model(images).argmax(1) == labels).float().mean() > 0.95


def test_taking_away_what_a_map_marks_hurts_more_than_anything_else(model):
    images, _, _ = task(60, 20_000)
    found = deletion(model, images)
    for name in ("rollout", "gradient"):
        assert found[name].minus_random.high < -0.1, name
        assert found[f"{name}, least first"].minus_random.low > 0.1, name
        assert found[name].faster > 0.7


def test_maps_point_at_the_patch_that_decides(model):
    images, _, places = task(60, 20_000)
    for name, values in maps_of(model, images).items():
        assert (values.argmax(1) == places).float().mean() > 0.5, name  # chance is 1 in 36


def test_an_untrained_model_has_nothing_to_lose(model):
    fresh = build(CONFIG, seed=1).eval()
    torch.nn.init.normal_(fresh.head.weight, std=0.02, generator=torch.Generator().manual_seed(0))
    images, _, _ = task(60, 20_000)
    gap, learned = (deletion(which, images)["rollout"].minus_random.value for which in (fresh, model))
    assert abs(gap) < 0.05 * abs(learned)


def test_the_curve_starts_with_the_whole_image_and_ends_with_none(model):
    images, _, _ = task(10, 3)
    orders = orders_of({"any": torch.rand(10, 36, generator=torch.Generator().manual_seed(0))}, seed=0)
    found = curve(model, images, orders["any"], batch_size=3)
    with torch.no_grad():
        whole, empty = model(images).softmax(1), model(images.mean((2, 3), keepdim=True).expand_as(images)).softmax(1)
    best = whole.argmax(1, keepdim=True)
    assert found.shape == (10, len(STEPS))
    assert torch.allclose(found[:, :1], whole.gather(1, best), atol=1e-6)
    assert torch.allclose(found[:, -1:], empty.gather(1, best), atol=1e-5)


def test_random_orders_depend_on_the_seed_and_the_image_alone():
    maps = {"any": torch.zeros(5, 36)}
    first, again, other = orders_of(maps, 0), orders_of({"any": torch.ones(9, 36)}, 0), orders_of(maps, 1)
    assert torch.equal(first["random 1"], again["random 1"][:5]) and not torch.equal(first["random 1"], other["random 1"])
    assert not torch.equal(first["random 0"], first["random 1"])


if __name__ == "__main__":
    GOLDEN.parent.mkdir(exist_ok=True)
    np.savez_compressed(GOLDEN, **{name: value.half().numpy() for name, value in trained().state_dict().items()})
