"""D19: more than 1 % bad, or 100 bad in a row, stops the stream at once with exit code 3 and the first twenty names."""

import numpy as np
import pytest
from photos import png

from vitrail.data.crop import TrainView
from vitrail.data.loader import EvalStream, TrainStream
from vitrail.data.quarantine import Bad, Quarantine
from vitrail.data.source import open_source
from vitrail.data.transform import Preprocess
from vitrail.errors import DataError

GOOD = png(0)


def source(count, bad):
    files = [GOOD] * count
    for i in bad:
        files[i] = GOOD[:40]
    return open_source((files, np.zeros(count, int)))


def spread(count, every):
    return range(7, count, every)


def walk(stream, steps):
    for _ in range(steps):
        next(stream)


@pytest.mark.parametrize("workers", [0, 2])
def test_two_percent_stop_the_stream(workers):
    with TrainStream(source(1000, spread(1000, 50)), TrainView(8), batch_size=50, seed=0, workers=workers) as stream:
        with pytest.raises(DataError) as error:
            walk(stream, 21)
        assert error.value.exit_code == 3
        assert stream.step <= 20
        text = str(error.value)
        assert "more than 1.0%" in text and "vitrail data check" in text
        named = [line for line in text.splitlines() if "truncated" in line]
        assert 10 < len(named) <= 20 and len(set(named)) == len(named)


def test_it_stops_within_the_batch_that_shows_it():
    record = Quarantine(10_000)
    record.take(1500, [Bad(i, str(i), "corrupt", "", i) for i in range(15)])
    with pytest.raises(DataError, match="16 of 1,550"):
        record.take(50, [Bad(99, "99", "corrupt", "", 1540), Bad(99, "99", "corrupt", "", 1541)])


def test_only_twenty_are_named():
    record = Quarantine(1000)
    with pytest.raises(DataError) as error:
        record.take(1000, [Bad(i, f"photo {i}", "corrupt", "", i) for i in range(90)])
    assert str(error.value).count("photo") == 20 and "… and 70 more" in str(error.value)


def test_a_hundred_in_a_row_stop_the_stream_though_they_are_few():
    record = Quarantine(1_000_000)
    record.take(500_000, [])
    runs = [[Bad(i, str(i), "io", "", i) for i in range(30 * step, 30 * step + 30)] for step in range(4)]
    for run in runs[:3]:
        record.take(30, run)
    with pytest.raises(DataError, match="in a row"):
        record.take(30, runs[3])


def test_nothing_readable_stops_in_the_first_batch():
    with TrainStream(source(300, range(300)), TrainView(8), batch_size=4, seed=0, workers=0) as stream:
        with pytest.raises(DataError):
            next(stream)


def test_evaluation_stops_too():
    with EvalStream(source(500, spread(500, 40)), Preprocess(8), batch_size=50, workers=0) as stream:
        with pytest.raises(DataError, match="could not be read"):
            list(stream)


@pytest.mark.parametrize("workers", [0, 2])
def test_less_than_one_percent_is_named_and_borne(workers):
    with TrainStream(source(1000, spread(1000, 125)), TrainView(8), batch_size=50, seed=0, workers=workers) as stream:
        for _ in range(40):
            assert next(stream).valid.all()
        assert len({e["index"] for e in stream.quarantine}) == 8
        assert stream.quarantine_summary == "8 samples could not be read (8 truncated)"


def test_one_bad_file_in_a_small_set_is_no_reason_to_stop():
    with TrainStream(source(12, [5]), TrainView(8), batch_size=6, seed=0, workers=0) as stream:
        for _ in range(10):
            next(stream)
