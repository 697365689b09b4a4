"""Losses against the originals', and what must hold of every loss."""

from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.config import ObjectiveSpec
from vitrail.model.variants import create_model
from vitrail.runtime.device import Precision
from vitrail.train.objective import LOSSES, Supervised, balanced_weights, one_hot, smooth

ARRAYS = np.load(Path(__file__).parents[1] / "golden" / "l01" / "arrays.npz")


@pytest.mark.parametrize("kind", ["sigmoid", "softmax"])
@pytest.mark.parametrize("labels", ["onehot", "multihot", "smooth", "mixed"])
def test_values_and_gradients_are_the_originals(kind, labels):
    logits = torch.from_numpy(ARRAYS["logits"].copy()).requires_grad_()
    losses = LOSSES[kind](logits, torch.from_numpy(ARRAYS[f"labels_{labels}"]))
    losses.mean().backward()
    for ours, name in ((losses.detach(), f"{kind}_xent_{labels}"), (logits.grad, f"{kind}_xent_{labels}_grad")):
        wanted = ARRAYS[name]
        assert np.abs(ours.numpy() - wanted).max() <= 2e-6 * np.abs(wanted).max()


def test_bce_is_sigmoid_over_the_number_of_classes():
    logits, targets = torch.randn(5, 7), torch.randint(0, 2, (5, 7)).float()
    wanted = torch.nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none").mean(-1)
    torch.testing.assert_close(LOSSES["bce"](logits, targets), wanted)


def test_smoothing_is_torchs():
    logits, labels = torch.randn(6, 9), torch.randint(0, 9, (6,))
    wanted = torch.nn.functional.cross_entropy(logits, labels, label_smoothing=0.1, reduction="none")
    torch.testing.assert_close(LOSSES["softmax"](logits, smooth(one_hot(labels, 9), 0.1)), wanted)


def test_balanced_weights_give_every_class_the_same_say():
    labels = np.array([0] * 6 + [1] * 3 + [3])
    weights = balanced_weights(labels, 4)
    sums = torch.zeros(4).index_add(0, torch.from_numpy(labels), weights[torch.from_numpy(labels)])
    assert sums[2] == 0 and torch.allclose(sums[[0, 1, 3]], torch.full((3,), 10 / 4))


def objective(precision="fp32", classes=5, **spec):
    model = create_model("mu/16", classes=classes, image_size=32, head_bias_init=spec.get("head_bias", 0.0))
    torch.nn.init.normal_(model.head.weight, std=0.05, generator=torch.Generator().manual_seed(0))
    return Supervised(model, ObjectiveSpec(**spec), Precision(precision), (0.5,) * 3, (0.5,) * 3, classes=classes)


def test_an_objective_sees_the_pixels_that_evaluation_sees():
    from vitrail.data.transform import Preprocess

    images = torch.randint(0, 256, (3, 3, 32, 32), dtype=torch.uint8)
    for mean, std in (((0.5,) * 3, (0.5,) * 3), ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))):
        model = create_model("mu/16", classes=5, image_size=32)
        ours = Supervised(model, ObjectiveSpec(), Precision("fp32"), mean, std, classes=5).normalise(images)
        assert torch.equal(ours, Preprocess((32, 32), mean=mean, std=std).normalise(images))


def test_logits_are_float32_in_every_precision_and_those_of_the_model():
    images = torch.rand(2, 3, 32, 32) * 255
    for precision in ("fp32", "bf16"):
        around = objective(precision).eval()
        logits = around.predict(around.normalise(images))
        assert logits.dtype == torch.float32
        with torch.no_grad():
            plain = around.model(around.normalise(images))
        torch.testing.assert_close(logits, plain, rtol=0, atol=1e-6 if precision == "fp32" else 0.03)


def test_a_batch_is_the_mean_of_its_parts():
    around = objective("fp64").double()
    images, labels = torch.rand(6, 3, 32, 32) * 255, torch.arange(6) % 5
    key = None
    whole = around(images, key, *around.prepare(images, labels, labels))
    parts = [around(images[i : i + 2], key, *around.prepare(images[i : i + 2], labels[i : i + 2], labels)) for i in (0, 2, 4)]
    torch.testing.assert_close(whole, torch.cat(parts), rtol=1e-12, atol=1e-12)


def test_binarised_bce_counts_both_classes_of_a_mixture():
    around = objective(loss="bce", binarise=True)
    mixed = torch.tensor([[0.3, 0.7, 0.0, 0.0, 0.0]])
    logits = torch.tensor([[2.0, -1.0, 0.5, 0.0, 0.0]])
    torch.testing.assert_close(around.label_loss(logits, mixed), LOSSES["bce"](logits, (mixed > 0).float()))
