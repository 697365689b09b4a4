"""D17: an image of the test split that training has too, to the byte or re-encoded, is counted."""

import json

import numpy as np
from photos import encode, folder
from PIL import Image

from vitrail.cli import main
from vitrail.data.check import check


def picture(seed, side=48):
    """Larger and richer than the others: something a re-encoding leaves recognisable."""
    coarse = np.random.default_rng(seed).integers(0, 256, (7, 7, 3), dtype=np.uint8)
    return np.asarray(Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC))


def data(root):
    folder(root, splits=("train", "val"))
    for k in range(20):
        split = "train" if k < 12 else "val"
        (root / split / "cat" / f"p{k}.png").write_bytes(encode(picture(100 + k)))
    return root


def test_the_same_file_in_both_splits(tmp_path, capsys):
    data(tmp_path)
    for k in (0, 3, 4):
        copy = tmp_path / "val" / "cat" / f"renamed{k}.png"
        copy.write_bytes((tmp_path / "train" / "cat" / f"p{k}.png").read_bytes())
    assert main(["data", "check", str(tmp_path), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    (leak,) = report["leaks"]
    assert (leak["of"], leak["inside"], leak["exact"], leak["near"]) == ("train", "val", 3, 0)
    assert ["train/cat/p0.png", "val/cat/renamed0.png"] in leak["examples"]
    assert report["faults"] == {"leaked": 3}


def test_re_encoded_and_resized_copies(tmp_path):
    data(tmp_path)
    for k, (side, quality) in enumerate([(48, 75), (48, 40), (64, 90), (32, 85)]):
        small = Image.fromarray(picture(100 + k)).resize((side, side), Image.Resampling.BICUBIC)
        (tmp_path / "val" / "cat" / f"copy{k}.jpg").write_bytes(encode(np.asarray(small), "JPEG", quality=quality))
    report = check(tmp_path, progress=False)
    assert [(leak.exact, leak.near) for leak in report.leaks] == [(0, 4)] and report.exit_code == 3
    assert check(tmp_path, near=False, progress=False).ok


def test_a_picture_with_two_labels(tmp_path):
    data(tmp_path)
    (tmp_path / "train" / "dog" / "same.png").write_bytes((tmp_path / "train" / "cat" / "p0.png").read_bytes())
    report = check(tmp_path, progress=False)
    assert report.conflicts == 1 and report.faults == {"label-conflict": 1}
    assert report.conflict_examples == [["train/cat/p0.png (cat)", "train/dog/same.png (dog)"]]
    assert check(tmp_path, allow=["label-conflict"], progress=False).exit_code == 0


def test_copies_within_a_split_are_counted_and_no_fault(tmp_path):
    data(tmp_path)
    for k in range(2):
        (tmp_path / "train" / "cat" / f"again{k}.png").write_bytes((tmp_path / "train" / "cat" / "p0.png").read_bytes())
    report = check(tmp_path, progress=False)
    assert report.ok and report.splits[0].duplicates == 2 and report.splits[1].duplicates == 0


def test_healthy(tmp_path):
    report = check(data(tmp_path), progress=False)
    assert report.ok and report.leaks == [] and report.conflicts == 0
    assert all(split.duplicates == split.near_duplicates == 0 for split in report.splits)
