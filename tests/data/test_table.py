"""csv, tsv and jsonl: columns by their names, splits, several labels."""

import json

import pytest
from photos import folder, png

from vitrail.data.source import list_splits, open_source
from vitrail.errors import DataError


@pytest.fixture
def images(tmp_path):
    return folder(tmp_path)


def test_path_label_split(images):
    (images / "t.csv").write_text("path,label,split\ncat/0.png,cat,train\ndog/0.png,dog,train\ncat/1.png,cat,valid\n")
    assert list_splits(images / "t.csv") == ("train", "val")
    source = open_source(images / "t.csv", "train")
    assert source.classes == ("cat", "dog") and source.labels.tolist() == [0, 1] and source.read(1).data == png(3)
    assert open_source(images / "t.csv", "val").classes == ("cat", "dog")


def test_without_a_header_the_columns_are_path_label_split(images):
    (images / "t.csv").write_text("cat/0.png,3\ndog/0.png,0\n")
    source = open_source(images / "t.csv", allow="empty-class")
    assert source.labels.tolist() == [3, 0] and source.classes == ("0", "1", "2", "3")


def test_bom_crlf_quotes_and_separators_inside_names(images):
    (images / "t.csv").write_bytes('\ufeffimage,class\r\n\r\ncat/0.png,"tench, Tinca tinca"\r\n"dog/0.png","the ""dog"""\r\n'.encode())
    assert open_source(images / "t.csv").classes == ("tench, Tinca tinca", 'the "dog"')


def test_tsv_and_semicolons(images):
    (images / "t.tsv").write_text("file\tlabel\ncat/0.png\ta, b\n")
    assert open_source(images / "t.tsv").classes == ("a, b",)
    (images / "t.csv").write_text("file;label\ncat/0.png;a\n")
    assert open_source(images / "t.csv").classes == ("a",)


def test_jsonl_with_several_labels(images):
    rows = [{"file_name": "cat/0.png", "labels": ["cat", "red"]}, {"file_name": "dog/0.png", "labels": []}]
    (images / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    source = open_source(images / "t.jsonl")
    assert source.multilabel and source.classes == ("cat", "red") and source.labels == [(0, 1), ()]
    (images / "t.csv").write_text("path,labels\ncat/0.png,cat|red\ndog/0.png,dog\n")
    assert open_source(images / "t.csv").labels == [(0, 2), (1,)]


def test_columns_of_other_names_are_asked_for_in_the_address(images):
    (images / "t.csv").write_text("nr,where,what\n1,cat/0.png,x\n")
    with pytest.raises(DataError, match="known to hold paths"):
        open_source(images / "t.csv")
    assert open_source(f"{images / 't.csv'}?image=where&label=what").classes == ("x",)
    with pytest.raises(DataError, match=r"no column .wat.*did you mean .what"):
        open_source(f"{images / 't.csv'}?image=where&label=wat")


def test_one_table_a_split_and_a_table_in_a_folder(images):
    for split, name in (("train", "cat/0.png"), ("val", "dog/0.png")):
        (images / f"{split}.csv").write_text(f"path,label\n{name},x\n")
    assert list_splits(images) == ("train", "val")
    assert open_source(images, "val").id(0) == "dog/0.png"
    (images / "metadata.jsonl").write_text('{"file_name": "cat/1.png", "label": "y"}\n')
    assert open_source(images).id(0) == "cat/1.png"


def test_a_table_inside_each_split(images):
    folder(images / "hf", splits=("train", "validation"))
    for split in ("train", "validation"):
        (images / "hf" / split / "metadata.csv").write_text("file_name,label\ncat/0.png,x\ndog/1.png,y\n")
    assert list_splits(images / "hf") == ("train", "val")
    source = open_source(images / "hf", "val")
    assert source.classes == ("x", "y") and source.read(1).id == "validation/dog/1.png"
    assert source.read(1).data == (images / "hf" / "validation" / "dog" / "1.png").read_bytes()


def test_names_beside_the_table_number_the_labels(images):
    (images / "t.csv").write_text("path,label\ncat/0.png,1\ndog/0.png,0\n")
    (images / "classes.txt").write_text("dog\ncat\n")
    source = open_source(images / "t.csv")
    assert source.classes == ("dog", "cat") and source.labels.tolist() == [1, 0]


def test_a_number_in_a_table_is_a_name_first(images):
    (images / "classes.txt").write_text("1\n10\n2\n")
    (images / "t.csv").write_text("path,label\ncat/0.png,10\ndog/0.png,2\ncat/1.png,1\n")
    assert open_source(images / "t.csv").labels.tolist() == [1, 2, 0]


def test_absolute_paths(images, tmp_path):
    (tmp_path / "elsewhere.csv").write_text(f"path,label\n{images}/cat/0.png,cat\n")
    assert open_source(tmp_path / "elsewhere.csv").read(0).data == png(0)


def test_a_table_that_cannot_be_read_names_the_line(images):
    (images / "t.csv").write_text("path,label\ncat/0.png,a,b\n")
    with pytest.raises(DataError, match="line 2: 3 cells under 2 columns"):
        open_source(images / "t.csv")
    (images / "t.csv").write_bytes("path,label\ncat/0.png,caf\xe9\n".encode("latin1"))
    with pytest.raises(DataError, match="not UTF-8"):
        open_source(images / "t.csv")
    (images / "t.jsonl").write_text('{"path": "cat/0.png", "label": 1}\nnope\n')
    with pytest.raises(DataError, match="line 2"):
        open_source(images / "t.jsonl")
