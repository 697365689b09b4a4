"""C04 and C05: flipped bits, missing and cut files: named, passed over loudly, or refused when strict; looking never raises."""

import shutil
import warnings

import pytest
import torch

from vitrail.runtime.disk import write_tensors
from vitrail.train.store import CheckpointStore, Damaged, verify


def fill(draft):
    draft.add("model.safetensors", lambda path: write_tensors(path, {"w": torch.arange(500.0)}))
    draft.add("optimizer.safetensors", lambda path: write_tensors(path, {"m": torch.arange(500.0)}))
    draft.add_json("state.json", {"step": 1})


@pytest.fixture
def store(tmp_path):
    made = CheckpointStore(tmp_path / "checkpoints")
    made.commit(1, fill)
    made.commit(2, fill)
    return made


FILES = ("model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json")


@pytest.mark.parametrize("name", FILES)
def test_C04_one_flipped_bit_anywhere_is_found_named_and_passed_over(store, name):
    path = store.folder / "step-00000002" / name
    whole = path.read_bytes()
    for place in (0, len(whole) // 3, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:place] + bytes([whole[place] ^ 0x10]) + whole[place + 1 :])
        if name == "MANIFEST.json" and whole[place : place + 1].isspace():
            continue  # a flip in white space need not say anything else
        with pytest.raises(Damaged, match="." if name == "MANIFEST.json" else name.replace(".", r"\.")):
            verify(path.parent)
        with pytest.warns(UserWarning, match="CHECKPOINT DAMAGED, falling back"):
            assert store.latest().step == 1
        with pytest.raises(Damaged):
            store.latest(strict=True)
    path.write_bytes(whole)
    assert store.latest(strict=True).step == 2


def missing(folder):
    (folder / "model.safetensors").unlink()


def cut(folder):
    path = folder / "optimizer.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def no_manifest(folder):
    (folder / "MANIFEST.json").unlink()


def half_manifest(folder):
    path = folder / "MANIFEST.json"
    path.write_bytes(path.read_bytes()[:40])


def odd_manifest(folder):
    (folder / "MANIFEST.json").write_text('{"files": {"state.json": [1]}}')


def emptied(folder):
    shutil.rmtree(folder)
    folder.mkdir()


@pytest.mark.parametrize("harm", [missing, cut, no_manifest, half_manifest, odd_manifest, emptied])
def test_C05_missing_and_cut_files_are_passed_over(store, harm):
    harm(store.folder / "step-00000002")
    with pytest.warns(UserWarning, match="step-00000002"):
        assert store.latest().step == 1


@pytest.mark.parametrize("text", [None, "", "step-99999999", "\x00\xff", "../../etc"])
def test_C05_LATEST_is_only_a_hint(store, text):
    (store.folder / "LATEST").unlink()
    if text is not None:
        (store.folder / "LATEST").write_text(text)
    assert store.latest().step == 2


def test_C05_strangers_among_the_checkpoints_do_not_matter(store):
    (store.folder / "step-00000009").write_text("a file, not a directory")
    (store.folder / "step-abc").mkdir()
    (store.folder / "step-00000003.bak").mkdir()
    assert store.latest().step == 2


def test_C05_with_everything_damaged_there_is_none(store):
    for step in (1, 2):
        missing(store.folder / f"step-0000000{step}")
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        assert store.latest() is None
    assert len([w for w in said if "DAMAGED" in str(w.message)]) == 2


def test_C04_a_run_falls_back_and_ends_the_same(tiny, tmp_path):
    out = tmp_path / "run"
    assert tiny.run(out, env={"VITRAIL_FAULT": "step.done:8=kill"}).code == -9
    path = out / "checkpoints/step-00000006/ema.safetensors"
    whole = path.read_bytes()
    path.write_bytes(whole[:-3] + bytes([whole[-3] ^ 1]) + whole[-2:])
    strict = tiny.run(out, "--strict")
    assert strict.code == 5 and "ema.safetensors" in strict.text and "SHA-256" in strict.text
    done = tiny.run(out)
    assert done.code == 0 and "CHECKPOINT DAMAGED" in done.text and "resuming from step 3" in done.text
    assert tiny.digest(out) == tiny.digest(tiny.golden())
