import io
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch

from vitrail.data.crop import TrainView
from vitrail.data.loader import EvalStream, TrainStream
from vitrail.data.source import open_source
from vitrail.data.transform import Preprocess
from vitrail.errors import UsageError

VIEW = TrainView(16)


def encoded(count, seed=0, size=(40, 52)):
    """Small PNG photos, each different."""
    from PIL import Image

    rng = np.random.default_rng(seed)
    files = []
    for _ in range(count):
        buffer = io.BytesIO()
        Image.fromarray(rng.integers(0, 256, (*size, 3), dtype=np.uint8)).save(buffer, "PNG")
        files.append(buffer.getvalue())
    return files


@pytest.fixture(scope="module")
def source():
    return open_source((encoded(50), np.arange(50) % 7))


def hashes(source, steps, *, start=0, **options):
    with TrainStream(source, VIEW, batch_size=16, seed=5, start_step=start, **options) as stream:
        return [next(stream).hash() for _ in range(steps)]


@pytest.fixture(scope="module")
def clean(source):
    return hashes(source, 10, workers=0)


@pytest.mark.parametrize("workers", [1, 2, 8])
def test_the_stream_is_the_same_for_any_number_of_workers(source, clean, workers):
    assert hashes(source, 10, workers=workers) == clean


def test_threads_give_the_same_stream(source, clean):
    assert hashes(source, 10, workers=3, threads=True) == clean


@pytest.mark.parametrize("world", [2, 4])
@pytest.mark.parametrize("workers", [0, 2])
def test_ranks_side_by_side_are_the_stream_of_one(source, world, workers):
    with TrainStream(source, VIEW, batch_size=16, seed=5, workers=0) as whole:
        ranks = [TrainStream(source, VIEW, batch_size=16, seed=5, rank=r, world=world, workers=workers, threads=True) for r in range(world)]
        for _ in range(8):
            batch, parts = next(whole), [next(r) for r in ranks]
            for name in ("images", "labels", "index", "position", "valid"):
                assert torch.equal(getattr(batch, name), torch.cat([getattr(p, name) for p in parts])), name
        for r in ranks:
            r.close()


@pytest.mark.parametrize("workers", [0, 2])
def test_a_resume_at_any_point_is_the_uninterrupted_stream(source, clean, workers):
    for start in range(10) if workers == 0 else (1, 3, 7):
        assert hashes(source, 10 - start, start=start, workers=workers) == clean[start:]


@pytest.mark.parametrize("workers", [0, 2])
def test_seek_goes_anywhere_and_back(source, clean, workers):
    with TrainStream(source, VIEW, batch_size=16, seed=5, workers=workers) as stream:
        for step in (4, 0, 9, 9, 2, 3):
            stream.seek(step)
            assert next(stream).hash() == clean[step]


def test_an_epoch_shows_every_sample_once(source):
    with TrainStream(source, VIEW, batch_size=10, seed=1, workers=0) as stream:
        first = torch.cat([next(stream).index for _ in range(5)])
        second = torch.cat([next(stream).index for _ in range(5)])
    assert sorted(first.tolist()) == list(range(50)) == sorted(second.tolist())
    assert first.tolist() != second.tolist()


def test_seeds_and_epochs_change_order_and_crops(source, clean):
    with TrainStream(source, VIEW, batch_size=16, seed=6, workers=0) as stream:
        assert next(stream).hash() != clean[0]
    one = open_source(([encoded(1)[0]], [0]))
    with TrainStream(one, VIEW, batch_size=1, seed=0, workers=0) as stream:
        assert len({next(stream).hash() for _ in range(8)}) == 8


def test_batches_are_uint8_with_everything_a_consumer_needs(source):
    with TrainStream(source, VIEW, batch_size=16, seed=5, rank=1, world=2, workers=0) as stream:
        batch = next(stream)
    assert batch.images.shape == (8, 3, 16, 16) and batch.images.dtype == torch.uint8
    assert batch.labels.tolist() == [i % 7 for i in batch.index.tolist()]
    assert batch.position.tolist() == list(range(8, 16)) == batch.positions().tolist()
    assert batch.valid.all()


def test_repeated_augmentation_shows_an_image_several_times_with_other_crops(source):
    with TrainStream(source, VIEW, batch_size=12, seed=0, workers=0, repeats=3) as stream:
        batch = next(stream)
    assert batch.index.view(4, 3).unique(dim=1).shape[1] == 1
    assert len({image.numpy().tobytes() for image in batch.images}) == 12


