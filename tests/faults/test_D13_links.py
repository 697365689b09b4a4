"""D13: loops, dangling links and links out of the folder: every real file once, nothing hangs, nothing leaks in."""

import pytest
from photos import folder, png

from vitrail.data.source import open_source
from vitrail.errors import DataError


def test_healthy_links_inside_the_folder_are_followed(tmp_path):
    folder(tmp_path, splits=("train",))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "x.png").write_bytes(png(50))
    (tmp_path / "train" / "cat" / "x.png").symlink_to(tmp_path / "more" / "x.png")
    (tmp_path / "more" / "shelf").mkdir()
    (tmp_path / "more" / "shelf" / "y.png").write_bytes(png(51))
    (tmp_path / "more" / "x.png").rename(tmp_path / "more" / "shelf" / "x.png")
    (tmp_path / "train" / "cat" / "x.png").unlink()
    (tmp_path / "train" / "cat" / "x.png").symlink_to("../../more/shelf/x.png")
    source = open_source(tmp_path, "train")
    assert len(source) == 7 and source.read(3).data == png(50) and source.id(3) == "train/cat/x.png"
    assert source.problems == ()


def test_a_loop_ends_and_no_file_is_listed_twice(tmp_path):
    folder(tmp_path)
    (tmp_path / "cat" / "loop").symlink_to(tmp_path)
    (tmp_path / "cat" / "self").symlink_to(tmp_path / "cat")
    (tmp_path / "dog" / "again.png").symlink_to(tmp_path / "cat" / "0.png")
    (tmp_path / "kitten").symlink_to(tmp_path / "cat")
    source = open_source(tmp_path)
    assert len(source) == 6 and source.classes == ("cat", "dog")


def test_a_dangling_link_is_reported_and_borne(tmp_path):
    folder(tmp_path)
    (tmp_path / "cat" / "gone.png").symlink_to(tmp_path / "nowhere.png")
    source = open_source(tmp_path)
    assert len(source) == 6
    assert [(p.kind, p.count, p.examples) for p in source.problems] == [("dangling-link", 1, ("cat/gone.png",))]


@pytest.mark.parametrize("what", ["file", "folder", "split"])
def test_a_link_out_of_the_folder_needs_permission(tmp_path, what):
    folder(tmp_path / "data", splits=("train",))
    folder(tmp_path / "outside", ("cat", "dog"), first=50)
    if what == "file":
        (tmp_path / "data" / "train" / "cat" / "x.png").symlink_to(tmp_path / "outside" / "cat" / "0.png")
    elif what == "folder":
        (tmp_path / "data" / "train" / "cat" / "more").symlink_to(tmp_path / "outside" / "cat")
    else:
        (tmp_path / "data" / "val").symlink_to(tmp_path / "outside")
    split = "val" if what == "split" else "train"
    with pytest.raises(DataError, match="outside-root: 1") as caught:
        open_source(tmp_path / "data", split)
    assert caught.value.exit_code == 3 and "--follow-links" in caught.value.hint
    source = open_source(tmp_path / "data", split, follow_links=True)
    assert len(source) == {"file": 7, "folder": 9, "split": 6}[what]
    assert open_source(tmp_path / "data", "train", allow="outside-root").labels.tolist() == [0] * 3 + [1] * 3


def test_the_folder_itself_may_be_a_link(tmp_path):
    folder(tmp_path / "disk")
    (tmp_path / "data").symlink_to(tmp_path / "disk")
    assert len(open_source(tmp_path / "data")) == 6
