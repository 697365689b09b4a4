"""`predict` answers anything it is pointed at, skips what is no image, and goes on where it was stopped."""

import csv
import functools
import http.server
import json
import os
import subprocess
import sys
import threading

import numpy as np
import pytest
from serving_harness import CLASSES, encoded, picture, png

from vitrail.errors import DataError, UsageError
from vitrail.ship.predict import Predictor, load_predictors, predict
from vitrail.weights.load import load_model


@pytest.fixture(scope="module")
def predictor(weights):
    return Predictor(load_model(weights))


@pytest.fixture
def photos(tmp_path):
    """Ten images in two folders, one file that is none, one that is hidden."""
    for folder, format in (("a", "PNG"), ("b", "JPEG")):
        (tmp_path / "photos" / folder).mkdir(parents=True)
        for k in range(5):
            (tmp_path / "photos" / folder / f"{k}.{format.lower()}").write_bytes(encoded(picture(k), format))
    (tmp_path / "photos" / "b" / "broken.jpg").write_bytes(b"<html>")
    (tmp_path / "photos" / ".hidden.png").write_bytes(png())
    return tmp_path / "photos"


def test_the_probabilities_are_the_softmax_of_the_models_own_logits(predictor, photos):
    path = photos / "a" / "3.png"
    import torch

    with torch.no_grad():
        logits = predictor.model(predictor.preprocess(path)[None])[0].double()
    row = predict(predictor, str(path), top=10).rows[0]
    expected = {CLASSES[i]: p for i, p in enumerate(logits.softmax(0).tolist())}
    assert {c["class"]: c["probability"] for c in row.classes} == pytest.approx(expected, abs=1e-12)
    chances = [c["probability"] for c in row.classes]
    assert chances == sorted(chances, reverse=True)


def test_a_folder_gives_every_image_below_it_in_order_and_names_what_it_skipped(predictor, photos):
    result = predict(predictor, photos)
    assert [os.path.relpath(row.image, photos) for row in result.rows] == [
        f"{f}/{k}.{e}" for f, e in (("a", "png"), ("b", "jpeg")) for k in range(5)
    ]
    assert (result.images, result.skipped) == (10, 1)
    assert result.bad[0]["reason"] == "unrecognised" and result.bad[0]["image"].endswith("broken.jpg")


def test_lists_patterns_arrays_bytes_and_sources_are_taken(predictor, photos, tmp_path):
    names = sorted(str(p) for p in (photos / "a").iterdir())
    listed = tmp_path / "list.txt"
    listed.write_text("\n".join(names) + "\n")
    expected = [row.classes for row in predict(predictor, names).rows]
    assert [row.classes for row in predict(predictor, str(listed)).rows] == expected
    assert [row.classes for row in predict(predictor, str(photos / "a" / "*.png")).rows] == expected
    assert [row.classes for row in predict(predictor, "-", stdin=iter(f"{n}\n" for n in names)).rows] == expected
    assert [row.classes for row in predict(predictor, [picture(k) for k in range(5)]).rows] == expected
    assert [row.classes for row in predict(predictor, [png(k) for k in range(5)]).rows] == expected
    shapes = predict(predictor, "builtin:shapes?n=6&size=32&classes=4", split="train")
    assert shapes.images == 6 and all(row.label for row in shapes.rows)


def test_urls_are_fetched_and_one_that_is_gone_is_skipped(predictor, photos):
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *args):
            pass

    site = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(photos)))
    threading.Thread(target=site.serve_forever, daemon=True).start()
    base = f"http://127.0.0.1:{site.server_port}"
    result = predict(predictor, [f"{base}/a/0.png", f"{base}/a/none.png"])
    site.shutdown()
    assert [row.image for row in result.rows] == [f"{base}/a/0.png"]
    assert result.bad[0]["reason"] == "io"


