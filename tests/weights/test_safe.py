"""The safetensors reader agrees with the format's own library, in both directions, and maps instead of copying."""

import io

import pytest
import torch
from safetensors.torch import load_file, save_file

from vitrail.errors import CheckpointError
from vitrail.weights.safe import open_safetensors, replace_file, write_safetensors

TENSORS = {
    "f32": torch.randn(3, 4),
    "scalar": torch.tensor(2.0),
    "empty": torch.zeros(0, 5),
    "bf16": torch.randn(7).to(torch.bfloat16),
    "i8": torch.arange(-3, 3, dtype=torch.int8),
    "flag": torch.tensor([True, False, True]),
    "f64": torch.randn(2, dtype=torch.float64),
}


def test_it_reads_what_the_library_writes(tmp_path):
    save_file(TENSORS, tmp_path / "x.safetensors", metadata={"format": "pt", "note": "ü"})
    archive = open_safetensors(tmp_path / "x.safetensors")
    assert archive.metadata["note"] == "ü"
    assert all(torch.equal(archive.read(name), tensor) and archive.read(name).dtype == tensor.dtype for name, tensor in TENSORS.items())


def test_the_library_reads_what_it_writes(tmp_path):
    with open(tmp_path / "x.safetensors", "wb") as stream:
        write_safetensors(stream, TENSORS, {"note": "ü"})
    back = load_file(tmp_path / "x.safetensors")
    assert list(open_safetensors(tmp_path / "x.safetensors").entries) == list(TENSORS)  # in the order given
    assert all(torch.equal(back[name], tensor) for name, tensor in TENSORS.items())


def test_data_begins_on_a_multiple_of_64():
    stream = io.BytesIO()
    write_safetensors(stream, TENSORS, {})
    assert (8 + int.from_bytes(stream.getvalue()[:8], "little")) % 64 == 0


def test_tensors_that_start_at_an_odd_byte_are_copied(tmp_path):
    tensors = {"a": torch.tensor([1], dtype=torch.int8), "b": torch.randn(4)}
    with open(tmp_path / "x.safetensors", "wb") as stream:
        write_safetensors(stream, tensors, {})
    assert torch.equal(open_safetensors(tmp_path / "x.safetensors").read("b"), tensors["b"])


def test_reading_maps_the_file_and_writing_to_a_tensor_stays_private(tmp_path):
    save_file({"x": torch.zeros(1000)}, tmp_path / "x.safetensors")
    archive = open_safetensors(tmp_path / "x.safetensors")
    first = archive.read("x")
    assert first.data_ptr() == archive.read("x").data_ptr()
    first.add_(1)
    assert not load_file(tmp_path / "x.safetensors")["x"].any()


def test_strided_tensors_are_written_as_they_read(tmp_path):
    x = torch.randn(3, 5).T
    with open(tmp_path / "x.safetensors", "wb") as stream:
        write_safetensors(stream, {"x": x}, {})
    assert torch.equal(load_file(tmp_path / "x.safetensors")["x"], x)


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path):
    path = tmp_path / "deep" / "x"
    replace_file(path, lambda stream: stream.write(b"one"))

    def breaks(stream):
        stream.write(b"tw")
        raise OSError(5, "Input/output error")

    with pytest.raises(CheckpointError, match="Input/output error"):
        replace_file(path, breaks)
    with pytest.raises(KeyError):
        replace_file(path, lambda stream: {}["a bug"])
    assert path.read_bytes() == b"one" and len(list(path.parent.iterdir())) == 1
