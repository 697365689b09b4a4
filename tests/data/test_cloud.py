"""Object stores through fsspec: the same sources, at memory:// here."""

import io
import json
import pickle
import tarfile

import pytest
from photos import png

from vitrail.data.source import list_splits, open_source
from vitrail.errors import DataError

fsspec = pytest.importorskip("fsspec")


@pytest.fixture
def store():
    system = fsspec.filesystem("memory")
    yield lambda name, data: system.pipe(f"/bucket/{name}", data)
    system.rm("/bucket", recursive=True)


def test_a_folder_of_classes(store):
    for split in ("train", "val"):
        for k, name in enumerate(("cat", "dog")):
            for i in range(3):
                store(f"{split}/{name}/{i}.png", png(10 * k + i))
    store("train/cat/.hidden.png", b"x")
    assert list_splits("memory://bucket") == ("train", "val")
    source = open_source("memory://bucket", "train")
    assert source.classes == ("cat", "dog") and len(source) == 6
    again = pickle.loads(pickle.dumps(source))
    assert again.read(4).data == png(11) and again.fingerprint == source.fingerprint


def test_a_table(store):
    store("i/1.png", png(1))
    store("t.csv", b"path,label\ni/1.png,x\n")
    assert open_source("memory://bucket/t.csv").read(0).data == png(1)


def test_tar_shards_by_pattern(store):
    for k in range(2):
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as archive:
            for i in range(3):
                for ending, data in (("png", png(3 * k + i)), ("cls", b"0")):
                    info = tarfile.TarInfo(f"{i}.{ending}")
                    info.size = len(data)
                    archive.addfile(info, io.BytesIO(data))
        store(f"s-{k}.tar", out.getvalue())
    source = open_source("memory://bucket/s-{0..1}.tar")
    assert [source.read(i).data for i in (5, 0, 3)] == [png(5), png(0), png(3)]
    assert len(open_source("memory://bucket/s-*.tar")) == 6


def test_parquet(store):
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    features = {"label": {"names": ["a", "b"], "_type": "ClassLabel"}}
    table = pa.table({"image": [{"bytes": png(i), "path": None} for i in range(4)], "label": [0, 1, 0, 1]})
    out = io.BytesIO()
    pq.write_table(table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})}), out, row_group_size=2)
    store("data/train-00000-of-00001.parquet", out.getvalue())
    source = open_source("memory://bucket/data", "train")
    assert source.classes == ("a", "b") and source.read(3).data == png(3)


def test_what_is_not_there_is_said(store):
    store("a.txt", b"")
    with pytest.raises(DataError, match="no such file"):
        open_source("memory://bucket/s-{0..1}.tar")
    with pytest.raises(DataError, match="nosuchscheme"):
        open_source("nosuchscheme://x/y")
