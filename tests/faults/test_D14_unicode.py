"""D14: names in any script and any form are listed, sorted alike everywhere, and printed on one line."""

import os

import pytest
from photos import png

from vitrail.data.source import open_source
from vitrail.errors import DataError

CLASSES = ["caf\u00e9", "\u05e9\u05dc\u05d5\u05dd", "\U0001f431", "new\nline", "Z", "a", "x" * 255]


def make(root, names):
    for name in names:
        (root / name).mkdir(parents=True)
        (root / name / "1.png").write_bytes(png(len(name)))
    return root


def test_all_are_classes_in_the_order_of_their_bytes(tmp_path):
    source = open_source(make(tmp_path, CLASSES))
    assert list(source.classes) == sorted(CLASSES, key=lambda name: name.encode())
    assert all(source.read(i).data for i in range(len(source)))


def test_composed_and_decomposed_names_give_the_same_data_set(tmp_path):
    nfc = open_source(make(tmp_path / "nfc", ["caf\u00e9", "d"]))
    nfd = open_source(make(tmp_path / "nfd", ["cafe\u0301", "d"]))
    assert nfc.classes == nfd.classes and list(nfc.ids) == list(nfd.ids)
    assert nfd.read(0).data  # under the name the disk knows
    assert nfc.labels.tolist() == nfd.labels.tolist()


@pytest.mark.parametrize("level", ["class", "file"])
def test_two_names_that_compose_to_one_are_refused(tmp_path, level):
    if level == "class":
        make(tmp_path, ["caf\u00e9", "cafe\u0301"])
    else:
        make(tmp_path, ["a"])
        for name in ("\u00e9.png", "e\u0301.png"):
            (tmp_path / "a" / name).write_bytes(png(1))
    with pytest.raises(DataError, match="name-collision"):
        open_source(tmp_path)


def test_bytes_that_are_no_utf8_are_kept_and_escaped(tmp_path):
    raw = os.path.join(os.fsencode(tmp_path), b"a")
    os.mkdir(raw)
    with open(os.path.join(raw, b"\xff\xfe.png"), "wb") as file:
        file.write(png(3))
    source = open_source(tmp_path)
    assert source.read(0).data == png(3) and source.fingerprint
    os.unlink(os.path.join(raw, b"\xff\xfe.png"))
    with pytest.raises(DataError) as caught:
        source.read(0)
    assert str(caught.value).isprintable() and "\\udcff" in str(caught.value)


def test_a_newline_in_a_name_does_not_break_a_message(tmp_path):
    make(tmp_path, ["a"])
    (tmp_path / "b\nc").mkdir()
    with pytest.raises(DataError, match=r"empty-class: 1 .*b\\nc"):
        open_source(tmp_path)