def test_nothing_readable_is_an_error_and_so_is_nothing_at_all(predictor, photos, tmp_path):
    with pytest.raises(DataError, match="none of 1 files could be read"):
        predict(predictor, str(photos / "b" / "broken.jpg"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError):
        predict(predictor, tmp_path / "empty")


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
@pytest.mark.parametrize("embed", [False, True])
def test_the_three_file_formats_say_the_same(predictor, photos, tmp_path, ending, embed):
    plain = predict(predictor, photos, top=3, embed=embed)
    out = tmp_path / f"out.{ending}"
    result = predict(predictor, photos, top=3, embed=embed, out=out)
    assert (result.images, result.skipped) == (10, 1)
    found = {"csv": from_csv, "jsonl": from_jsonl, "parquet": from_parquet}[ending](out, embed)
    for row, (name, values) in zip(plain.rows, found, strict=True):
        assert row.image == name
        expected = list(row.features) if embed else [c["probability"] for c in row.classes]
        assert values == pytest.approx(expected, rel=1e-5)
    skipped = [json.loads(line) for line in (tmp_path / f"out.{ending}.skipped.jsonl").read_text().splitlines()]
    assert [s["reason"] for s in skipped] == ["unrecognised"]
    assert not (tmp_path / f"out.{ending}.partial").exists()


def from_csv(path, embed):
    for row in csv.reader(path.open().readlines()[1:]):
        yield row[0], [float(v) for v in (row[1:] if embed else row[2::2])]


def from_jsonl(path, embed):
    for row in map(json.loads, path.read_text().splitlines()):
        yield row["image"], row["features"] if embed else [c["probability"] for c in row["classes"]]


def from_parquet(path, embed):
    import pyarrow.parquet

    for row in pyarrow.parquet.read_table(path).to_pylist():
        yield row["image"], row["features" if embed else "probabilities"]


def test_a_killed_run_goes_on_and_ends_with_the_same_bytes(weights, tmp_path, monkeypatch):
    names = tmp_path / "list.txt"
    for k in range(24):
        (tmp_path / f"{k:02}.png").write_bytes(png(k) if k != 7 else b"broken")
    names.write_text("\n".join(str(tmp_path / f"{k:02}.png") for k in range(24)))
    code = (
        "import sys, vitrail.ship.predict as p; p.PIECE_ROWS = 4\n"
        f"r = p.predict({str(weights)!r}, {str(names)!r}, out=sys.argv[1], batch_size=4)\n"
        "print(r.images, r.skipped, r.resumed_at)"
    )

    def run(out, **env):
        return subprocess.run([sys.executable, "-c", code, out], capture_output=True, text=True, env={**os.environ, **env})

    whole, killed = tmp_path / "whole.csv", tmp_path / "killed.csv"
    assert run(str(whole)).stdout.split() == ["23", "1", "0"]
    assert run(str(killed), VITRAIL_FAULT="predict.piece:3=kill").returncode == -9
    assert not killed.exists()
    again = run(str(killed))
    assert again.returncode == 0, again.stderr
    # pieces of at least four rows: 0-4, 4-12 (one of its first batch is broken), 12-16
    assert again.stdout.split() == ["8", "1", "16"], "it began where the third piece ended, and counts all that was skipped"
    assert killed.read_bytes() == whole.read_bytes()
    assert (tmp_path / "killed.csv.skipped.jsonl").read_bytes() == (tmp_path / "whole.csv.skipped.jsonl").read_bytes()


def test_half_a_result_of_another_job_is_refused(predictor, photos, tmp_path, monkeypatch):
    from vitrail.runtime import faults

    out = tmp_path / "out.csv"
    faults.arm("predict.piece:1=raise:EIO")
    try:
        with pytest.raises(OSError):
            predict(predictor, photos, out=out)
    finally:
        faults.arm(None)
    with pytest.raises(UsageError, match=r"part of another job \(different: top\)"):
        predict(predictor, photos, out=out, top=2)
    assert predict(predictor, photos, out=out).resumed_at == 11
    with pytest.raises(UsageError, match="exists"):
        predict(predictor, photos, out=out)
    assert predict(predictor, photos, out=out, overwrite=True).resumed_at == 0


def test_ranks_write_their_own_runs_and_together_everything(predictor, photos, tmp_path, monkeypatch):
    for rank in range(3):
        for name, value in {"RANK": rank, "WORLD_SIZE": 3}.items():
            monkeypatch.setenv(name, str(value))
        predict(predictor, photos, out=tmp_path / "out.csv")
    for name in ("RANK", "WORLD_SIZE"):
        monkeypatch.delenv(name)
    predict(predictor, photos, out=tmp_path / "one.csv")
    parts = [(tmp_path / f"out-0000{rank}-of-00003.csv").read_text().splitlines() for rank in range(3)]
    together = [parts[0][0], *(line for part in parts for line in part[1:])]
    assert rounded(together) == rounded((tmp_path / "one.csv").read_text().splitlines())


def rounded(lines):
    """Batches are cut elsewhere, so the last digits may differ."""
    return [[cell if not cell.startswith("0.") else round(float(cell), 4) for cell in line.split(",")] for line in lines]


def test_memory_does_not_grow_with_the_number_of_images(predictor):
    """What is decoded ahead is bounded: a reader that counts sees at most a window."""
    from vitrail.ship.inputs import Inputs, Memory
    from vitrail.ship.predict import answers

    asked = []

    class Counting(Memory):
        def item(self, i, index):
            asked.append(i)
            return super().item(i, index)

    stream = answers(predictor, Inputs([Counting([picture(0)] * 1000)]), 0, 1000, batch_size=8)
    for number, batch in zip(range(5), stream):
        assert len(asked) <= batch.stop + 3 * 8
        assert number < 5
    stream.close()
    assert len(asked) < 100


def test_two_models_of_one_name_get_numbers(weights):
    found = load_predictors([str(weights), str(weights)])
    assert list(found) == ["tiny", "tiny-2"]


def test_the_command_prints_a_table_and_json(weights, photos):
    def run(*arguments):
        return subprocess.run([sys.executable, "-m", "vitrail", "predict", str(weights), *arguments], capture_output=True, text=True)

    shown = run(str(photos / "a"), "--top", "2")
    assert shown.returncode == 0 and len(shown.stdout.splitlines()) == 5 and " %" in shown.stdout
    body = json.loads(run(str(photos), "--json").stdout)
    assert (body["images"], body["skipped"], len(body["predictions"])) == (10, 1, 10)
    assert np.isclose(sum(c["probability"] for c in body["predictions"][0]["classes"]), 1, atol=0.2)
