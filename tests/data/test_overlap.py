"""Training images that the evaluation data hold too: found to the byte and to the eye, and left out."""

import csv

import numpy as np
import pytest

from vitrail.cli import main
from vitrail.data.encode import encode_png
from vitrail.data.overlap import overlap
from vitrail.data.source import open_source
from vitrail.errors import DataError, UsageError


def picture(k, size=64, quality=None):
    """A smooth picture of its own for every number, as PNG, or as JPEG of a quality."""
    import io

    from PIL import Image

    rng = np.random.default_rng(k)
    coarse = Image.fromarray(rng.integers(0, 255, (6, 6, 3), dtype=np.uint8))
    image = coarse.resize((size, size), Image.Resampling.BICUBIC)
    if quality is None:
        return encode_png(np.asarray(image))
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality)
    return out.getvalue()


@pytest.fixture
def folders(tmp_path):
    """Training pictures 0 … 19; the test set holds 3 as it is, twice, 7 as a small JPEG, and others."""
    for k in range(20):
        folder = tmp_path / "train set" / "train" / "ab"[k % 2]
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{k}.png").write_bytes(picture(k))
    test = {"x/same.png": picture(3), "y/again.png": picture(3), "x/small.jpg": picture(7, size=48, quality=80), "y/other.png": picture(99)}
    for name, data in test.items():
        path = tmp_path / "judge" / "test" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return tmp_path / "train set", tmp_path / "judge"


def test_copies_are_found_and_named_with_their_twins(folders, tmp_path):
    out = tmp_path / "lists" / "copies.csv"
    found = overlap(str(folders[0]), [str(folders[1])], out=out, progress=False)
    assert (found.images, found.excluded) == (20, 2)
    assert [(one.split, one.images, one.exact, one.near) for one in found.against] == [("test", 4, 1, 1)]
    rows = list(csv.DictReader(open(out)))
    assert {(row["image"].rsplit("/")[-1], row["kind"]) for row in rows} == {("3.png", "exact"), ("7.png", "near")}
    assert {row["twin"].rsplit("/")[-1] for row in rows} <= {"same.png", "again.png", "small.jpg"}
    assert "?exclude=" in str(found)
    assert overlap(str(folders[0]), [str(folders[1])], near=False, progress=False).excluded == 1


def test_the_list_leaves_them_out_of_every_verb(folders, tmp_path):
    out = tmp_path / "copies.csv"
    overlap(str(folders[0]), [str(folders[1])], out=out, progress=False)
    clean = open_source(f"{folders[0]}?exclude={out}", "train")
    names = {clean.id(i).rsplit("/")[-1] for i in range(len(clean))}
    assert len(clean) == 18 and not names & {"3.png", "7.png"}
    assert any("2 of 20 images are left out" in note for note in clean.notes)
    assert [clean.read(i).label for i in range(18)] == clean.labels.tolist()
    assert clean.fingerprint != open_source(str(folders[0]), "train").fingerprint
    assert overlap(clean, [str(folders[1])], progress=False).excluded == 0
    half = open_source(f"{folders[0]}?exclude={out}", "train[:50%]")
    assert len(half) == 9


def test_a_plain_list_of_ids_does_too(folders, tmp_path):
    whole = open_source(str(folders[0]), "train")
    path = tmp_path / "ids.txt"
    path.write_text(f"# not these\n{whole.id(0)}\n{whole.id(5)}\nno such image\n")
    clean = open_source(f"{folders[0]}?exclude={path}", "train")
    assert len(clean) == 18 and whole.id(0) not in {clean.id(i) for i in range(18)}
    path.write_text("\n".join(whole.id(i) for i in range(20)))
    with pytest.raises(DataError, match="leaves no image"):
        open_source(f"{folders[0]}?exclude={path}", "train")
    with pytest.raises(DataError, match="nowhere"):
        open_source(f"{folders[0]}?exclude=nowhere.csv", "train")


def test_from_the_command_line(folders, tmp_path, capsys):
    out = tmp_path / "copies.csv"
    assert main(["data", "overlap", str(folders[0]), "--against", str(folders[1]), "--out", str(out)]) == 0
    assert "2 training images are in the evaluation data" in capsys.readouterr().out
    with pytest.raises(UsageError):
        overlap(str(folders[0]), [])
