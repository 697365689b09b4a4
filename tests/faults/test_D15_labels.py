"""D15: what can be wrong with a table of labels is counted exactly, exits 3, and is not trained on unasked."""

import json

import pytest
from photos import folder, png

from vitrail.cli import main
from vitrail.data.source import open_source
from vitrail.errors import DataError

ROWS = [
    *(f"cat/{i}.png,cat" for i in range(10)),
    *(f'"dog/{i}.png","dog"' for i in range(10)),
]


@pytest.fixture
def images(tmp_path):
    folder(tmp_path, count=10)
    (tmp_path / "classes.txt").write_text("cat\ndog\n")
    return tmp_path


def table(images, rows, bom=True, ends="\r\n"):
    text = ends.join(["path,label", *rows]) + ends
    (images / "t.csv").write_bytes((b"\xef\xbb\xbf" if bom else b"") + text.encode())
    return str(images / "t.csv")


FAULTS = {
    "missing-file": (["gone/1.png,cat", "gone/2.png,dog", "cat/99.png,cat"], 3),
    "duplicate-id": (["cat/0.png,cat", "cat/1.png,dog"], 2),
    "unknown-class": (['cat/x.png,"cat, wild"', "cat/y.png,horse"], 2),
    "missing-label": (["cat/x.png,", "cat/y.png,   "], 2),
    "missing-image": ([",cat"], 1),
}


@pytest.mark.parametrize("kind", FAULTS)
def test_each_fault_is_counted_and_refused_until_allowed(images, capsys, kind):
    rows, count = FAULTS[kind]
    for extra in ("x", "y"):
        if f"cat/{extra}.png" in " ".join(rows):
            (images / "cat" / f"{extra}.png").write_bytes(png(900 + ord(extra)))
    where = table(images, ROWS + rows)
    assert main(["data", "check", where, "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == {kind: count} and report["faults"] == {kind: count}
    with pytest.raises(DataError, match=f"{kind}: {count}") as caught:
        open_source(where)
    assert caught.value.exit_code == 3 and f"--allow {kind}" in caught.value.hint
    assert open_source(where, allow=kind).labels.tolist() == [0] * 10 + [1] * 10


def test_files_without_a_row_are_counted_and_borne(images, capsys):
    where = table(images, ROWS[2:])
    assert main(["data", "check", where, "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report["problems"] == {"extra-file": 2} and report["ok"]
    assert len(open_source(where)) == 18


def test_all_at_once_add_up(images, capsys):
    for extra in ("x", "y"):
        (images / "cat" / f"{extra}.png").write_bytes(png(900 + ord(extra)))
    rows = [row for rows, _ in FAULTS.values() for row in rows]
    assert main(["data", "check", table(images, ROWS + rows), "--json"]) == 3
    found = json.loads(capsys.readouterr().out)["problems"]
    assert found["missing-file"] == 3 and found["missing-image"] == 1 and found["unknown-class"] == 2
    assert found["duplicate-id"] == 4  # x and y are listed twice as well


@pytest.mark.parametrize("bom", [True, False])
@pytest.mark.parametrize("ends", ["\n", "\r\n"])
def test_healthy_with_any_line_ends_and_mark(images, capsys, bom, ends):
    where = table(images, ROWS, bom, ends)
    assert main(["data", "check", where]) == 0
    source = open_source(where)
    assert source.problems == () and source.labels.tolist() == [0] * 10 + [1] * 10
    assert "nothing is wrong" in capsys.readouterr().out
