"""C09: malformed safetensors are refused within a tenth of a second, in one line that says why."""

import json
import struct
import time

import pytest
import torch

import vitrail
from vitrail.errors import CheckpointError
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build


def file_of(header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def entry(shape=(2,), offsets=(0, 8), dtype="F32"):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


EIGHT = bytes(8)
FORMS = {
    "empty": (b"", "not a weight file|too few"),
    "too short": (b"\x00\x00\x00", "too few|not a weight file"),
    "header longer than the file": (file_of({"a": entry()}, EIGHT, length=10**6), "header of 1,000,000 bytes"),
    "header of 2**63 bytes": (file_of({"a": entry()}, EIGHT, length=2**63), "header of"),
    "no json": (file_of(b"{nothing}", EIGHT), "no JSON"),
    "no object": (file_of(b'["a"]    ', EIGHT), "no JSON object|not a weight file"),
    "bad utf-8": (file_of(b'{"a\xff\xfe": 1}', EIGHT), "no JSON"),
    "the same key twice": (
        file_of(b'{"a":' + json.dumps(entry()).encode() + b',"a":' + json.dumps(entry()).encode() + b"}", EIGHT),
        "twice",
    ),
    "no offsets": (file_of({"a": {"dtype": "F32", "shape": [2]}}, EIGHT), "lacks"),
    "unknown dtype": (file_of({"a": entry(dtype="F12")}, EIGHT), "unknown dtype"),
    "negative shape": (file_of({"a": entry(shape=(-2,))}, EIGHT), "shape"),
    "shape that overflows": (file_of({"a": entry(shape=(2**62, 4))}, EIGHT), "needs"),
    "shape of booleans": (file_of({"a": {"dtype": "F32", "shape": [True, 2], "data_offsets": [0, 8]}}, EIGHT), "shape"),
    "offsets backwards": (file_of({"a": entry(offsets=(8, 0))}, EIGHT), "offsets"),
    "offsets past the end": (file_of({"a": entry(shape=(4,), offsets=(0, 16))}, EIGHT), "take 16 bytes"),
    "size against shape": (file_of({"a": entry(shape=(3,))}, EIGHT), "needs 12 bytes"),
    "overlap": (file_of({"a": entry(), "b": entry(offsets=(4, 12))}, bytes(12)), "starts at byte"),
    "a hole": (file_of({"a": entry(), "b": entry(offsets=(12, 20))}, bytes(20)), "starts at byte"),
    "bytes left over": (file_of({"a": entry()}, bytes(9)), "take 8 bytes"),
    "metadata that is no text": (file_of({"__metadata__": {"a": 1}, "a": entry()}, EIGHT), "metadata"),
    "deep nesting": (file_of(b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}", EIGHT), "no JSON|lacks"),
}


@pytest.mark.parametrize("form", FORMS)
def test_malformed_safetensors_are_refused_at_once_in_one_line(form, tmp_path):
    content, why = FORMS[form]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match=why) as refusal:
        vitrail.load_model(path)
    assert time.perf_counter() - start < 0.1
    assert "\n" not in refusal.value.message
    assert str(path) in refusal.value.message


def test_a_large_header_full_of_repetitions_costs_no_more_than_its_size(tmp_path):
    path = tmp_path / "model.safetensors"
    path.write_bytes(file_of(b"{" + b",".join(b'"a":1' for _ in range(200_000)) + b"}"))
    start = time.perf_counter()
    with pytest.raises(CheckpointError, match="twice"):
        vitrail.load_model(path)
    assert time.perf_counter() - start < 1


def test_the_healthy_twin_loads(tmp_path):
    model = build(ViTConfig(width=64, depth=1, heads=1, mlp_width=64, patch_size=8, image_size=16, classes=2))
    path = vitrail.save_model(model, tmp_path / "model.safetensors")
    assert torch.equal(vitrail.load_model(path).patch.weight, model.patch.weight)
