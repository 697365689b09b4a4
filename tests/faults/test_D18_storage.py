"""D18: storage that fails is tried again a few times; what stays unreadable is quarantined as io, and the stream goes on."""

import errno
import os

import numpy as np
import pytest
from photos import folder, png

from vitrail.data import worker
from vitrail.data.crop import TrainView
from vitrail.data.loader import EvalStream, TrainStream
from vitrail.data.source import Record, open_source
from vitrail.data.transform import Preprocess


@pytest.fixture
def impatient(monkeypatch):
    monkeypatch.setattr(worker, "RETRIES_S", (0.001, 0.002, 0.004))


class Flaky:
    """A source whose storage fails `times` times for sample 3."""

    def __init__(self, times, code=errno.EIO):
        self.inner = open_source(([png(i) for i in range(20)], np.zeros(20, int)))
        self.left, self.code, self.tries = times, code, 0

    def __getattr__(self, name):
        return getattr(self.__dict__["inner"], name)

    def __len__(self):
        return 20

    def read(self, i):
        if i == 3:
            self.tries += 1
            if self.left > 0:
                self.left -= 1
                raise OSError(self.code, os.strerror(self.code))
        return Record(*self.inner.read(i))


@pytest.mark.parametrize("code", [errno.EIO, errno.EACCES, errno.ESTALE])
def test_a_passing_fault_costs_nothing(impatient, code):
    flaky = Flaky(3, code)
    with EvalStream(flaky, Preprocess(8), batch_size=20, workers=0) as stream:
        assert next(iter(stream)).valid.all()
        assert stream.quarantine == [] and flaky.tries == 4


def test_a_lasting_fault_is_one_sample_quarantined(impatient):
    flaky = Flaky(10**9)
    with EvalStream(flaky, Preprocess(8), batch_size=20, workers=0) as stream:
        batch = next(iter(stream))
        assert batch.valid.sum() == 19 and not batch.valid[3]
        (entry,) = stream.quarantine
        assert (entry["reason"], entry["id"]) == ("io", "3") and "Input/output error" in entry["detail"]
        assert flaky.tries == 4


@pytest.mark.parametrize("workers", [0, 2])
def test_a_file_deleted_in_mid_epoch_is_quarantined(tmp_path, impatient, workers):
    root = folder(tmp_path, count=60)
    source = open_source(str(root))
    with TrainStream(source, TrainView(8), batch_size=40, seed=0, workers=workers, prefetch=1) as stream:
        first = next(stream)
        shown = set(first.index.tolist())
        gone = next(i for i in stream.order(np.arange(80, 120)).tolist() if i not in shown)
        os.remove(root / source.id(gone))
        for _ in range(5):
            assert next(stream).valid.all()
        assert {e["index"] for e in stream.quarantine} == {gone}
        assert {e["reason"] for e in stream.quarantine} == {"io"}


@pytest.mark.skipif(os.getuid() == 0, reason="root reads everything")
def test_a_file_that_may_not_be_read_is_quarantined(tmp_path, impatient):
    root = folder(tmp_path, count=10)
    source = open_source(str(root))
    os.chmod(root / source.id(2), 0)
    with EvalStream(source, Preprocess(8), batch_size=20, workers=0) as stream:
        assert next(iter(stream)).valid.sum() == 19


def test_healthy_storage_is_read_once(impatient):
    flaky = Flaky(0)
    with EvalStream(flaky, Preprocess(8), batch_size=20, workers=0) as stream:
        assert next(iter(stream)).valid.all() and flaky.tries == 1
