"""Features: one row an image, cached by what they depend on, resumable, the same under ranks."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.data.source import open_source
from vitrail.evaluate import features as room
from vitrail.evaluate.features import extract_features, view_of
from vitrail.evaluate.parts import weights_fingerprint
from vitrail.model.variants import create_model
from vitrail.weights.card import card_of

DATA = "builtin:shapes?n=90&test=40&size=32&classes=3"


def make_model(seed=0):
    model = create_model("mu/16", classes=3, image_size=32, seed=seed)
    model.card = card_of(model, name="tiny")
    return model.eval()


def by_hand(model, source):
    view = model.card.transform()
    with torch.no_grad():
        return model.features(torch.stack([view(source.read(i).data) for i in range(len(source))])).numpy()


def test_every_image_has_its_row_and_its_label(tmp_path):
    model, source = make_model(), open_source(DATA, "train")
    found = extract_features(model, source, cache=tmp_path, workers=0)
    assert np.allclose(found.features, by_hand(model, source), atol=1e-5)
    assert (found.labels == source.labels).all() and (found.index == np.arange(90)).all()
    assert isinstance(found.features, np.memmap)
    plain = extract_features(model, source, cache=False, workers=0)
    assert np.array_equal(plain.features, found.features)


def test_a_second_call_computes_nothing_and_other_weights_views_or_data_are_another_matter(tmp_path, monkeypatch):
    model, source = make_model(), open_source(DATA, "train")
    first = extract_features(model, source, cache=tmp_path, workers=0)
    computed = []
    whole = room._compute
    monkeypatch.setattr(room, "_compute", lambda *a: (computed.append(1), whole(*a))[1])
    again = extract_features(model, source, cache=tmp_path, workers=0)
    assert not computed and np.array_equal(first.features, again.features)
    assert first.asked == 90 and again.asked == 0
    extract_features(model, source, cache=tmp_path, workers=0, view="paper")
    extract_features(model, open_source(DATA, "test"), cache=tmp_path, workers=0)
    with torch.no_grad():
        next(iter(model.parameters())).add_(0.01)  # the card does not know; the features must
    moved = extract_features(model, source, cache=tmp_path, workers=0)
    assert len(computed) == 3 and not np.array_equal(first.features, moved.features)
    assert weights_fingerprint(model) != weights_fingerprint(make_model())


def test_an_interrupted_extraction_goes_on_where_it_stopped(tmp_path, monkeypatch):
    model, source = make_model(), open_source(DATA, "train")
    rows = room._rows

    def stops(*args):
        for number, part in enumerate(rows(*args)):
            if number == 3:
                raise KeyboardInterrupt
            yield part

    monkeypatch.setattr(room, "_rows", stops)
    with pytest.raises(KeyboardInterrupt):
        extract_features(model, source, cache=tmp_path, workers=0, batch_size=16)
    assert len(list(tmp_path.rglob("part-*.npz"))) >= 2
    seen = []

    def counts(*args):
        for part in rows(*args):
            seen.append(len(part["index"]))
            yield part

    monkeypatch.setattr(room, "_rows", counts)
    found = extract_features(model, source, cache=tmp_path, workers=0, batch_size=16)
    assert 0 < sum(seen) < 90
    assert np.allclose(found.features, by_hand(model, source), atol=1e-5)
    assert not list(tmp_path.rglob("part-*.npz"))


def test_unreadable_images_have_no_row_and_are_named(tmp_path):
    from vitrail.data.encode import encode_png

    rng = np.random.default_rng(0)
    files = [encode_png(rng.integers(255, size=(32, 32, 3), dtype=np.uint8)) for _ in range(50)]
    files[0] = files[17] = files[49] = b"not an image"
    source = open_source((files, np.arange(50) % 3))
    found = extract_features(make_model(), source, cache=tmp_path, workers=0)
    assert len(found) == 47 and found.unreadable == ("0", "17", "49")
    assert found.labels.tolist() == [k % 3 for k in range(50) if k not in (0, 17, 49)]
    files[0] = files[1]  # the storage answers again: only the parts that lacked something are asked anew
    source.images = files
    again = extract_features(make_model(), source, cache=tmp_path, workers=0)
    assert len(again) == 48 and again.asked < 50 and again.unreadable == ("17", "49")


def test_the_papers_view_squashes_and_crops_the_centre():
    view = view_of("paper", make_model().card.transform())
    assert (view.mode, view.resize, view.image_size, view.rounding) == ("bit", 37, (32, 32), "truncate")


WORKER = """
import sys; sys.path[:0] = [{here!r}]
import importlib.util
spec = importlib.util.spec_from_file_location("t", {file!r}); t = importlib.util.module_from_spec(spec); spec.loader.exec_module(t)
from vitrail.runtime.distributed import group
with group():
    for cache in ({cache!r}, False):
        model, source = t.make_model(), t.open_source(t.DATA, "train")
        found = t.extract_features(model, source, cache=cache, workers=0, batch_size=8)
        assert (found.index == t.np.arange(90)).all()
        assert t.np.allclose(found.features, t.by_hand(model, source), atol=1e-5)
print("agreed")
"""


def test_two_ranks_share_the_work_and_see_all_of_it(tmp_path):
    script = tmp_path / "worker.py"
    script.write_text(WORKER.format(here=str(Path(__file__).parent), file=__file__, cache=str(tmp_path / "cache")))
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", str(script)]
    done = subprocess.run(run, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.count("agreed") == 2
