"""The closed-form few-shot classifier against big_vision's own output (case f01) and other cases by other algebra."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.evaluate.leastsquares import LeastSquares, choose_shots

GOLDEN = Path(__file__).parent.parent / "golden" / "fewshot"
CASE = json.loads((GOLDEN / "f01.json").read_text())
ARRAYS = np.load(GOLDEN / "f01.npz")
RUNS = [(row["shots"], row["seed"], int(row["l2_reg"])) for row in CASE["results"]]


def scores(shots, seed, l2):
    chosen = choose_shots(ARRAYS["train_labels"], CASE["config"]["num_classes"], shots, seed)
    x, y = torch.from_numpy(ARRAYS["train_features"][chosen]), torch.from_numpy(ARRAYS["train_labels"][chosen])
    problem = LeastSquares.fit(x, y, CASE["config"]["num_classes"])
    return problem.scores(torch.from_numpy(ARRAYS["test_features"]), l2).numpy()


@pytest.mark.parametrize(("shots", "seed", "l2"), RUNS)
def test_every_prediction_is_big_visions(shots, seed, l2):
    assert (scores(shots, seed, l2).argmax(1) == ARRAYS[f"pred_shots{shots}_seed{seed}_l2{l2}"]).all()


@pytest.mark.parametrize(("shots", "seed", "l2"), [run for run in RUNS if run[1] == 0])
def test_scores_agree_with_an_independent_float64_solve(shots, seed, l2):
    expected = ARRAYS[f"scores64_shots{shots}_seed{seed}_l2{l2}"]
    assert np.abs(scores(shots, seed, l2) - expected).max() / np.abs(expected).max() < 1e-6


@pytest.mark.parametrize("shots", [1, 5, 10])
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_same_examples_are_chosen(shots, seed):
    chosen = choose_shots(ARRAYS["train_labels"], 7, shots, seed)
    assert (chosen == ARRAYS[f"selected_shots{shots}_seed{seed}"]).all()


@pytest.mark.parametrize(("n", "d"), [(60, 10), (11, 10), (10, 10), (6, 40)])  # n >= d + 1, its edge, and n < d + 1
@pytest.mark.parametrize("l2", [2.0**-6, 1.0, 1024.0])
def test_one_factorisation_solves_the_normal_equations_for_every_regulariser(n, d, l2):
    rng = np.random.default_rng(n * d)
    x, y = rng.normal(size=(n, d)), rng.integers(4, size=n)
    white = np.c_[(x - x.mean(0)) / (x.std(0) + 1e-5), np.full(n, 100.0)]
    direct = np.linalg.solve(white.T @ white + l2 * np.eye(d + 1), white.T @ (2 * np.eye(4)[y] - 1))
    weights = LeastSquares.fit(torch.from_numpy(x), torch.from_numpy(y), 4).weights(l2).numpy()
    assert np.abs(weights - direct).max() <= 1e-7 * np.abs(direct).max()


def test_a_constant_feature_divides_by_epsilon_and_not_by_zero():
    x = torch.randn(20, 5, dtype=torch.float64)
    x[:, 2] = 3.0
    assert LeastSquares.fit(x, torch.arange(20) % 2, 2).scores(x, 1024.0).isfinite().all()


def test_a_class_with_few_examples_gives_all_it_has():
    labels = np.array([0] * 10 + [1] * 2)
    chosen = choose_shots(labels, 2, 5, seed=0)
    assert (np.bincount(labels[chosen]) == [5, 2]).all()
    assert len(set(chosen.tolist())) == 7


def test_fewer_shots_are_the_head_of_more_shots():
    labels = np.arange(200) % 4
    many, few = choose_shots(labels, 4, 25, 1), choose_shots(labels, 4, 5, 1)
    assert (few.reshape(4, 5) == many.reshape(4, 25)[:, :5]).all()
