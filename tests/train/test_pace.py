"""How many steps fit into the time asked for, measured without spending that time on measuring."""

from types import SimpleNamespace

import pytest
import torch

from vitrail.train import pace


class Machine:
    """A run whose step and evaluation take as long as we say, by a clock of its own."""

    def __init__(self, monkeypatch, step_s, measure_s, steps=10_000, eval_every=0):
        self.now, self.step_s, self.measure_s = 100.0, step_s, measure_s
        self.stepped = self.measured = 0
        monkeypatch.setattr(pace.time, "monotonic", lambda: self.now)
        self.step = SimpleNamespace(gradients=self.gradients)
        self.optimizer = SimpleNamespace(zero_grad=lambda: None)
        self.state, self.device = SimpleNamespace(step=0), torch.device("cpu")
        self.plan = SimpleNamespace(steps=steps, eval_every=eval_every)

    def gradients(self, batch):
        self.stepped += 1
        self.now += self.step_s

    def measure(self, step):
        self.measured += 1
        self.now += self.measure_s

    def steps_in(self, minutes):
        feed = Endless()
        found = pace.steps_that_fit(self, feed, self.measure, minutes, self.now)
        assert feed.rewound_to == 0
        return found


class Endless:
    def __iter__(self):
        return iter(lambda: "batch", None)

    def rewind(self, step):
        self.rewound_to = step


def test_what_is_left_of_the_time_is_filled_with_steps_and_the_last_evaluation(monkeypatch):
    machine = Machine(monkeypatch, step_s=0.1, measure_s=1.0)
    steps = machine.steps_in(minutes=2)
    assert machine.now + steps * 0.1 + 1.0 <= 100.0 + 120.0
    assert steps * 0.1 > 0.9 * 120 - 10


def test_evaluations_on_the_way_are_paid_for(monkeypatch):
    machine = Machine(monkeypatch, step_s=0.1, measure_s=2.0, eval_every=20)
    steps = machine.steps_in(minutes=2)
    assert machine.now + steps * 0.1 + steps // 20 * 2.0 + 2.0 <= 100.0 + 120.0


def test_a_slow_machine_spends_little_of_the_time_on_measuring(monkeypatch):
    machine = Machine(monkeypatch, step_s=2.0, measure_s=8.0)
    machine.steps_in(minutes=1)
    assert (machine.stepped, machine.measured) == (4, 1)


def test_never_more_steps_than_planned_and_never_none(monkeypatch):
    assert Machine(monkeypatch, step_s=0.001, measure_s=0.0, steps=7).steps_in(minutes=1) == 7
    assert Machine(monkeypatch, step_s=60.0, measure_s=60.0).steps_in(minutes=1) == 1


@pytest.mark.parametrize("count", [1, 5])
def test_a_step_s_time_is_the_mean_of_the_timed_ones(monkeypatch, count):
    machine = Machine(monkeypatch, step_s=0.25, measure_s=0.0)
    assert pace.timed_steps(machine, iter(Endless()), count, most_s=60.0) == pytest.approx(0.25)
    assert machine.stepped == max(count, pace.FEWEST)
