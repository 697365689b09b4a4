import numpy as np
import torch

from vitrail.kernels import draws


def test_torch_numpy_and_python_draw_the_same_bits():
    words = draws.key(7, "flip", 3)
    index = np.array([0, 1, 5, 2**31, 2**32 - 1, 2**32, 2**40 + 17])
    from_torch = draws.bits(draws.sample_keys(words, torch.from_numpy(index)), 6, start=2).numpy().view(np.uint32)
    from_numpy = draws.bits_numpy(words, index, 6, start=2)
    streams = [draws.Stream(words, int(i)) for i in index]
    from_python = np.array([[s.bits() for _ in range(8)][2:] for s in streams], dtype=np.uint32)
    assert (from_torch == from_numpy).all()
    assert (from_python == from_numpy).all()


def test_uniform_draws_fill_the_unit_interval_evenly():
    words = draws.key(0, "test", 0)
    u = draws.uniform(draws.sample_keys(words, torch.arange(20_000)), 50).double()
    assert u.min() >= 0 and u.max() < 1
    assert abs(u.mean() - 0.5) < 1e-3
    assert abs(u.var() - 1 / 12) < 1e-3
    counts = torch.histc(u.float(), 100, 0, 1).double()
    chi2 = ((counts - counts.mean()) ** 2 / counts.mean()).sum()
    assert chi2 < 160  # 99 degrees of freedom: 1e-4 quantile


def test_neighbouring_samples_lanes_and_steps_are_uncorrelated():
    u = {}
    for step in (0, 1):
        u[step] = draws.uniform(draws.sample_keys(draws.key(0, "t", step), torch.arange(50_000)), 2).double() - 0.5
    pairs = [(u[0][:, 0], u[0][:, 1]), (u[0][1:, 0], u[0][:-1, 0]), (u[0][:, 0], u[1][:, 0])]
    for a, b in pairs:
        assert abs((a * b).mean() * 12) < 0.02


def test_a_draw_does_not_depend_on_the_batch_it_is_in():
    words = draws.key(1, "crop", 9)
    whole = draws.uniform(draws.sample_keys(words, torch.arange(64)), 4)
    part = draws.uniform(draws.sample_keys(words, torch.arange(40, 50)), 4)
    assert torch.equal(whole[40:50], part)


def test_stream_integers_cover_their_range_evenly():
    counts = np.zeros(7)
    for i in range(14_000):
        counts[draws.Stream(draws.key(0, "int"), i).integer(7)] += 1
    assert (abs(counts / 2000 - 1) < 0.1).all()
