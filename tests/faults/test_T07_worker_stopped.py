"""T07: a data worker that stands still is shown, replaced, and in the end a clear error; never a silent freeze."""

import os
import signal
import time

import numpy as np
import pytest
from deadly import Hanging
from photos import png

from vitrail.data.crop import TrainView
from vitrail.data.loader import TrainStream
from vitrail.data.source import open_source
from vitrail.errors import ResourceError


@pytest.fixture(scope="module")
def source():
    return open_source(([png(i, 24, 24) for i in range(80)], np.arange(80) % 3))


def stream_of(source, workers, stall_timeout_s, **options):
    view = TrainView(16)
    return TrainStream(source, view, batch_size=20, seed=1, workers=workers, stall_timeout_s=stall_timeout_s, **options)


def walk(stream):
    for _ in range(10):
        next(stream)


def test_a_stopped_worker_is_replaced_and_nothing_changes(source, caplog):
    with stream_of(source, 0, 600) as stream:
        clean = [next(stream).hash() for _ in range(20)]
    with stream_of(source, 2, 4.0) as stream:
        found = [next(stream).hash()]
        os.kill(stream.worker_pids[0], signal.SIGSTOP)
        begin = time.monotonic()
        found += [next(stream).hash() for _ in range(19)]
        assert time.monotonic() - begin < 15
    assert found == clean
    assert "has not finished a sample" in caplog.text and "takes over" in caplog.text


def test_a_sample_that_never_ends_is_named_within_the_time_limit(caplog):
    limit = 6.0
    with stream_of(Hanging(50, at=17), 1, limit) as stream:
        begin = time.monotonic()
        with pytest.raises(ResourceError, match="'sample-17'") as error:
            walk(stream)
        assert error.value.exit_code == 6
        assert time.monotonic() - begin < 2 * limit + 10
    assert "harm" in caplog.text and "deadly.py" in caplog.text  # the worker's own stack


def test_a_thread_that_stands_still_is_an_error_with_its_stack(caplog):
    with stream_of(Hanging(50, at=17), 1, 2.0, threads=True) as stream:
        with pytest.raises(ResourceError, match="stood still"):
            walk(stream)
    assert "deadly.py" in caplog.text


def test_a_slow_consumer_is_no_stalled_worker(source, caplog):
    with stream_of(source, 2, 1.2) as stream:
        for _ in range(3):
            next(stream)
            time.sleep(0.8)
    assert "has not finished" not in caplog.text


def test_slow_samples_are_no_stall(caplog):
    class Slow(Hanging):
        def harm(self):
            time.sleep(0.2)

    with stream_of(Slow(40, at=7), 1, 4.0, threads=True) as stream:
        for _ in range(6):
            next(stream)
    assert "has not finished" not in caplog.text
