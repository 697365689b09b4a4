"""`knn` against counting by hand, over blocks and chunks."""

import numpy as np
import pytest

from vitrail.errors import UsageError
from vitrail.evaluate import knn as room
from vitrail.evaluate.features import Features
from vitrail.evaluate.knn import knn


def data(n, seed, classes=4, width=6):
    rng = np.random.default_rng(seed)
    y = rng.integers(classes, size=n)
    x = np.eye(classes)[y] @ np.eye(classes, width) + rng.normal(size=(n, width)) * 0.6
    return Features(x.astype(np.float32), y, np.arange(n), tuple("abcd"[:classes]))


def by_hand(train, test, k, temperature=0.07):
    a = train.features / np.linalg.norm(train.features, axis=1, keepdims=True)
    b = test.features / np.linalg.norm(test.features, axis=1, keepdims=True)
    alike = (b @ a.T).astype(np.float64)
    right = 0
    for row, truth in zip(alike, test.labels):
        nearest = np.argsort(-row)[:k]
        sums = np.bincount(train.labels[nearest], weights=np.exp(row[nearest] / temperature), minlength=4)
        right += int(sums.argmax() == truth)
    return right / len(test)


def test_votes_are_weighted_as_dino_weighs_them_whatever_the_blocks(monkeypatch):
    train, test = data(300, 0), data(90, 1)
    monkeypatch.setattr(room, "BLOCK", 32)
    monkeypatch.setattr(room, "CHUNK", 70)
    result = knn(train=train, test=test, k=(1, 5, 20), device="cpu")
    for k in (1, 5, 20):
        assert result.top1[k].value == pytest.approx(by_hand(train, test, k))
    assert result.to_dict()["top1"]["5"]["value"] == result.top1[5].value and "k = 20" in str(result)


def test_more_neighbours_than_images_means_all_of_them():
    train, test = data(12, 0), data(20, 1)
    assert list(knn(train=train, test=test, k=(5, 200), device="cpu").top1) == [5, 12]


def test_images_without_a_label_neither_vote_nor_count():
    train, test = data(50, 0), data(20, 1)
    train.labels[:10] = -1
    test.labels[0] = -1
    result = knn(train=train, test=test, k=(3,), device="cpu")
    assert (result.train_images, result.test_images) == (40, 19)


def test_nonsense_is_refused():
    with pytest.raises(UsageError):
        knn(train=data(5, 0), test=data(5, 1), k=())
    with pytest.raises(UsageError, match="model and data"):
        knn(k=(1,))
