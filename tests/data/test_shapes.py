"""builtin:shapes: drawn on demand, the same for ever, learnable and balanced."""

import numpy as np
import pytest

from vitrail.data.source import open_source
from vitrail.errors import UsageError


def test_the_address_says_how_many_how_large_and_of_what():
    source = open_source("builtin:shapes?n=40&test=12&size=24x48&classes=10&seed=3", "train")
    assert len(source) == 40 and len(source.classes) == 10
    assert source.read(7).data.shape == (24, 48, 3) and source.read(7).label == 7
    assert len(open_source("builtin:shapes?n=40&test=12", "test")) == 12


def test_an_image_depends_on_seed_split_and_number_only():
    a, b = open_source("builtin:shapes?n=50", "train"), open_source("builtin:shapes?n=9000", "train")
    assert np.array_equal(a.read(17).data, b.read(17).data)
    other = open_source("builtin:shapes?n=50&seed=1", "train")
    assert not np.array_equal(a.read(17).data, other.read(17).data)
    assert not np.array_equal(a.read(17).data, open_source("builtin:shapes?n=50", "test").read(7).data)
    assert a.fingerprint != other.fingerprint != b.fingerprint


def test_classes_differ_more_than_chance():
    """The nearest mean of blurred, contrast-free silhouettes beats chance clearly: there is something to learn."""
    source = open_source("builtin:shapes?n=800&size=24&classes=8", "train")

    def silhouette(i):
        image = source.read(i).data.astype(float)
        ground = np.median(image.reshape(-1, 3), axis=0)
        mask = np.abs(image - ground).sum(-1) > 90
        rows, columns = np.nonzero(mask)
        box = mask[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        y = (np.arange(12) * box.shape[0]) // 12
        x = (np.arange(12) * box.shape[1]) // 12
        return np.append(box[np.ix_(y, x)].ravel(), box.shape[0] / box.shape[1])

    found = np.array([silhouette(i) for i in range(800)])
    means = np.array([found[:600][source.labels[:600] == k].mean(0) for k in range(8)])
    guess = np.array([np.abs(means - one).sum(1).argmin() for one in found[600:]])
    assert (guess == source.labels[600:]).mean() > 0.6


def test_several_labels_an_image():
    source = open_source("builtin:shapes?n=60&classes=5&multilabel=1", "train")
    assert source.multilabel and {len(label) for label in source.labels} == {1, 2, 3}
    assert source.read(4).label == source.labels[4]


@pytest.mark.parametrize("query", ["n=0", "size=axb", "classes=65", "colour=red", "n=-3"])
def test_options_that_make_no_sense_are_refused(query):
    with pytest.raises(UsageError):
        open_source(f"builtin:shapes?{query}", "train")
