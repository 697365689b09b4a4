"""T02: SIGKILL from outside at random times."""

import random
import signal
import time

import pytest

SEED = 20201


def kill_and_go_on(tiny, out, chance):
    """Kill the run again and again at random moments until one process ends by itself."""
    kills = 0
    while True:
        child = tiny.start(out)
        time.sleep(chance.uniform(0.02, 0.6))
        if child.alive() and kills < 4:
            child.send(signal.SIGKILL)
        done = child.wait()
        assert done.code in (0, -9), done.text
        if done.code == 0:
            return kills
        kills += 1


def test_random_kills_cost_nothing(tiny, tmp_path):
    chance = random.Random(SEED)
    assert sum(kill_and_go_on(tiny, tmp_path / str(n), chance) for n in range(2)) > 0
    assert all(tiny.digest(tmp_path / str(n)) == tiny.digest(tiny.golden()) for n in range(2))


@pytest.mark.scorecard
def test_fifty_random_kills_cost_nothing(tiny, tmp_path):
    chance, kills, runs = random.Random(SEED + 1), 0, 0
    while kills < 50:
        kills += kill_and_go_on(tiny, tmp_path / str(runs), chance)
        assert tiny.digest(tmp_path / str(runs)) == tiny.digest(tiny.golden())
        runs += 1
