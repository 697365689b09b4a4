"""Tar shards: an index of places, read in any order, never unpacked."""

import io
import json
import pickle
import tarfile

import numpy as np
import pytest
from photos import jpeg, png

from vitrail.data import tar
from vitrail.data.source import list_splits, open_source
from vitrail.errors import DataError


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def write(path, members, format=tarfile.USTAR_FORMAT):
    with tarfile.open(path, "w", format=format) as archive:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))


def sample(i, label, ending="png"):
    return [(f"{i:06d}.{ending}", png(i)), (f"{i:06d}.cls", str(label).encode())]


@pytest.fixture
def shards(tmp_path):
    for k in range(3):
        write(tmp_path / f"train-{k:03d}.tar", [m for i in range(5 * k, 5 * k + 5) for m in sample(i, i % 2)])
    write(tmp_path / "val-000.tar", sample(100, 1))
    return tmp_path


def test_shards_in_a_folder_are_splits_by_name(shards, monkeypatch):
    assert open_source(shards, "train").shards is None  # small: any place is as cheap as any other
    monkeypatch.setattr(tar, "SMALL_BYTES", 0)
    assert list_splits(shards) == ("train", "val")
    source = open_source(shards, "train")
    assert len(source) == 15 and source.shards == (5, 5, 5) and source.classes == ("0", "1")
    assert source.id(7) == "train-001.tar/000007" and source.labels.tolist() == [i % 2 for i in range(15)]


def test_any_place_reads_what_was_written_there(shards):
    source = open_source(f"{shards}/train-{{000..002}}.tar", "train")
    for i in np.random.default_rng(0).permutation(15):
        assert source.read(int(i)).data == png(int(i))
    assert pickle.loads(pickle.dumps(source)).read(11).data == png(11)


@pytest.mark.parametrize("format", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_long_names_of_every_tar_dialect(tmp_path, format):
    key = "folder/" * 12 + "x" * 60 if format == tarfile.USTAR_FORMAT else "folder/" * 40 + "y" * 140 + "é"
    write(tmp_path / "a.tar", [(f"{key}.jpg", jpeg(1)), (f"{key}.cls", b"0")], format)
    source = open_source(tmp_path / "a.tar")
    assert source.id(0) == f"a.tar/{key}" and source.read(0).data == jpeg(1)


def test_labels_from_json_names_and_several(tmp_path):
    write(tmp_path / "a.tar", [("1.png", png(1)), ("1.json", json.dumps({"label": "dog"}).encode()),
                               ("2.png", png(2)), ("2.json", json.dumps({"label": "cat"}).encode())])  # fmt: skip
    assert open_source(tmp_path / "a.tar").classes == ("cat", "dog")
    write(tmp_path / "b.tar", [("1.png", png(1)), ("1.json", json.dumps({"labels": [2, 0]}).encode())])
    source = open_source(tmp_path / "b.tar")
    assert source.multilabel and source.labels == [(0, 2)]


def test_names_beside_the_shards(shards):
    (shards / "classes.txt").write_text("ape\nbee\n")
    assert open_source(shards, "val").classes == ("ape", "bee") and open_source(shards, "val").labels.tolist() == [1]


def test_a_number_is_a_place_even_where_names_are_numbers(tmp_path):
    write(tmp_path / "a.tar", [m for i in range(3) for m in sample(i, i)])
    (tmp_path / "classes.txt").write_text("1\n10\n2\n")
    assert open_source(tmp_path / "a.tar").labels.tolist() == [0, 1, 2]


def test_the_second_start_reads_the_stored_index(shards, monkeypatch):
    from vitrail.data import shard

    first = open_source(shards, "train")
    monkeypatch.setattr(shard, "_index", None)
    second = open_source(shards, "train")
    assert second.fingerprint == first.fingerprint and second.read(8).data == png(8)
    monkeypatch.undo()
    write(shards / "train-001.tar", sample(500, 1))
    assert len(open_source(shards, "train")) == 11


def test_a_compressed_archive_is_refused_with_the_way_out(tmp_path):
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz"):
        pass
    with pytest.raises(DataError, match="compressed as a whole"):
        open_source(tmp_path / "a.tar.gz")


def test_unlabelled_shards_open_when_no_labels_are_wanted(tmp_path):
    write(tmp_path / "a.tar", [("1.png", png(1)), ("2.png", png(2))])
    assert open_source(tmp_path / "a.tar", labelled=False).labels.tolist() == [-1, -1]
    assert "no sample has a label" in open_source(tmp_path / "a.tar").notes
