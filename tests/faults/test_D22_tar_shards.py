"""D22: a truncated shard, names that climb, keys twice, members missing: counted, borne up to 1 %, refused beyond."""

import io
import tarfile

import pytest
from photos import png

from vitrail.cli import main
from vitrail.data.source import open_source
from vitrail.errors import DataError

SAMPLES = 300


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("VITRAIL_CACHE", str(tmp_path_factory.mktemp("cache")))


def write(path, samples, extra=()):
    members = [m for i in samples for m in ((f"{i:04d}.png", png(i % 7)), (f"{i:04d}.cls", str(i % 2).encode()))]
    with tarfile.open(path, "w") as archive:
        for name, data in [*members, *extra]:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return path


@pytest.fixture
def shards(tmp_path):
    for k in range(3):
        write(tmp_path / f"s-{k}.tar", range(100 * k, 100 * k + 100))
    return tmp_path


def problems(source):
    return {p.kind: p.count for p in source.problems}


def test_healthy(shards):
    source = open_source(shards)
    assert len(source) == SAMPLES and source.problems == ()
    assert main(["data", "check", str(shards), "--no-near", "--allow", "label-conflict"]) == 0


def test_a_shard_cut_in_half_is_over_the_bound(shards):
    path = shards / "s-1.tar"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(DataError, match=r"truncated-shard: [45]\d .*s-1.tar") as caught:
        open_source(shards)
    assert caught.value.exit_code == 3
    source = open_source(shards, allow="truncated-shard")
    assert 240 < len(source) < 260 and [source.read(i).data for i in (0, len(source) - 1)] == [png(0), png(299 % 7)]
    assert main(["data", "check", str(shards), "--no-near"]) == 3


def test_a_shard_that_loses_its_last_sample_is_borne(shards):
    path = shards / "s-2.tar"
    with tarfile.open(path) as archive:
        last = archive.getmembers()[-2]
    path.write_bytes(path.read_bytes()[: last.offset_data + 100])
    source = open_source(shards)
    assert len(source) == SAMPLES - 1 and problems(source) == {"truncated-shard": 1}


def test_names_that_climb_are_keys_and_never_paths(shards, tmp_path):
    evil = [("../../../evil.png", png(1)), ("../../../evil.cls", b"0"), ("/etc/evil2.png", png(2)), ("/etc/evil2.cls", b"1")]
    write(shards / "s-3.tar", [], evil)
    before = sorted(tmp_path.parent.rglob("*evil*"))
    source = open_source(shards)
    assert problems(source) == {"unsafe-name": 4} and source.id(300) == "s-3.tar/../../../evil"
    assert source.read(300).data == png(1)
    assert sorted(tmp_path.parent.rglob("*evil*")) == before


@pytest.mark.parametrize("count", [2, 20])
def test_keys_twice(shards, count):
    again = [m for i in range(count) for m in ((f"{200 + i:04d}.png", png(1)), (f"{200 + i:04d}.cls", b"0"))]
    write(shards / "s-2.tar", range(200, 300), [("9999.png", png(3)), ("9999.cls", b"1"), *again])
    if count > SAMPLES * 0.01:
        with pytest.raises(DataError, match="duplicate-id: 20"):
            open_source(shards)
    else:
        assert problems(open_source(shards)) == {"duplicate-id": 2}
        assert len(open_source(shards)) == SAMPLES + 1


@pytest.mark.parametrize("count", [2, 20])
@pytest.mark.parametrize("lost", ["label", "image"])
def test_members_that_are_missing(shards, count, lost):
    part = [(f"x{i:03d}.png", png(1)) if lost == "label" else (f"x{i:03d}.cls", b"0") for i in range(count)]
    write(shards / "s-2.tar", range(200, 300), part)
    if count > SAMPLES * 0.01:
        with pytest.raises(DataError, match=f"missing-{lost}: 20"):
            open_source(shards)
    else:
        source = open_source(shards)
        assert len(source) == SAMPLES and problems(source) == {f"missing-{lost}": 2}


def test_bytes_that_are_no_tar(tmp_path):
    write(tmp_path / "s-0.tar", range(10))
    (tmp_path / "s-1.tar").write_bytes(b"\x07" * 5000)
    with pytest.raises(DataError, match=r"truncated-shard: 10 .*s-1.tar: no tar header at 0"):
        open_source(tmp_path)
