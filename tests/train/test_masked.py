"""Objectives without labels: what is hidden, what is asked, what it counts."""

import pytest
import torch

from vitrail.config import ObjectiveSpec
from vitrail.errors import UsageError
from vitrail.model.variants import create_model
from vitrail.runtime.device import Precision
from vitrail.train.mae import Mae
from vitrail.train.masked import MaskedPatches, colour_class, cut_patches
from vitrail.train.optim import build_optimizer

HALF = (0.5, 0.5, 0.5)


def vit(**options):
    return create_model("mu/8", classes=0, image_size=(32, 24), **options)


def masked(**spec):
    return MaskedPatches(vit(), ObjectiveSpec(loss="masked_patches", **spec), Precision("fp32"), HALF, HALF, seed=3)


def mae(**spec):
    given = {"mask_rate": 0.75, "decoder_width": 32, "decoder_depth": 2, "decoder_heads": 2, **spec}
    model = vit(position="sincos2d", position_class=False)
    return Mae(model, ObjectiveSpec(loss="mae", **given), Precision("fp32"), HALF, HALF, seed=3)


@pytest.fixture
def images():
    return torch.randint(0, 256, (6, 3, 32, 24), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def test_patches_come_in_raster_order(images):
    patches = cut_patches(images, (8, 8))
    assert patches.shape == (6, 12, 3, 8, 8)
    assert torch.equal(patches[0, 4], images[0, :, 8:16, 8:16])  # second row, second of three columns


def test_colours_have_three_bits_a_channel():
    colours = torch.tensor([[0.0, 0.0, 0.0], [1.0, 1.0, 1.0], [0.5, 0.124, 0.126]])
    assert colour_class(colours).tolist() == [0, 511, 64 * 4 + 8 * 0 + 1]


def test_exactly_half_of_the_patches_are_corrupted(images):
    corrupted, _, foreign, target = masked().prepare(images, torch.zeros(6), torch.arange(6))
    assert corrupted.sum(1).tolist() == [6] * 6
    assert target.shape == (6, 12) and int(target.max()) < 512
    assert (foreign != torch.arange(12)).all() and (foreign >= 0).all() and (foreign < 12).all()
    mean = images[2, :, 8:16, 0:8].double().mean(dim=(1, 2)) / 255
    level = (mean * 8).floor().long()
    assert int(target[2, 3]) == int(64 * level[0] + 8 * level[1] + level[2])


def test_shares_of_mask_foreign_and_kept_are_the_papers():
    around = masked(mask_exact=False)
    blank = torch.zeros(4000, 3, 32, 24, dtype=torch.uint8)
    corrupted, kind, *_ = around.prepare(blank, torch.zeros(4000), torch.arange(4000))
    assert corrupted.float().mean() == pytest.approx(0.5, abs=0.01)
    within = kind[corrupted]
    shares = [(within < 0.8).float().mean(), ((within >= 0.8) & (within < 0.9)).float().mean()]
    assert [float(s) for s in shares] == pytest.approx([0.8, 0.1], abs=0.01)


def test_what_is_hidden_depends_on_the_slot_alone(images):
    for around in (masked(), mae()):
        whole = around.prepare(images, torch.zeros(6), torch.arange(6))
        part = around.prepare(images[4:], torch.zeros(2), torch.arange(4, 6))
        assert all(torch.equal(a[4:], b) for a, b in zip(whole, part))
        again = around.prepare(images, torch.zeros(6), torch.arange(6) + 100)
        assert not torch.equal(whole[0], again[0])


@pytest.mark.parametrize("target", ["mean_colour", "downsized", "pixels"])
def test_each_target_starts_at_its_ignorance_and_can_be_learned(images, target):
    around = masked(mask_target=target)
    around.train()
    given = around.prepare(images, torch.zeros(6), torch.arange(6))
    first = around(images, None, *given)
    assert first.shape == (6,) and first.dtype == torch.float32
    if target != "pixels":
        torch.testing.assert_close(first, torch.full((6,), float(torch.log(torch.tensor(512.0)))), rtol=1e-5, atol=1e-5)
    optimizer = build_optimizer(around.named(), _spec())
    for _ in range(25):
        optimizer.zero_grad()
        around(images, None, *given).mean().backward()
        optimizer.step(3e-3)
    assert around(images, None, *given).mean() < 0.9 * first.mean()


def test_a_patch_that_is_not_corrupted_costs_nothing(images):
    around = masked()
    corrupted, kind, foreign, target = around.prepare(images, torch.zeros(6), torch.arange(6))
    torch.nn.init.normal_(around.predict_patch.weight)
    other = torch.where(corrupted, target, (target + 7) % 512)
    assert torch.equal(around(images, None, corrupted, kind, foreign, target), around(images, None, corrupted, kind, foreign, other))


def test_a_masked_patch_does_not_show_through(images):
    """With every corrupted patch masked, changing its pixels changes nothing that is predicted."""
    around = masked().eval()
    corrupted, kind, foreign, target = around.prepare(images, torch.zeros(6), torch.arange(6))
    torch.nn.init.normal_(around.predict_patch.weight)
    kind = torch.zeros_like(kind)
    hidden = corrupted.view(6, 1, 4, 1, 3, 1).expand(6, 3, 4, 8, 3, 8).reshape(6, 3, 32, 24)
    changed = torch.where(hidden, 255 - images, images)
    assert torch.equal(around(images, None, corrupted, kind, foreign, target), around(changed, None, corrupted, kind, foreign, target))


def test_mae_shows_a_quarter_and_counts_the_rest(images):
    around = mae()
    keep, target = around.prepare(images, torch.zeros(6), torch.arange(6))
    assert keep.shape == (6, 3) and (keep.diff(dim=1) > 0).all()
    assert target.shape == (6, 12, 192)
    torch.testing.assert_close(target.mean(-1), torch.zeros(6, 12), atol=1e-5, rtol=0)
    torch.testing.assert_close(target.var(-1), torch.ones(6, 12), atol=1e-3, rtol=0)
    seen = torch.zeros(6, 12, dtype=torch.bool).scatter(1, keep, True)
    other = torch.where(seen[:, :, None], target + 5, target)
    assert torch.equal(around(images, None, keep, target), around(images, None, keep, other))


def test_mae_never_sees_what_it_hides(images):
    around = mae().eval()
    keep, target = around.prepare(images, torch.zeros(6), torch.arange(6))
    hidden = ~torch.zeros(6, 12, dtype=torch.bool).scatter(1, keep, True)
    over = hidden.view(6, 1, 4, 1, 3, 1).expand(6, 3, 4, 8, 3, 8).reshape(6, 3, 32, 24)
    assert torch.equal(around(images, None, keep, target), around(torch.where(over, 255 - images, images), None, keep, target))


def test_mae_learns(images):
    around = mae()
    given = around.prepare(images, torch.zeros(6), torch.arange(6))
    first = float(around(images, None, *given).mean().detach())
    optimizer = build_optimizer(around.named(), _spec())
    for _ in range(25):
        optimizer.zero_grad()
        around(images, None, *given).mean().backward()
        optimizer.step(3e-3)
    assert float(around(images, None, *given).mean().detach()) < 0.9 * first


def test_what_the_objective_owns_is_told_apart_from_the_model(images):
    around = mae()
    assert set(around.extras()) == {name for name in around.state_dict() if name.startswith("decoder.")}
    names = [name for name, _ in around.named()]
    assert "blocks.0.norm1.weight" in names and "decoder.blocks.0.norm1.weight" in names


def test_models_without_patches_are_refused():
    resnet = create_model("R50x1", classes=0, image_size=32, layers=(1,))
    with pytest.raises(UsageError, match="Vision Transformer"):
        MaskedPatches(resnet, ObjectiveSpec(), Precision("fp32"), HALF, HALF, seed=0)
    with pytest.raises(UsageError, match="leaves 12 of 12"):
        mae(mask_rate=0.01)


def _spec():
    from vitrail.config import OptimSpec

    return OptimSpec(clip_norm=1.0)
