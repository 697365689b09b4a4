"""Cost is counted for what went through the model, and for nothing that was kept."""

import pytest
import torch

from vitrail.evaluate.spent import Meter, Spent
from vitrail.model.cost import cost_of


def test_arithmetic_is_two_operations_a_product_and_one_pass(shapes_model):
    spent = Meter(shapes_model.config, torch.device("cpu")).read(1000)
    assert spent.flops == pytest.approx(2 * 1000 * cost_of(shapes_model.config).macs)
    assert spent.mfu is None and spent.joules is None and "cpu" in str(spent)
    assert spent.to_dict()["exaflops"] == pytest.approx(spent.flops / 1e18)


def test_shares_of_a_peak_and_energy_are_of_the_whole_time():
    one = Spent(100, 2.0, 2, "gpu", 8e12, peak=10e12, joules=3600.0)
    assert one.mfu == pytest.approx(0.2) and one.device_hours == pytest.approx(4 / 3600) and one.rate == 50
    both = one + one
    assert (both.passes, both.seconds, both.flops, both.joules) == (200, 4.0, 16e12, 7200.0)
    assert both.mfu == pytest.approx(0.2) and "2 Wh" in str(both) and "MFU 20 %" in str(both)


def test_an_image_seen_ten_times_is_one_image_a_second_and_ten_passes(shapes_model):
    meter = Meter(shapes_model.config, torch.device("cpu"))
    ten = meter.read(100, views=10)
    assert ten.passes == 1000 and ten.rate == pytest.approx(100 / ten.seconds)


def test_nothing_asked_has_no_rate():
    none = Spent(0, 1.0, 1, "cpu", 0.0)
    assert none.rate is None and "kept from before" in str(none)