def test_a_batch_that_is_kept_does_not_change(source):
    """Batches on the CPU are lent from shared memory; holding many must neither stall nor corrupt."""
    with TrainStream(source, VIEW, batch_size=16, seed=5, workers=2, pin=False) as stream:
        kept = [next(stream) for _ in range(12)]
        before = [b.hash() for b in kept]
        for _ in range(6):
            next(stream)
        assert [b.hash() for b in kept] == before
    assert [b.hash() for b in kept] == before  # even after the stream has closed


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("world", [1, 3])
def test_evaluation_sees_every_sample_exactly_once(source, workers, world):
    seen = []
    for rank in range(world):
        with EvalStream(source, Preprocess(16), batch_size=12, rank=rank, world=world, workers=workers) as stream:
            batches = list(stream)
            assert len(batches) == len(stream) == 5
            assert {len(b) for b in batches} == {12 // world}
            for batch in batches:
                assert (batch.index[~batch.valid] == -1).all() and (batch.labels[~batch.valid] == -1).all()
                seen += batch.index[batch.valid].tolist()
    assert sorted(seen) == list(range(50))


def test_evaluation_can_be_walked_again_and_keeps_fractions_where_asked(source):
    with EvalStream(source, Preprocess(16, rounding="keep"), batch_size=20, workers=2) as stream:
        first, second = [b.hash() for b in stream], [b.hash() for b in stream]
        assert first == second
        assert next(iter(stream)).images.dtype == torch.float32
    with EvalStream(source, Preprocess(16, antialias=True), batch_size=20, workers=0) as stream:
        assert next(iter(stream)).images.dtype == torch.uint8


def test_several_labels_become_rows_of_zeros_and_ones():
    source = open_source((encoded(4), [(0, 2), (1,), (), (2,)]))
    with EvalStream(source, Preprocess(16), batch_size=4, workers=0) as stream:
        labels = next(iter(stream)).labels
    assert labels.tolist() == [[1, 0, 1], [0, 1, 0], [0, 0, 0], [0, 0, 1]]


def test_balanced_sampling_shows_every_class_equally_often():
    labels = np.array([0] * 30 + [1] * 4 + [2] * 2)
    source = open_source((encoded(36), labels))
    with TrainStream(source, VIEW, batch_size=36, seed=0, workers=0, balanced=True) as stream:
        batches = [next(stream) for _ in range(5)]
    for batch in batches:
        assert torch.bincount(batch.labels).tolist() == [12, 12, 12]
    shown = torch.bincount(torch.cat([b.index for b in batches]), minlength=36)
    assert shown[:30].min() == shown[:30].max() == 2  # 60 draws from 30 samples
    assert shown[30:34].max() - shown[30:34].min() <= 1


def test_a_batch_that_does_not_divide_names_one_that_does(source):
    with pytest.raises(UsageError, match="15 or 18"):
        TrainStream(source, VIEW, batch_size=17, seed=0, world=3, workers=0)


def test_a_closed_stream_says_so(source):
    stream = TrainStream(source, VIEW, batch_size=16, seed=0, workers=2)
    next(stream)
    stream.close()
    stream.close()
    with pytest.raises(UsageError, match="closed"):
        next(stream)


def test_threads_have_ended_when_a_stream_is_closed(source):
    before = set(threading.enumerate())
    with TrainStream(source, VIEW, batch_size=16, seed=0, workers=3, threads=True) as stream:
        next(stream)
        assert sum(t.name.startswith("vitrail-data") for t in set(threading.enumerate()) - before) == 3
    assert not any(t.name.startswith("vitrail-data") for t in set(threading.enumerate()) - before)


LEFT_OPEN = """
import numpy as np
from vitrail.data.crop import TrainView
from vitrail.data.loader import TrainStream
from vitrail.data.source import open_source
source = open_source((np.random.default_rng(0).integers(0, 256, (64, 200, 200, 3), dtype=np.uint8), np.arange(64) % 7))
stream = TrainStream(source, TrainView(160), batch_size=64, seed=0, workers=2, threads=True)
next(stream)
"""


def test_a_program_that_leaves_a_stream_open_ends_well():
    done = subprocess.run([sys.executable, "-c", LEFT_OPEN], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and done.stderr == ""
