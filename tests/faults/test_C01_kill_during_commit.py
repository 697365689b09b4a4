"""C01: a kill between any two system calls of a commit: a verified checkpoint is always found."""

import os
import random
import signal
import time

import pytest
import torch

from vitrail.runtime import faults
from vitrail.runtime.disk import write_tensors
from vitrail.train.store import CheckpointStore, verify

COMMIT = [point for point in faults.POINTS if point.startswith(("commit.", "prune."))]


def fill(size):
    def write(draft):
        for name in ("model", "optimizer", "ema"):
            draft.add(f"{name}.safetensors", lambda path: write_tensors(path, {"w": torch.full((size,), 1.5)}))
        draft.add_json("state.json", {"size": size})

    return write


def committing_child(folder, steps, fault=None, size=1000):
    """A process that commits `steps` one after another, to be killed by a fault or from outside."""
    pid = os.fork()
    if pid == 0:
        try:
            faults.arm(fault)
            store = CheckpointStore(folder, keep=2)
            store.clean()
            for step in steps:
                store.commit(step, fill(size))
        finally:
            os._exit(0)
    return pid


def check(folder, least):
    """What a next process finds after whatever happened: verified, not older than what was committed, clean."""
    store = CheckpointStore(folder, keep=2)
    removed = store.clean()
    found = store.latest(strict=True)  # strict: not one damaged directory under a final name
    assert found is not None and found.step >= least
    verify(found.path)
    assert not list(folder.glob(".tmp*"))
    return found.step, removed


@pytest.mark.parametrize("point", COMMIT)
@pytest.mark.parametrize("count", [1, 2])
def test_killed_at_every_point_of_the_second_commit(tmp_path, point, count):
    CheckpointStore(tmp_path).commit(1, fill(1000))
    pid = committing_child(tmp_path, [2, 3], f"{point}:{count}=kill")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
    step, _ = check(tmp_path, 1)
    assert step in (1, 2, 3)
    if point in ("commit.after_latest", "prune.before", "prune.after") and count == 2:
        assert step == 3


def random_kills(folder, kills, chance):
    CheckpointStore(folder).commit(1, fill(1000))
    least, dirty = 1, 0
    for _ in range(kills):
        pid = committing_child(folder, range(least + 1, least + 2000), size=30_000)
        time.sleep(chance.uniform(0.002, 0.03))
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
        least, removed = check(folder, least)
        dirty += bool(removed)
    return dirty


def test_killed_at_random_moments(tmp_path):
    random_kills(tmp_path, 25, random.Random(1))


@pytest.mark.scorecard
def test_killed_two_hundred_times_at_random_moments(tmp_path):
    assert random_kills(tmp_path, 200, random.Random(2)) > 50  # most kills really hit a commit


def test_unhurt_commits_leave_two(tmp_path):
    pid = committing_child(tmp_path, [1, 2, 3, 4])
    assert os.waitpid(pid, 0)[1] == 0
    assert [step for step, _ in CheckpointStore(tmp_path).names()] == [4, 3]
