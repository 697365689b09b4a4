"""From data and weights to a recipe: which images train, stop and report; how long; at what size."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
from PIL import Image

from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, UsageError
from vitrail.model.config import ViTConfig
from vitrail.train.proposal import Wishes, look, propose

CARD = SimpleNamespace(transform=lambda: Preprocess((224, 224), "shorter_crop", interpolation="bicubic"))
SHAPES = "builtin:shapes?n=300&size=32&classes=3"


def proposal(facts, gpu=True, **wishes):
    return propose("w.safetensors", ViTConfig(), CARD, facts, Wishes(**wishes), gpu=gpu)


@pytest.fixture
def photos(tmp_path):
    """50 pictures of cats and 3 of dogs, in no splits."""
    for name, count in (("cat", 50), ("dog", 3)):
        (tmp_path / name).mkdir()
        for i in range(count):
            pixels = np.random.default_rng(i).integers(0, 255, (300, 400, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(tmp_path / name / f"{i}.png")
    return tmp_path


def test_a_folder_without_splits_holds_out_a_tenth_and_says_so(photos):
    facts = look(str(photos))
    assert (facts.train_split, facts.test_split, facts.dev_split) == ("train[:90%]", "train[90%:]", None)
    assert facts.examples == 48 and facts.side == pytest.approx((300 * 400) ** 0.5)
    assert any("held out" in line for line in proposal(facts).reasons)


def test_early_stopping_never_looks_at_the_reported_images(photos):
    alone, split = look(str(photos), dev=True), look(SHAPES, dev=True)
    assert (alone.train_split, alone.dev_split, alone.test_split) == ("train[:80%]", "train[80%:90%]", "train[90%:]")
    assert split.test_split == "test" and split.dev_split not in (None, "test")
    assert proposal(split, early_stop=3).recipe.data.eval_split == split.dev_split


def test_rare_classes_are_named_with_what_to_do(photos):
    line = look(str(photos)).balance()
    assert "dog" in line and "--balanced" in line
    assert "--balanced" not in look(SHAPES).balance()


def test_too_few_images_to_hold_any_out_are_refused(tmp_path):
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        Image.new("RGB", (8, 8)).save(tmp_path / name / "1.png")
    with pytest.raises(DataError, match="too few to hold any out"):
        look(str(tmp_path))


def test_one_class_is_no_task(tmp_path):
    (tmp_path / "cat").mkdir()
    Image.new("RGB", (8, 8)).save(tmp_path / "cat" / "1.png")
    with pytest.raises(DataError, match="1 class"):
        look(str(tmp_path))


def test_the_number_of_steps_follows_the_number_of_images(photos):
    facts = look(str(photos))
    many = facts.__class__(**{**vars(facts), "counts": np.array([30_000, 30_000])})
    huge = facts.__class__(**{**vars(facts), "counts": np.array([400_000, 400_000])})
    images = [p.recipe.train.steps * p.recipe.train.batch_size for p in map(proposal, (facts, many, huge))]
    assert images == [500 * 512, 10_000 * 512, 20_000 * 512]


def test_without_a_gpu_the_run_is_bounded_in_time_and_the_rate_follows_the_batch(photos):
    facts = look(SHAPES)
    slow, fast = proposal(facts, gpu=False).recipe, proposal(facts, gpu=True).recipe
    assert slow.train.max_minutes and not fast.train.max_minutes
    assert slow.optim.lr / slow.train.batch_size == pytest.approx(fast.optim.lr / fast.train.batch_size)
    assert proposal(facts, gpu=False, steps=7).recipe.train.steps == 7
    assert proposal(facts, gpu=False, steps=7).recipe.train.max_minutes is None


def test_without_a_gpu_only_some_test_images_are_measured_on_the_way(photos):
    facts = look(f"{SHAPES}&test=1200")
    assert facts.test_images == 1200
    assert proposal(facts, gpu=True).recipe.data.eval_split == "test"
    assert proposal(facts, gpu=False).recipe.data.eval_split == "test[:1000]"
    assert proposal(look(str(photos)), gpu=False).recipe.data.eval_split == "train[90%:]"


@pytest.mark.parametrize(("instructions", "said"), [(True, "bf16"), (False, "auto")])
def test_bfloat16_is_for_processors_that_multiply_it(monkeypatch, instructions, said):
    monkeypatch.setattr("vitrail.train.proposal.cpu_multiplies_bf16", lambda: instructions)
    facts = look(SHAPES)
    assert proposal(facts, gpu=False).recipe.train.precision == said
    assert proposal(facts, gpu=True).recipe.train.precision == "auto"
    narrow = propose("w", ViTConfig(width=64, heads=2), CARD, facts, Wishes(), gpu=False)
    assert narrow.recipe.train.precision == "auto"


def test_large_pictures_are_fine_tuned_larger_on_a_gpu(photos):
    facts = look(str(photos))
    assert proposal(facts).recipe.model.image_size == (384, 384)
    assert proposal(facts, gpu=False).recipe.model.image_size == (224, 224)
    assert proposal(look(SHAPES)).recipe.model.image_size == (224, 224)
    assert proposal(facts, image_size=(96, 160)).recipe.model.image_size == (96, 160)


def test_evaluation_prepares_images_as_the_weights_want_them(photos):
    data = proposal(look(str(photos)), gpu=False).recipe.data
    assert (data.eval_mode, data.eval_interpolation, data.mean) == ("shorter_crop", "bicubic", (0.5, 0.5, 0.5))


def test_several_labels_an_image_are_learned_with_the_sigmoid(tmp_path):
    rows = []
    for i, labels in enumerate((["a", "b"], ["a"], ["b"], ["a"]) * 3):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{i}.png")
        rows.append(json.dumps({"path": f"{i}.png", "labels": labels}))
    (tmp_path / "all.jsonl").write_text("\n".join(rows))
    facts = look(str(tmp_path / "all.jsonl"))
    assert facts.multilabel and proposal(facts).recipe.objective.loss == "sigmoid"


def test_steps_and_epochs_together_are_refused(photos):
    with pytest.raises(UsageError, match="both"):
        proposal(look(SHAPES), steps=3, epochs=1)
