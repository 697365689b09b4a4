"""An image of a plain parquet file is read where it lies; Arrow, reading the whole group, gives the same."""

import numpy as np
import pytest
from photos import png

from vitrail.data.pack import pack
from vitrail.data.pages import find_places, is_plain
from vitrail.data.source import open_source

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")

PLAIN = {"compression": "NONE", "use_dictionary": False, "write_statistics": False}
COUNT = 60


def images(rng):
    return [rng.bytes(int(n)) for n in rng.integers(1, 4000, COUNT)]


def write(path, data, nested=True, nullable=True, **options):
    if nested:
        column = pa.array([None if d is None else {"bytes": d, "path": "x.png"} for d in data])
    else:
        column = pa.array(data, pa.binary())
    schema = pa.schema([pa.field("image", column.type, nullable=nullable), ("label", pa.int64())])
    table = pa.table([column, pa.array([k % 3 for k in range(len(data))])], schema=schema)
    pq.write_table(table, path, **{**PLAIN, "row_group_size": 25, **options})


def found(groups):
    return [groups._find(g) is not None for g in range(len(groups.starts))]


DIRECT = {
    "as packed": {},
    "a plain binary column": {"nested": False},
    "a column without nulls": {"nested": False, "nullable": False},
    "many pages": {"data_page_size": 4000},
    "statistics in the header": {"write_statistics": True, "data_page_size": 20_000},
    "checksums": {"write_page_checksum": True},
}
THROUGH_ARROW = {
    "compressed": {"compression": "snappy"},
    "a dictionary": {"use_dictionary": True},
    "pages of version 2": {"data_page_version": "2.0"},
}


@pytest.mark.parametrize("name", [*DIRECT, *THROUGH_ARROW])
def test_what_is_read_is_what_was_written(tmp_path, name):
    data = images(np.random.default_rng(1))
    write(tmp_path / "train.parquet", data, **{**DIRECT, **THROUGH_ARROW}[name])
    source = open_source(tmp_path / "train.parquet")
    for i in np.random.default_rng(0).permutation(COUNT).tolist():
        assert source.read(i).data == data[i]
    assert found(source.groups) == [name in DIRECT] * 3
    assert bool(source.groups._held) == (name not in DIRECT)


def test_a_group_with_a_row_that_holds_nothing_is_read_by_arrow(tmp_path):
    data = images(np.random.default_rng(2))
    data[30] = None
    write(tmp_path / "train.parquet", data)
    source = open_source(tmp_path / "train.parquet")
    assert found(source.groups) == [True, False, True]
    assert [source.read(i).data == data[i] for i in range(COUNT) if i != 30] == [True] * (COUNT - 1)


def test_what_pack_writes_is_read_where_it_lies(tmp_path):
    files = [png(k, 20, 24) for k in range(40)]
    pack((files, np.arange(40) % 4), tmp_path / "packed", shuffle=False, progress=False)
    source = open_source(tmp_path / "packed")
    assert [source.read(i).data for i in range(40)] == files and not source.groups._held


def test_damaged_pages_are_left_to_arrow(tmp_path):
    """Whatever byte is changed: the true places, other places inside the file, or None; never an error, never outside."""
    write(tmp_path / "a.parquet", images(np.random.default_rng(3)), data_page_size=8000)
    whole = (tmp_path / "a.parquet").read_bytes()
    column = pq.ParquetFile(tmp_path / "a.parquet").metadata.row_group(0).column(0)
    start, size, count = column.data_page_offset, column.total_compressed_size, column.num_values
    assert is_plain(column)
    rng = np.random.default_rng(4)
    true = find_places(lambda at, n: whole[at : at + n], start, size, count, True)
    assert true is not None and len(true.starts) == count
    for _ in range(2000):
        data = bytearray(whole)
        data[start + int(rng.integers(0, 60))] = int(rng.integers(0, 256))
        data = bytes(data[: int(rng.integers(start, len(data)))] if rng.random() < 0.3 else data)
        places = find_places(lambda at, n: data[at : at + n], start, size, count, True)  # noqa: B023
        assert places is None or (places.starts + places.lengths).max() <= start + size


def test_a_header_of_nonsense_ends():
    for body in (b"\xff" * 4096, b"\x1c" * 4096, b"\x15\x80" * 2000, b"", b"\x00"):
        assert find_places(lambda at, n: body[at : at + n], 0, len(body), 5, True) is None  # noqa: B023
