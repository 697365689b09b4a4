"""D20: one bad file changes its own slot and no other, for any number of workers and ranks."""

import hashlib

import numpy as np
import pytest
from photos import png

from vitrail.data.crop import TrainView
from vitrail.data.loader import TrainStream
from vitrail.data.source import open_source

FILES = [png(i, 20, 24) for i in range(60)]
BAD, BATCH, STEPS = 23, 16, 12  # more than three epochs


def slots(files, workers=0, world=1):
    """The hash of every slot of the stream, in order of position."""
    source = open_source((files, np.arange(60) % 5))
    found = {}
    for rank in range(world):
        options = {"batch_size": BATCH, "seed": 4, "rank": rank, "world": world, "workers": workers}
        with TrainStream(source, TrainView(12), **options) as stream:
            for _ in range(STEPS):
                batch = next(stream)
                for k in range(len(batch)):
                    content = batch.images[k].numpy().tobytes() + bytes([int(batch.index[k]), int(batch.labels[k])])
                    found[int(batch.position[k])] = hashlib.sha256(content).hexdigest()
    return [found[p] for p in range(BATCH * STEPS)]


@pytest.fixture(scope="module")
def clean():
    return slots(FILES)


@pytest.fixture(scope="module")
def broken():
    return [*FILES[:BAD], FILES[BAD][:50], *FILES[BAD + 1 :]]


@pytest.fixture(scope="module")
def expected(broken):
    return slots(broken)


def test_every_other_slot_is_that_of_the_clean_run(clean, expected):
    source = open_source((FILES, np.zeros(60, int)))
    with TrainStream(source, TrainView(12), batch_size=BATCH, seed=4, workers=0) as stream:
        shown = stream.order(np.arange(BATCH * STEPS))
    differs = [p for p, (a, b) in enumerate(zip(clean, expected)) if a != b]
    assert differs == np.flatnonzero(shown == BAD).tolist() and len(differs) >= 3


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_workers_do_not_matter(expected, broken, workers):
    assert slots(broken, workers=workers) == expected


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_do_not_matter(expected, broken, world):
    assert slots(broken, world=world) == expected


def test_ranks_with_workers_do_not_matter(expected, broken):
    assert slots(broken, workers=2, world=2) == expected


def test_the_replacement_is_of_the_same_epoch_and_differs_from_time_to_time(broken):
    source = open_source((broken, np.zeros(60, int)))
    with TrainStream(source, TrainView(12), batch_size=20, seed=4, workers=0) as stream:
        batches = [next(stream) for _ in range(30)]  # ten epochs
        where = [e["position"] for e in stream.quarantine]
    index = np.concatenate([b.index for b in batches])
    assert len(where) == 10 and len(set(index[where].tolist())) > 5 and BAD not in index[where]
