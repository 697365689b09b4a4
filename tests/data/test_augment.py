import pytest
import torch

from vitrail.config import AugmentSpec
from vitrail.data import operations
from vitrail.data.augment import Augment, level
from vitrail.data.batch import Batch
from vitrail.errors import UsageError

SPECS = {
    "strong2": AugmentSpec(**level("strong2")),
    "light1": AugmentSpec(**level("light1")),
    "none": AugmentSpec(),
    "deit": AugmentSpec(
        randaugment="timm", randaugment_magnitude=9.0, randaugment_std=0.5, erasing=0.25, mixup=0.8, cutmix=1.0, colour_jitter=0.3
    ),
    "deit3": AugmentSpec(three_augment=True, colour_jitter=0.3, mixup=0.8, cutmix=1.0),
}


def batch(count=32, size=(24, 20), start=0, labels=None):
    generator = torch.Generator().manual_seed(1)
    images = torch.randint(0, 256, (64, *size, 3), generator=generator, dtype=torch.uint8).permute(0, 3, 1, 2)
    position = torch.arange(start, start + count)
    labels = position % 5 if labels is None else labels
    rows = position % 64
    return Batch(images[rows].contiguous(memory_format=torch.channels_last), labels, rows, position, torch.ones(count, dtype=torch.bool))


def augment(spec, data, **options):
    return Augment(spec, seed=3, classes=5, group=8, **options)(data)


@pytest.mark.parametrize("name", SPECS)
def test_any_split_of_the_batch_gives_the_same(name):
    images, targets = augment(SPECS[name], batch(32))
    for share in (8, 16):
        parts = [augment(SPECS[name], batch(share, start=start)) for start in range(0, 32, share)]
        assert torch.equal(torch.cat([p[0] for p in parts]), images)
        assert torch.equal(torch.cat([p[1] for p in parts]), targets)


@pytest.mark.parametrize("name", SPECS)
def test_both_executors_agree(name, monkeypatch):
    data = batch(32)
    monkeypatch.setattr(operations, "_SMALL", 0)
    each = augment(SPECS[name], data)[0]
    monkeypatch.setattr(operations, "_SMALL", 1 << 30)
    together = augment(SPECS[name], data)[0]
    assert (each.float() - together.float()).abs().max() <= 1


@pytest.mark.parametrize("name", SPECS)
def test_the_batch_itself_is_left_alone(name):
    data = batch(16)
    before = data.images.clone()
    out, _ = augment(SPECS[name], data)
    assert torch.equal(data.images, before)
    assert out.shape == before.shape and (name == "none" or not torch.equal(out.float(), before.float()))


def test_without_mixing_labels_and_bytes_stay_what_they_are():
    data = batch(16)
    images, targets = augment(SPECS["light1"], data)
    assert images.dtype == torch.uint8 and torch.equal(targets, data.labels)


def test_flips_happen_half_the_time_and_are_mirror_images():
    data = batch(64)
    images, _ = augment(AugmentSpec(flip=0.5), data)
    same = (images == data.images).flatten(1).all(1)
    mirrored = (images == data.images.flip(3)).flatten(1).all(1)
    assert (same ^ mirrored).all() and 16 < same.sum() < 48
    assert torch.equal(augment(AugmentSpec(flip=0.0), data)[0], data.images)


def test_epochs_differ():
    first, _ = augment(SPECS["strong2"], batch(64))
    again, _ = augment(SPECS["strong2"], batch(64, start=64))
    assert (first != again).flatten(1).any(1).float().mean() > 0.9


def test_targets_of_mixed_samples_add_up_to_one():
    _, targets = augment(SPECS["deit"], batch(32))
    assert targets.shape == (32, 5) and torch.allclose(targets.sum(1), torch.ones(32))
    assert ((targets > 0).sum(1) > 1).any()


def test_unlabelled_and_several_labels_can_be_mixed():
    _, targets = augment(SPECS["strong2"], batch(8, labels=torch.full((8,), -1)))
    assert targets.abs().sum() == 0
    several = torch.zeros(8, 5)
    several[:, :2] = 1
    _, targets = augment(SPECS["strong2"], batch(8, labels=several))
    assert torch.allclose(targets, several)


def test_fractions_from_the_training_view_are_taken_too():
    data = batch(8)
    data.images = data.images.float() + 0.3
    images, _ = augment(SPECS["light1"], data)
    assert images.dtype == torch.uint8


def test_mistakes_are_named():
    with pytest.raises(UsageError, match="whole groups of 8"):
        augment(SPECS["strong2"], batch(12))
    with pytest.raises(UsageError, match="whole groups"):
        augment(SPECS["strong2"], batch(8, start=4))
    with pytest.raises(UsageError, match="probability"):
        augment(AugmentSpec(flip=1.5), batch(8))
    with pytest.raises(UsageError, match="pair"):
        Augment(SPECS["strong2"], seed=0, classes=5, group=1)
    with pytest.raises(UsageError, match="mix labels"):
        Augment(SPECS["strong2"], seed=0, classes=0, group=8)


@pytest.mark.parametrize("mean", [(0.1, 0.5, 0.9), (0.25,)])
def test_corners_that_a_rotation_leaves_have_the_colour_of_the_mean(mean):
    spec = AugmentSpec(flip=0, randaugment="timm", randaugment_layers=1, randaugment_magnitude=10)
    data = batch(64, size=(64, 48))
    data.images = torch.full_like(data.images, 255)
    images, _ = augment(spec, data, mean=mean, std=mean)
    wanted = torch.tensor([round(255 * m) for m in (mean if len(mean) == 3 else 3 * mean)], dtype=torch.uint8)
    assert (images == wanted.view(1, 3, 1, 1)).all(1).flatten(1).any(1).sum() > 4


def test_a_run_augments_with_the_pixel_range_of_its_recipe(tmp_path):
    from vitrail.config import from_dict
    from vitrail.train.run import open_run
    from vitrail.train.rundir import RunDirectory

    recipe = from_dict(
        {
            "model": {"name": "mu/8", "image_size": [16, 16]},
            "data": {"train": "builtin:shapes?n=16&size=16", "eval_split": "nothing", "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]},
            "augment": {"erasing": 0.25},
            "train": {"batch_size": 8, "steps": 1, "sure": True},
        }
    )
    augment = open_run(recipe, RunDirectory(tmp_path), "cpu").step.augment
    assert (augment.mean, augment.std) == ((0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
