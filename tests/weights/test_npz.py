"""The npz reader agrees with numpy on what numpy writes, and with nobody on what is damaged."""

import io
import zipfile

import numpy as np
import pytest
import torch

from vitrail.errors import CheckpointError
from vitrail.weights.npz import is_npz, open_npz, write_npz

ARRAYS = {
    "a/kernel": np.arange(24, dtype=np.float32).reshape(2, 3, 4),
    "scalar": np.float64(3.5),
    "empty": np.zeros((0, 3), np.float32),
    "half": np.arange(5, dtype=np.float16),
    "flags": np.array([True, False]),
    "counts": np.arange(-3, 3, dtype=np.int64),
}


@pytest.mark.parametrize("save", [np.savez, np.savez_compressed])
def test_it_reads_what_numpy_writes(save, tmp_path):
    save(tmp_path / "x.npz", **ARRAYS)
    archive = open_npz(tmp_path / "x.npz")
    assert archive.container == "npz" and set(archive.entries) == set(ARRAYS)
    for name, array in ARRAYS.items():
        assert archive.entries[name].shape == array.shape
        assert np.array_equal(archive.read(name).numpy(), array)


def test_fortran_order_and_foreign_byte_order_are_read_as_they_mean(tmp_path):
    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    np.savez(tmp_path / "x.npz", fortran=np.asfortranarray(x), big=x.astype(">f4"))
    archive = open_npz(tmp_path / "x.npz")
    assert np.array_equal(archive.read("fortran").numpy(), x) and archive.read("fortran").is_contiguous()
    assert np.array_equal(archive.read("big").numpy(), x)


def test_bfloat16_goes_through(tmp_path):
    x = torch.randn(4, 3).to(torch.bfloat16)
    with open(tmp_path / "x.npz", "wb") as stream:
        write_npz(stream, [("x", x)])
    archive = open_npz(tmp_path / "x.npz")
    assert archive.entries["x"].dtype == torch.bfloat16 and torch.equal(archive.read("x"), x)


def test_equal_arrays_are_equal_bytes_and_numpy_reads_them(tmp_path):
    tensors = {name: torch.from_numpy(np.asarray(array)) for name, array in ARRAYS.items()}
    files = []
    for order in (tensors.items(), reversed(tensors.items())):
        stream = io.BytesIO()
        write_npz(stream, order)
        files.append(stream.getvalue())
    assert files[0] == files[1]
    back = np.load(io.BytesIO(files[0]), allow_pickle=False)
    assert all(np.array_equal(back[name], array) for name, array in ARRAYS.items())


def test_a_flipped_bit_is_refused_where_it_is_read(tmp_path):
    np.savez(tmp_path / "x.npz", x=np.arange(10_000, dtype=np.float32))
    data = bytearray((tmp_path / "x.npz").read_bytes())
    data[30_000] ^= 1
    (tmp_path / "x.npz").write_bytes(bytes(data))
    archive = open_npz(tmp_path / "x.npz")
    with pytest.raises(CheckpointError, match="damaged"):
        archive.read("x")


def member(path, name, content):
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(name, content)
    return path


def npy(header, data=b""):
    text = header.encode().ljust(118)
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + data


@pytest.mark.parametrize(
    ("name", "content", "why"),
    [
        ("x.txt", b"hello", "no plain arrays"),
        ("x.npy", b"", "not a readable npz"),
        ("x.npy", b"\x93NUMPY\x09\x00" + bytes(100), "not a readable npz|unknown"),
        ("x.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (4,)}", bytes(15)), "declares"),
        ("x.npy", npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-4,)}", bytes(16)), "not a readable|declares"),
        ("x.npy", npy("__import__('os').system('true')", bytes(16)), "not a readable"),
        ("x.npy", npy("(" * 100, bytes(16)), "not a readable"),
        ("x.npy", npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", bytes(8)), "Python objects"),
    ],
)
def test_strange_members_are_refused(name, content, why, tmp_path):
    with pytest.raises(CheckpointError, match=why):
        open_npz(member(tmp_path / "x.npz", name, content))


def test_two_members_of_one_name_are_refused(tmp_path):
    stream = io.BytesIO()
    np.save(stream, np.zeros(2))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive, pytest.warns(UserWarning):
        archive.writestr("x.npy", stream.getvalue())
        archive.writestr("x.npy", stream.getvalue())
    with pytest.raises(CheckpointError, match="same name"):
        open_npz(tmp_path / "x.npz")


def test_a_torch_file_is_no_npz(tmp_path):
    torch.save({"x": torch.zeros(2)}, tmp_path / "x.bin")
    np.savez(tmp_path / "y.npz", x=np.zeros(2))
    (tmp_path / "y.npz").rename(tmp_path / "y.bin")
    assert not is_npz(tmp_path / "x.bin") and is_npz(tmp_path / "y.bin")
