"""`probe`: the optimum of its own objective, a regulariser chosen without the test images, the same every time."""

import numpy as np
import pytest
import torch

from vitrail.errors import UsageError
from vitrail.evaluate.features import Features
from vitrail.evaluate.probe import Logistic, linear_probe


def data(n, seed, noise=1.0, width=20):
    rng = np.random.default_rng(seed)
    y = np.arange(n) % 3
    means = np.random.default_rng(99).normal(size=(3, width))
    return Features((means[y] + rng.normal(size=(n, width)) * noise).astype(np.float32), y, np.arange(n), ("a", "b", "c"))


@pytest.mark.parametrize("l2", [10.0, 0.1])
def test_logistic_regression_ends_where_its_gradient_is_zero(l2):
    torch.manual_seed(0)
    x, y = torch.randn(60, 5, dtype=torch.float64) @ torch.randn(5, 5, dtype=torch.float64), torch.arange(60) % 3
    weights = Logistic.of(x, y, 3).fit(l2, steps=500).requires_grad_(True)
    logits = x @ weights[:, :-1].T + weights[:, -1]
    loss = torch.nn.functional.cross_entropy(logits, y) + l2 / 120 * weights[:, :-1].square().sum()
    (slope,) = torch.autograd.grad(loss, weights)
    assert slope.abs().max() < 1e-5


@pytest.mark.parametrize("method", ["lbfgs", "ridge"])
def test_the_regulariser_is_chosen_on_held_out_images_and_refitted_on_all(method):
    train, test = data(120, 0, noise=2.0), data(300, 1, noise=2.0)
    result = linear_probe(train, test, method=method, device="cpu")
    assert result.dev_images == 12 and result.train_images == 120 and result.test_images == 300
    assert result.dev[result.l2] == max(result.dev.values())
    assert result.top1.value > 0.6
    assert linear_probe(train, test, method=method, device="cpu").to_dict() == result.to_dict()


def test_axes_a_thousand_times_smaller_are_found_too():
    """The class is told by the last feature alone, which the standardised ones before it almost drown."""
    rng = np.random.default_rng(0)
    y = np.arange(400) % 2
    shared = rng.normal(size=(400, 1)) * np.ones((1, 30))
    x = np.concatenate([shared, shared[:, :1] + 0.02 * (2 * y[:, None] - 1 + 0.3 * rng.normal(size=(400, 1)))], 1)
    order = np.random.default_rng(1).permutation(400)
    both = Features(x[order].astype(np.float32), y[order], np.arange(400), ("a", "b"))
    result = linear_probe(both.rows(np.arange(200)), both.rows(np.arange(200, 400)), l2=(1e-3,), device="cpu")
    assert result.top1.value > 0.97


def test_labels_of_the_test_images_change_nothing_but_the_score():
    train, test = data(90, 0), data(60, 1)
    other = Features(test.features, (test.labels + 1) % 3, test.index, test.classes)
    a, b = linear_probe(train, test, device="cpu"), linear_probe(train, other, device="cpu")
    assert (a.l2, a.dev) == (b.l2, b.dev) and a.top1.value > 0.9 > b.top1.value


def test_a_given_dev_split_chooses_and_is_trained_on_in_the_end():
    result = linear_probe(data(80, 0), data(50, 1), dev=data(20, 2), device="cpu", l2=(10.0, 0.1))
    assert result.dev_images == 20 and result.train_images == 100


def test_one_regulariser_needs_no_choice_and_unknown_methods_name_their_nearest():
    assert linear_probe(data(30, 0), data(30, 1), l2=(1.0,), device="cpu").dev == {}
    with pytest.raises(UsageError, match="lbfgs"):
        linear_probe(data(30, 0), data(30, 1), method="lbgfs")
