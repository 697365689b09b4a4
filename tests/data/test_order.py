import pickle
import time
import tracemalloc

import numpy as np
import pytest

from vitrail.data.order import BalancedOrder, BatchLayout, EpochOrder, Permutation
from vitrail.errors import UsageError
from vitrail.kernels import draws

WORDS = draws.key(0, "order")


@pytest.mark.parametrize("length", [1, 2, 3, 7, 64, 1000, 4097])
def test_a_permutation_meets_everything_once(length):
    found = Permutation(length, WORDS)(np.arange(length))
    assert sorted(found.tolist()) == list(range(length))


def test_a_permutation_is_evaluated_anywhere_alike():
    shuffle = Permutation(1000, WORDS)
    whole = shuffle(np.arange(1000))
    assert [int(shuffle(np.array([i]))[0]) for i in (0, 17, 999)] == whole[[0, 17, 999]].tolist()


def test_permutations_look_like_chance():
    """Every place is equally likely for every sample, and neighbours do not stay together."""
    found = np.stack([Permutation(50, draws.key(0, "order", e))(np.arange(50)) for e in range(2000)])
    counts = np.array([np.bincount(found[:, place], minlength=50) for place in range(50)])
    chi2 = ((counts - 40) ** 2 / 40).sum()
    assert 2250 < chi2 < 2650  # 49 x 49 degrees of freedom, about 2401 +- 69
    assert abs((np.diff(found, axis=1) == 1).mean() - 1 / 50) < 0.002
    assert abs((found[1:] == found[:-1]).mean() - 1 / 50) < 0.002  # epochs are independent


@pytest.mark.parametrize("shards", [None, [10, 1, 30, 7, 2, 50], [100], [5] * 20])
def test_every_epoch_shows_every_sample_once(shards):
    order = EpochOrder(100, 3, shards=shards, window=3)
    epochs = order(np.arange(300)).reshape(3, 100)
    for epoch in epochs:
        assert sorted(epoch.tolist()) == list(range(100))
    assert (epochs[0] != epochs[1]).any() and (epochs[1] != epochs[2]).any()


def test_a_window_of_shards_is_all_that_is_open():
    lengths = [50] * 40
    order = EpochOrder(2000, 0, shards=lengths, window=4)
    shard = order(np.arange(2000)) // 50
    for begin in range(0, 2000, 200):
        assert len(np.unique(shard[begin : begin + 200])) == 4
    assert len(np.unique(shard[:50])) == 4  # and they are mixed, not one after the other


def test_repeats_show_an_image_several_times_in_a_row():
    order = EpochOrder(12, 0, repeats=3)
    assert (order(np.arange(0, 12, 3)) == order(np.arange(12)).reshape(4, 3).T).all()


def test_a_replacement_is_a_function_of_the_position_and_of_the_attempt():
    order = EpochOrder(1000, 0)
    found = [order.replacement(p, a) for p in range(20) for a in range(3)]
    assert found == [order.replacement(p, a) for p in range(20) for a in range(3)]
    assert len(set(found)) > 50


def test_ranks_take_contiguous_runs_of_the_batch():
    parts = [BatchLayout(12, r, 3).positions(5) for r in range(3)]
    assert np.concatenate(parts).tolist() == list(range(60, 72))
    with pytest.raises(UsageError, match="9 or 12"):
        BatchLayout(10, 0, 3)
    with pytest.raises(UsageError, match="no layout"):
        BatchLayout(12, 3, 3)


def test_wrong_shards_and_empty_sources_are_refused():
    with pytest.raises(UsageError, match="shards hold 9"):
        EpochOrder(10, 0, shards=[4, 5])
    with pytest.raises(UsageError, match="0 samples"):
        Permutation(0, WORDS)


def test_balanced_rounds_show_every_class_once():
    labels = np.array([0] * 50 + [1] * 5 + [2] * 2 + [-1] * 3)
    order = BalancedOrder(labels, 0)
    shown = order(np.arange(600))
    assert (np.sort(labels[shown].reshape(200, 3), axis=1) == [0, 1, 2]).all()
    assert (np.bincount(shown, minlength=60)[:50] == 4).all() and order.length == 57
    assert (pickle.loads(pickle.dumps(order))(np.arange(600)) == shown).all()
    with pytest.raises(UsageError, match="needs labels"):
        BalancedOrder(np.full(4, -1), 0)


def test_three_hundred_million_samples_start_at_once_in_little_memory():
    """As JFT: 30,000 shards of 10,000; the first batch of any epoch, by any rank, without walking there."""
    shards = np.full(30_000, 10_000)
    tracemalloc.start()
    begin = time.perf_counter()
    order = EpochOrder(300_000_000, 0, shards=shards)
    for step in (0, 73_242, 512_695):  # the start, the end of the first epoch, the seventh
        for rank in (0, 511):
            found = order(BatchLayout(4096, rank, 512).positions(step))
            assert len(np.unique(found)) == 8
    took, (_, peak) = time.perf_counter() - begin, tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert took < 5 and peak < 16 << 20  # measured: 0.13 s, 2.4 MiB


def test_three_hundred_million_samples_without_shards_need_no_memory_at_all():
    tracemalloc.start()
    order = EpochOrder(300_000_000, 0)
    found = order(np.arange(299_999_000, 300_001_000))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert len(np.unique(found[:1000])) == 1000 and found.max() < 300_000_000 and peak < 1 << 20


def test_no_rank_starves_where_shards_are_uneven():
    """Shards of 1 to 5,000 samples: every rank has a full share at every step of the epoch."""
    lengths = np.random.default_rng(0).integers(1, 5000, 300)
    order = EpochOrder(int(lengths.sum()), 0, shards=lengths)
    steps = int(lengths.sum()) // 1024
    for step in range(0, steps, 40):
        shares = [order(BatchLayout(1024, r, 64).positions(step)) for r in range(64)]
        assert {len(s) for s in shares} == {16}
        assert len(np.unique(np.concatenate(shares))) == 1024
