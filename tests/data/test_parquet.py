"""Parquet in the Hugging Face layout: names, groups, several files, any place at once."""

import json
import pickle

import numpy as np
import pytest
from photos import png

from vitrail.data import parquet
from vitrail.data.source import list_splits, open_source
from vitrail.errors import DataError, DecodeError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")


def write(path, images, labels, features=None, group=4, **columns):
    table = pa.table({
        "image": pa.array([{"bytes": data, "path": None} for data in images], pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        **({"label": labels} if labels is not None else {}),
        **columns,
    })  # fmt: skip
    if features:
        table = table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(table, path, row_group_size=group)


NAMED = {"image": {"_type": "Image"}, "label": {"names": ["cat", "dog", "owl"], "_type": "ClassLabel"}}


@pytest.fixture
def two_files(tmp_path):
    for k in range(2):
        rows = range(10 * k, 10 * k + 10)
        write(tmp_path / "data" / f"train-{k:05d}-of-00002.parquet", [png(i) for i in rows], [i % 3 for i in rows], NAMED)
    write(tmp_path / "data" / "validation-00000-of-00001.parquet", [png(99)], [2], NAMED)
    return tmp_path


def test_class_names_come_from_the_schema_and_splits_from_the_names(two_files, monkeypatch):
    assert open_source(two_files, "train").shards is None  # small: held whole
    monkeypatch.setattr(parquet, "SMALL_BYTES", 0)
    assert list_splits(two_files) == ("train", "val")
    source = open_source(two_files, "train")
    assert source.classes == ("cat", "dog", "owl") and source.labels.tolist() == [i % 3 for i in range(20)]
    assert source.shards == (4, 4, 2, 4, 4, 2)
    assert source.id(13) == "train-00001-of-00002.parquet:3"


def test_any_place_reads_what_was_written_there(two_files):
    source = open_source(two_files, "train")
    for i in np.random.default_rng(0).permutation(20):
        assert source.read(int(i)).data == png(int(i)) and source.read(int(i)).label == i % 3
    again = pickle.loads(pickle.dumps(source))
    assert again.read(17).data == png(17) and again.fingerprint == source.fingerprint


def test_groups_kept_in_memory_are_bounded(two_files, monkeypatch):
    monkeypatch.setattr(parquet, "CACHE_BYTES", 3000)
    source = open_source(two_files, "train")
    for i in range(20):
        source.read(i)
    held = source.groups._held
    assert sum(group.nbytes for group in held.values()) <= 3000 or len(held) == 1
    assert len(held) < 6


def test_an_address_in_another_spelling_is_the_same_data(two_files, monkeypatch):
    far = open_source(f"{two_files}/./data/", "train")
    monkeypatch.chdir(two_files / "data")
    near = open_source(".", "train")
    assert near.id(0) == far.id(0) and near.fingerprint == far.fingerprint


def test_one_file_and_a_pattern(two_files):
    assert len(open_source(two_files / "data" / "validation-00000-of-00001.parquet")) == 1
    assert len(open_source(f"{two_files}/data/train-{{00000..00001}}-of-00002.parquet", "train[:50%]")) == 10
    with pytest.raises(DataError, match=r"no such file.*00002-of"):
        open_source(f"{two_files}/data/train-{{00000..00002}}-of-00002.parquet")


def test_text_labels_and_lists_of_labels(tmp_path):
    write(tmp_path / "text.parquet", [png(0), png(1)], ["zebra", "ape"])
    assert open_source(tmp_path / "text.parquet").classes == ("ape", "zebra")
    features = {"label": {"feature": {"names": ["a", "b", "c"], "_type": "ClassLabel"}, "_type": "Sequence"}}
    write(tmp_path / "many.parquet", [png(0), png(1)], [[0, 2], []], features)
    source = open_source(tmp_path / "many.parquet")
    assert source.multilabel and source.labels == [(0, 2), ()] and source.classes == ("a", "b", "c")


def test_a_number_is_a_place_even_where_names_are_numbers(tmp_path):
    """Folders 1, 2 … 10 become ClassLabel names in the order of their text: place 1 is called '10'."""
    names = {"label": {"names": ["1", "10", "2", "0"], "_type": "ClassLabel"}}
    write(tmp_path / "x.parquet", [png(i) for i in range(4)], [0, 1, 2, 3], names)
    source = open_source(tmp_path / "x.parquet")
    assert source.labels.tolist() == [0, 1, 2, 3] and source.classes[source.read(1).label] == "10"
    several = {"label": {"feature": names["label"], "_type": "Sequence"}}
    write(tmp_path / "y.parquet", [png(0)], [[1, 3]], several)
    assert open_source(tmp_path / "y.parquet").labels == [(1, 3)]


def test_a_choice_between_label_columns_has_to_be_made(tmp_path):
    label = {"names": ["x", "y"], "_type": "ClassLabel"}
    write(tmp_path / "c.parquet", [png(0)], None, {"fine": label, "coarse": label}, fine=[0], coarse=[1])
    with pytest.raises(DataError, match=r"several label columns: fine, coarse"):
        open_source(tmp_path / "c.parquet")
    assert open_source(f"{tmp_path}/c.parquet?label=coarse", allow="empty-class").labels.tolist() == [1]


def test_a_binary_column_and_no_labels(tmp_path):
    pq.write_table(pa.table({"img": pa.array([png(4)], pa.binary())}), tmp_path / "x.parquet")
    assert open_source(tmp_path / "x.parquet", labelled=False).read(0).data == png(4)
    with pytest.raises(DataError, match="known to hold labels"):
        open_source(tmp_path / "x.parquet")


def test_a_large_set_stored_class_by_class_is_said_to_be(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "SMALL_BYTES", 0)
    labels = np.repeat(np.arange(20), 20)
    write(tmp_path / "sorted.parquet", [b"x"] * 400, labels.tolist(), group=10)
    assert "stored class by class" in open_source(tmp_path / "sorted.parquet").notes[0]
    mixed = np.random.default_rng(0).permutation(labels)
    write(tmp_path / "mixed.parquet", [b"x"] * 400, mixed.tolist(), group=10)
    assert open_source(tmp_path / "mixed.parquet").notes == ()


def test_rows_without_label_or_image(tmp_path, monkeypatch):
    monkeypatch.setattr(parquet, "SMALL_BYTES", 0)
    write(tmp_path / "x.parquet", [png(0), png(1), b""], [0, -1, 0])
    with pytest.raises(DataError, match="missing-label: 1"):
        open_source(tmp_path / "x.parquet")
    source = open_source(tmp_path / "x.parquet", allow="missing-label")
    assert len(source) == 2 and source.id(1) == "x.parquet:2" and source.shards is None
    with pytest.raises(DecodeError, match=r"x.parquet:2: empty"):
        source.read(1)


def test_a_file_cut_short_is_named(two_files):
    path = two_files / "data" / "train-00001-of-00002.parquet"
    path.write_bytes(path.read_bytes()[:-30])
    with pytest.raises(DataError, match=r"truncated-shard: 1.*train-00001"):
        open_source(two_files, "train")
    assert len(open_source(two_files, "train", allow="truncated-shard")) == 10


def test_files_whose_class_names_differ_are_refused(two_files):
    other = {"label": {"names": ["cat", "owl", "dog"], "_type": "ClassLabel"}}
    write(two_files / "data" / "validation-00000-of-00001.parquet", [png(99)], [2], other)
    with pytest.raises(DataError, match="another order"):
        open_source(two_files, "train")


def test_an_edited_file_has_another_fingerprint(two_files):
    before = open_source(two_files, "train").fingerprint
    rows = range(10)
    write(two_files / "data" / "train-00000-of-00002.parquet", [png(i + (i == 7)) for i in rows], [i % 3 for i in rows], NAMED)
    assert open_source(two_files, "train").fingerprint != before
