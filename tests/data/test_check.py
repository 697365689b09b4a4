"""`data check`: what it counts, and that it says so in text, JSON and exit codes."""

import itertools
import json

import numpy as np
import pytest
from photos import array, encode, folder, jpeg

from vitrail.cli import main
from vitrail.data import likeness
from vitrail.data.check import check
from vitrail.data.likeness import near_pairs, print_of
from vitrail.errors import UsageError


def test_a_healthy_folder(tmp_path, capsys):
    folder(tmp_path, ("ant", "bee"), count=4, splits=("train", "val"))
    assert main(["data", "check", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert "train: 8 images, 2 classes" in out and "val: 8 images" in out and "nothing is wrong" in out


def test_corrupt_files_are_named_with_their_reason(tmp_path, capsys):
    folder(tmp_path)
    (tmp_path / "cat" / "cut.jpg").write_bytes(jpeg(9, 64, 64)[:-200])
    (tmp_path / "cat" / "empty.png").touch()
    (tmp_path / "dog" / "page.jpg").write_bytes(b"<html>not found</html>")
    assert main(["data", "check", str(tmp_path), "--json"]) == 3
    report = json.loads(capsys.readouterr().out)
    (split,) = report["splits"]
    assert split["images"] == 9 and split["corrupt"] == {"truncated": 1, "empty": 1, "unrecognised": 1}
    assert any("cat/cut.jpg" in line for line in split["corrupt_examples"])
    assert report["faults"] == {"corrupt": 3} and not report["ok"]
    assert main(["data", "check", str(tmp_path), "--allow", "corrupt"]) == 0


def test_formats_sizes_balance_and_animation(tmp_path):
    folder(tmp_path, count=2)
    (tmp_path / "cat" / "wide.jpg").write_bytes(jpeg(20, 40, 300))
    frames = [__import__("PIL.Image").Image.fromarray(array(k)) for k in range(3)]
    frames[0].save(tmp_path / "cat" / "moving.gif", save_all=True, append_images=frames[1:])
    (split,) = check(tmp_path, progress=False).splits
    assert split.formats == {"PNG": 4, "JPEG": 1, "GIF": 1} and split.animated == 1
    assert split.shorter_side == {"< 32": 5, "32 to 63": 1}
    assert split.sizes["smallest"] == [16, 16] and split.sizes["largest"] == [300, 40]
    assert split.balance == {"fewest": ["dog", 2], "median": 3.0, "most": ["cat", 4], "empty": 0}


def test_arrays_and_built_in_data():
    report = check("builtin:shapes?n=60&test=20", progress=False)
    assert [s.images for s in report.splits] == [60, 20] and report.ok
    images = np.stack([array(0, 40, 40), array(1, 40, 40), array(0, 40, 40)])
    assert check((images, [0, 1, 0]), progress=False).splits[0].duplicates == 1


def test_one_split_or_a_part_of_one(tmp_path):
    folder(tmp_path, splits=("train", "val"))
    assert [s.split for s in check(tmp_path, split="train[:50%]", progress=False).splits] == ["train[:50%]"]


def test_an_unknown_fault_cannot_be_allowed(tmp_path):
    with pytest.raises(UsageError, match="did you mean 'leaked'"):
        check(folder(tmp_path), allow=["leak"], progress=False)


def test_threads_change_nothing(tmp_path):
    folder(tmp_path, count=40)
    one, four = (check(tmp_path, workers=n, progress=False).to_dict() for n in (1, 4))
    for report in (one, four):
        del report["seconds"], report["images_per_second"]
    assert one == four


@pytest.mark.parametrize("flips", range(7))
def test_every_pair_of_hashes_within_the_bound_is_met(flips):
    """Any choice of flipped bits up to the bound leaves one of the four words with at most one flip."""
    rng = np.random.default_rng(flips)
    bits = rng.integers(0, 2**63, 400).astype(np.uint64)
    twins = bits.copy()
    for i in range(400):
        for b in rng.choice(64, flips, replace=False):
            twins[i] ^= np.uint64(1) << np.uint64(b)
    thumbs = np.repeat(rng.integers(0, 256, (400, 144)).astype(np.uint8), 2, axis=0)
    pairs = near_pairs(np.stack([bits, twins], 1).ravel(), thumbs)
    assert pairs.tolist() == [[2 * i, 2 * i + 1] for i in range(400)]


def test_bits_are_counted_alike_by_any_numpy(monkeypatch):
    words = np.array([0, 1, 2**63, 2**64 - 1, 0xF0F0], np.uint64)
    assert likeness._ones(words).tolist() == [0, 1, 1, 64, 8]
    monkeypatch.delattr(np, "bitwise_count", raising=False)
    assert likeness._ones(words).tolist() == [0, 1, 1, 64, 8]


def test_plain_surfaces_do_not_resemble_each_other():
    plain = [print_of(np.full((32, 32, 3), grey, np.uint8)) for grey in (10, 11, 12)]
    assert len(near_pairs(np.array([p.bits for p in plain], np.uint64), np.array([p.thumb for p in plain]))) == 0


def test_a_print_survives_encoding_and_size():
    from PIL import Image

    from vitrail.data.decode import decode

    rng = np.random.default_rng(0)
    pictures = [
        np.asarray(Image.fromarray(rng.integers(0, 256, (8, 8, 3), dtype=np.uint8)).resize((80, 80), Image.Resampling.BICUBIC))
        for _ in range(30)
    ]
    copies = [np.asarray(Image.fromarray(p).resize((57, 57), Image.Resampling.BICUBIC)) for p in pictures]
    copies = [decode(encode(copy, "JPEG", quality=60)) for copy in copies]
    prints = [print_of(p) for p in itertools.chain(pictures, copies)]
    pairs = near_pairs(np.array([p.bits for p in prints], np.uint64), np.array([p.thumb for p in prints]))
    assert pairs.tolist() == [[i, i + 30] for i in range(30)]


def test_progress_names_an_end(capfd):
    check("builtin:shapes?n=600&size=16&test=10", near=False)
    assert "left" in capfd.readouterr().err


def test_more_than_twenty_are_counted_and_the_rest_is_said(tmp_path):
    folder(tmp_path, ("a", "b"), count=30)
    for k in range(25):
        (tmp_path / "a" / f"{k}.png").write_bytes(b"no image")
    report = check(tmp_path, progress=False)
    assert len(report.splits[0].corrupt_examples) == 20 and "… and 5 more" in str(report)
    assert "30 each" in str(report)


def test_copies_and_likenesses_are_listed_apart(tmp_path):
    folder(tmp_path, ("a",), count=3)
    large = array(50, 96, 96)
    for name, data in (("x.png", encode(large)), ("y.png", encode(large)), ("z.jpg", encode(large, "JPEG", quality=85))):
        (tmp_path / "a" / name).write_bytes(data)
    split = check(tmp_path, progress=False).splits[0]
    assert split.duplicate_examples == [["a/x.png", "a/y.png"]] and split.near_examples == [["a/x.png", "a/z.jpg"]]


def test_everything_can_be_allowed(tmp_path):
    folder(tmp_path, ("a",), count=2)
    (tmp_path / "a" / "bad.png").write_bytes(b"no image")
    (tmp_path / "empty").mkdir()
    assert not check(tmp_path, progress=False).ok and check(tmp_path, allow=["all"], progress=False).ok
