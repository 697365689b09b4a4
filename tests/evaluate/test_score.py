"""`score` over streams of batches, against counting by hand; padding, unreadable files, ranks."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from vitrail.data.batch import Batch
from vitrail.errors import NumericsError
from vitrail.evaluate.answers import answer
from vitrail.evaluate.classify import score
from vitrail.evaluate.metrics import Counts


class Stream:
    """Images whose first pixel row holds their own logits; the last batch is padded, some files unreadable."""

    def __init__(self, logits, labels, batch_size, unreadable=()):
        self.logits, self.labels, self.batch_size, self.unreadable = logits, labels, batch_size, set(unreadable)

    def __iter__(self):
        n = len(self.logits)
        for start in range(0, n, self.batch_size):
            index = np.arange(start, start + self.batch_size)
            valid = (index < n) & ~np.isin(index, list(self.unreadable))
            index = np.minimum(index, n - 1)
            images = torch.from_numpy(self.logits[index]).float()[:, None, None, :]
            labels = torch.from_numpy(self.labels[index])
            yield Batch(images, labels, torch.from_numpy(index), torch.from_numpy(index), torch.from_numpy(valid))


class Reads(nn.Module):
    """A model that answers with the logits that the image holds, and notices the mode it runs in."""

    def forward(self, x):
        assert not self.training
        assert not torch.is_grad_enabled()
        return x[:, 0, 0]


def same(x):
    return x


def data(n=53, classes=8, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, classes)).astype(np.float32), rng.integers(classes, size=n)


def by_hand(logits, labels):
    order = np.argsort(-logits, axis=1)[:, :5]
    p = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return Counts.of(labels, order, p.max(1), -np.log(p[np.arange(len(labels)), labels]), logits.shape[1])


@pytest.mark.parametrize("batch_size", [1, 7, 53, 64])
def test_every_image_counts_once_whatever_the_batch_size(batch_size):
    logits, labels = data()
    counts = score(Reads(), Stream(logits, labels, batch_size), device="cpu", classes=8, normalise=same)
    expected = by_hand(logits, labels)
    assert (counts.images, counts.top1, counts.top5) == (53, expected.top1, expected.top5)
    assert (counts.confusion == expected.confusion).all()
    assert counts.nll == pytest.approx(expected.nll, rel=1e-4)
    assert counts.ece == pytest.approx(expected.ece, abs=1e-6)


def test_unreadable_and_unlabelled_images_leave_the_denominator_and_nothing_else():
    logits, labels = data()
    labels[5] = -1
    counts = score(Reads(), Stream(logits, labels, 8, unreadable=[0, 52]), device="cpu", classes=8, normalise=same)
    kept = np.setdiff1d(np.arange(53), [0, 5, 52])
    assert counts.images == 50
    assert counts.top1 == by_hand(logits[kept], labels[kept]).top1


def test_the_models_mode_is_given_back():
    model = Reads().train()
    score(model, Stream(*data(), 8), device="cpu", classes=8, normalise=same)
    assert model.training


def test_nan_logits_are_an_error_and_not_a_wrong_answer():
    logits, labels = data()
    logits[[17, 30]] = np.nan
    with pytest.raises(NumericsError, match=r"2 of 53 images are not numbers .*, first image 17"):
        score(Reads(), Stream(logits, labels, 8), device="cpu", classes=8, normalise=same)


def test_with_several_labels_an_image_a_guess_in_the_set_is_right():
    logits, _ = data(classes=6)
    sets = (np.random.default_rng(1).uniform(size=(53, 6)) < 0.3).astype(np.float32)
    counts = score(Reads(), Stream(logits, sets, 8), device="cpu", classes=6, normalise=same)
    assert counts.images == 53
    assert counts.top1 == int(sets[np.arange(53), logits.argmax(1)].sum())
    bce = np.logaddexp(0, logits) - sets * logits
    assert counts.nll == pytest.approx(bce.mean(1).sum(), rel=1e-4)
    assert counts.support.tolist() == sets.sum(0).astype(int).tolist()


def test_no_images_is_a_count_of_zero():
    counts = score(Reads(), Stream(np.zeros((0, 3), np.float32), np.zeros(0, int), 8), device="cpu", classes=3, normalise=same)
    assert counts.images == 0
    assert np.isnan(counts.accuracy)


LOGITS = torch.tensor([[9.0, 0.0, 5.0, 1.0], [0.0, 9.0, 1.0, 5.0], [2.0, 9.0, 1.0, 0.0]])


def ask(labels, owner, restrict):
    columns = answer(LOGITS, torch.tensor(labels), torch.arange(3), 2, owner=torch.tensor(owner), restrict=restrict)
    return columns[2].tolist(), columns[4]


def test_restricted_answers_never_leave_the_classes_of_the_data():
    """ImageNet-A and -R: outputs outside the 200 classes are silenced before the softmax."""
    guesses, loss = ask([0, 1, 0], [-1, -1, 0, 1], restrict=True)
    assert guesses == [[0, 1], [1, 0], [0, 1]]
    assert loss[0].item() == pytest.approx(np.log1p(np.exp(-4.0)), rel=1e-4)


def test_unrestricted_answers_outside_the_classes_are_wrong():
    """ObjectNet: all outputs compete; an answer that no class of the data owns is wrong."""
    guesses, _ = ask([0, 1, 0], [-1, -1, 0, 1], restrict=False)
    assert guesses == [[-1, 0], [-1, 1], [-1, -1]]


def test_a_class_that_owns_two_outputs_has_the_sum_of_their_probabilities():
    guesses, loss = ask([0, 1, 1], [0, 1, 0, 1], restrict=False)
    assert guesses == [[0, 0], [1, 1], [1, 0]]
    p = torch.softmax(LOGITS, 1)
    assert loss.tolist() == pytest.approx(
        (-torch.log(torch.stack([p[0, 0] + p[0, 2], p[1, 1] + p[1, 3], p[2, 1] + p[2, 3]]))).tolist(), abs=1e-6
    )


WORKER = """
import sys; sys.path[:0] = [{here!r}]
from test_score import *
from vitrail.runtime.distributed import group, rank
logits, labels = data()
mine = np.arange(53) % 3 == rank()
with group():
    counts = score(Reads(), Stream(logits[mine], labels[mine], 8), device="cpu", classes=8, normalise=same)
    expected = by_hand(logits, labels)
    assert (counts.images, counts.top1, counts.top5) == (53, expected.top1, expected.top5), counts
    assert (counts.confusion == expected.confusion).all()
print("agreed")
"""


def test_three_ranks_agree_on_the_sum_of_their_shares(tmp_path):
    from pathlib import Path

    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(here=str(Path(__file__).parent)))
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3", str(script)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("agreed") == 3
