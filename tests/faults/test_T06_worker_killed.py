"""T06: a data worker that is killed is replaced at the same sample; the stream does not change; the fourth time is the last."""

import os
import signal
import threading
import time

import numpy as np
import pytest
from deadly import Crashing, MemoryHungry
from photos import png

from vitrail.data.crop import TrainView
from vitrail.data.loader import TrainStream
from vitrail.data.source import open_source
from vitrail.errors import ResourceError


@pytest.fixture(scope="module")
def source():
    return open_source(([png(i, 24, 24) for i in range(80)], np.arange(80) % 3))


def stream_of(source, workers, **options):
    return TrainStream(source, TrainView(16), batch_size=20, seed=1, workers=workers, **options)


@pytest.fixture(scope="module")
def clean(source):
    with stream_of(source, 0) as stream:
        return [next(stream).hash() for _ in range(40)]


def walk(stream):
    for _ in range(10):
        next(stream)


@pytest.mark.parametrize("kind", [signal.SIGKILL, signal.SIGSEGV])
def test_a_killed_worker_is_replaced_and_nothing_changes(source, clean, kind):
    with stream_of(source, 2) as stream:
        found = []
        for step in range(40):
            if step in (3, 11, 12, 25):
                os.kill(stream.worker_pids[step % 2], kind)
            found.append(next(stream).hash())
    assert found == clean


def test_all_workers_killed_at_once_are_replaced(source, clean):
    with stream_of(source, 2) as stream:
        assert next(stream).hash() == clean[0]
        for pid in stream.worker_pids:
            os.kill(pid, signal.SIGKILL)
        begin = time.monotonic()
        assert [next(stream).hash() for _ in range(8)] == clean[1:9]
        assert time.monotonic() - begin < 30


def test_it_is_noticed_within_five_seconds(source, caplog):
    with stream_of(source, 1) as stream:
        next(stream)
        time.sleep(0.3)  # prefetched: the worker is idle
        os.kill(stream.worker_pids[0], signal.SIGKILL)
        begin = time.monotonic()
        while "a new one takes over" not in caplog.text and time.monotonic() - begin < 5:
            time.sleep(0.02)
        assert "killed by SIGKILL" in caplog.text


def test_a_sample_that_kills_every_worker_ends_the_run_and_is_named():
    with stream_of(Crashing(50, at=17), 2) as stream:
        with pytest.raises(ResourceError, match="'sample-17'") as error:
            walk(stream)
    assert error.value.exit_code == 6 and "4 times" in str(error.value)


def test_T13_a_worker_without_memory_says_so():
    with stream_of(MemoryHungry(50, at=17), 1) as stream:
        with pytest.raises(ResourceError, match="ran out of memory"):
            walk(stream)


def test_closing_leaves_no_process_behind(source):
    stream = stream_of(source, 2)
    next(stream)
    pids = stream.worker_pids
    threads = threading.active_count()
    stream.close()
    assert all(not os.path.exists(f"/proc/{pid}") or "Z" in open(f"/proc/{pid}/stat").read().split()[2] for pid in pids)
    assert threading.active_count() < threads


def test_an_undisturbed_stream_starts_each_worker_once(source, clean, caplog):
    with stream_of(source, 2) as stream:
        next(stream)
        pids = stream.worker_pids
        assert [next(stream).hash() for _ in range(20)] == clean[1:21]
        assert stream.worker_pids == pids and "takes over" not in caplog.text
