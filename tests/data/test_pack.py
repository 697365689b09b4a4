"""`data pack`: the same images and labels, whatever the shards; a kill costs one shard."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from photos import encode, folder, jpeg

from vitrail.cli import main
from vitrail.data.decode import decode, pixels
from vitrail.data.pack import pack
from vitrail.data.source import list_splits, open_source
from vitrail.errors import DataError, UsageError

pytest.importorskip("pyarrow")


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def content(source):
    return sorted((record.data, source.classes[record.label]) for record in map(source.read, range(len(source))))


@pytest.mark.parametrize("to", ["parquet", "tar"])
def test_what_comes_out_is_what_went_in(tmp_path, to):
    folder(tmp_path / "in", ("ant", "bee, wild", "1", "10", "2"), count=8, splits=("train", "val"))
    result = pack(tmp_path / "in", tmp_path / "out", to=to, shard_mb=1, progress=False)
    assert result.images == {"train": 40, "val": 40} and result.left_out == []
    assert list_splits(tmp_path / "out") == ("train", "val")
    for split in ("train", "val"):
        before, after = open_source(tmp_path / "in", split), open_source(tmp_path / "out", split)
        assert after.classes == before.classes and content(after) == content(before)
        assert np.abs(np.diff(after.labels)).sum() > 10  # the classes are mixed


@pytest.mark.parametrize("to", ["parquet", "tar"])
def test_several_labels_arrays_and_no_labels(tmp_path, to):
    several = open_source("builtin:shapes?n=30&size=16&multilabel=1", "train")
    pack("builtin:shapes?n=30&size=16&multilabel=1", tmp_path / "a", split="train", to=to, shuffle=False, progress=False)
    after = open_source(tmp_path / "a", "train")
    assert after.labels == several.labels and after.multilabel
    assert all(np.array_equal(pixels(after.read(i).data), several.read(i).data) for i in range(30))
    grey = np.random.default_rng(0).integers(0, 256, (6, 9, 8), dtype=np.uint8)
    pack((grey, None), tmp_path / "b", to=to, shuffle=False, progress=False)
    plain = open_source(tmp_path / "b", "train", labelled=False)
    assert np.array_equal(decode(plain.read(5).data)[:, :, 0], grey[5])


def test_resizing_to_a_shorter_side(tmp_path):
    folder(tmp_path / "in", ("a",), count=1)
    (tmp_path / "in" / "a" / "large.jpg").write_bytes(jpeg(1, 120, 300))
    (tmp_path / "in" / "a" / "large.png").write_bytes(encode(np.zeros((200, 100, 3), np.uint8)))
    pack(tmp_path / "in", tmp_path / "out", resize=50, shuffle=False, progress=False)
    source = open_source(tmp_path / "out", "train")
    assert [decode(source.read(i).data).shape[:2] for i in range(3)] == [(16, 16), (50, 125), (100, 50)]
    assert source.read(1).data[:2] == b"\xff\xd8" and source.read(2).data[:4] == b"\x89PNG"


def test_shards_are_even_and_of_about_the_size_asked_for(tmp_path):
    pack("builtin:fashion", tmp_path / "out", split="test", shard_mb=1, shuffle=False, progress=False)
    sizes = [path.stat().st_size for path in sorted((tmp_path / "out").glob("*.parquet"))]
    assert sizes and max(sizes) < 1.7e6 and min(sizes) > 0.7 * max(sizes)


def command(tmp_path, *more):
    source = "builtin:shapes?n=900&size=48&test=1"
    return [sys.executable, "-m", "vitrail", "data", "pack", source, str(tmp_path / "out"), "--split", "train", "--shard-mb", "1", *more]


def test_a_killed_run_goes_on_where_it_was_and_ends_with_the_same_bytes(tmp_path):
    process = subprocess.Popen(command(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and len(list((tmp_path / "out").glob("train-*.parquet"))) < 2:
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    first = {path.name: path.stat().st_mtime_ns for path in (tmp_path / "out").glob("train-*.parquet")}
    done = json.loads((tmp_path / "out" / "pack.json").read_text())["done"]["shards"]
    again = subprocess.run(command(tmp_path, "--json"), capture_output=True, text=True, check=True)
    result = json.loads(again.stdout)
    assert result["images"] == {"train": 900} and 1 <= result["kept"] == len(done) < result["shards"]["train"]
    assert all((tmp_path / "out" / name).stat().st_mtime_ns == first[name] for name in done)
    assert not list((tmp_path / "out").glob(".draft*"))
    pack("builtin:shapes?n=900&size=48&test=1", tmp_path / "whole", split="train", shard_mb=1, progress=False)
    for path in (tmp_path / "whole").glob("train-*"):
        assert path.read_bytes() == (tmp_path / "out" / path.name).read_bytes()


def test_a_shard_that_was_damaged_since_is_written_again(tmp_path):
    pack("builtin:fashion", tmp_path / "out", split="test", shard_mb=1, progress=False)
    path = sorted((tmp_path / "out").glob("*.parquet"))[0]
    whole = path.read_bytes()
    path.write_bytes(whole[:-100])
    pack("builtin:fashion", tmp_path / "out", split="test", shard_mb=1, progress=False)
    assert path.read_bytes() == whole


def test_other_options_or_a_folder_in_use_are_refused(tmp_path):
    pack("builtin:shapes?n=20", tmp_path / "out", split="train", progress=False)
    with pytest.raises(UsageError, match=r"other options .seed"):
        pack("builtin:shapes?n=20", tmp_path / "out", split="train", seed=3, progress=False)
    with pytest.raises(UsageError, match="from other data"):
        pack("builtin:shapes?n=21", tmp_path / "out", split="train", progress=False)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    with pytest.raises(UsageError, match="not empty"):
        pack("builtin:shapes?n=20", tmp_path / "full", split="train", progress=False)


def test_a_few_broken_images_are_left_out_and_named_and_many_stop_it(tmp_path, capsys):
    folder(tmp_path / "in", count=30)
    (tmp_path / "in" / "cat" / "cut.jpg").write_bytes(jpeg(9, 64, 64)[:-200])
    assert main(["data", "pack", str(tmp_path / "in"), str(tmp_path / "out"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["images"] == {"train": 60} and "cat/cut.jpg: truncated" in result["left_out"][0]
    for k in range(12):
        (tmp_path / "in" / "cat" / f"cut{k}.jpg").write_bytes(b"")
    with pytest.raises(DataError, match="13 images cannot be decoded"):
        pack(tmp_path / "in", tmp_path / "out2", progress=False)


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
def test_a_full_disk_leaves_no_half_shard(tmp_path, monkeypatch):
    import errno

    from vitrail.data import pack as packing
    from vitrail.errors import ResourceError

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(packing, "_write_parquet", full)
    with pytest.raises(ResourceError, match="no space left"):
        pack("builtin:shapes?n=20", tmp_path / "out", split="train", progress=False)
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["pack.json"]
    monkeypatch.undo()
    assert pack("builtin:shapes?n=20", tmp_path / "out", split="train", progress=False).images == {"train": 20}


def test_a_destination_that_is_a_file_is_refused(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    for place in ("file", "file/below"):
        assert main(["data", "pack", "builtin:shapes?n=4", str(tmp_path / place)]) == 2
        assert "is a file" in capsys.readouterr().err
