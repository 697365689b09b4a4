"""C08: files that say or hold more than they should are refused from their declaration, in bounded memory."""

import io
import json
import pickle
import struct
import subprocess
import sys
import textwrap
import zipfile

import numpy as np
import pytest

from vitrail.errors import CheckpointError
from vitrail.weights.archive import open_archive
from vitrail.weights.load import load_model

MEBI = 2**20
GROWTH = 64 * MEBI  # what a refusal may cost


def npy_header(shape, dtype="<f4"):
    stream = io.BytesIO()
    np.lib.format.write_array_header_1_0(stream, {"descr": dtype, "fortran_order": False, "shape": shape})
    return stream.getvalue()


def zeros_npz(path, zeros=128 * MEBI, declared=None):
    """A few hundred kilobytes on the disk that inflate to `zeros` bytes an array."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("embedding/kernel", "Transformer/encoder_norm/scale"):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as member:
                member.write(npy_header((declared or zeros // 4,)))
                for _ in range(zeros // MEBI):
                    member.write(bytes(MEBI))
    return path


def lying_directory(path, claimed):
    """A zip whose directory claims another size than its stream holds."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("embedding/kernel.npy", npy_header((claimed // 4,)) + bytes(1000))
    data = bytearray(path.read_bytes())
    at = data.rindex(b"PK\x01\x02")
    data[at + 24 : at + 28] = struct.pack("<I", claimed)
    path.write_bytes(bytes(data))
    return path


def deflated_torch(path):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({}, protocol=2))
        with archive.open("archive/data/0", "w", force_zip64=True) as member:
            for _ in range(256):
                member.write(bytes(MEBI))
    return path


def spread_torch(path):
    """One number in the file, 4 TB in its description: a tensor with strides of 0."""
    import torch

    torch.save({"model": {"cls_token": torch.zeros(1).expand(1_000_000, 1_000_000)}}, path)
    return path


def legacy_torch(path):
    """The format before PyTorch 1.6 names the size of a storage before its bytes: 16 TB of them."""
    import torch

    torch.save({"cls_token": torch.zeros(7)}, path, _use_new_zipfile_serialization=False)
    data = path.read_bytes()
    path.write_bytes(data.replace(b"K\x07N", b"\x8a\x06" + (4 << 40).to_bytes(6, "little") + b"N"))
    return path


def many_layers(path):
    """Names that claim a thousand million blocks."""
    arrays = {
        "embedding/kernel": np.zeros((4, 4, 3, 32), np.float32),
        "Transformer/encoder_norm/scale": np.zeros(32, np.float32),
        "Transformer/posembed_input/pos_embedding": np.zeros((1, 17, 32), np.float32),
        "Transformer/encoderblock_0/MultiHeadDotProductAttention_0/query/kernel": np.zeros((32, 1, 32), np.float32),
        "Transformer/encoderblock_0/MlpBlock_0/Dense_0/kernel": np.zeros((32, 64), np.float32),
        "Transformer/encoderblock_999999999/LayerNorm_0/scale": np.zeros(32, np.float32),
    }
    np.savez(path, **arrays)
    return path


BOMBS = {
    "unexpected arrays": lambda folder: zeros_npz(folder / "a.npz"),
    "header against stream": lambda folder: zeros_npz(folder / "b.npz", declared=1000),
    "directory of 3 GB": lambda folder: lying_directory(folder / "c.npz", 3 << 30),
    "deflated torch file": lambda folder: deflated_torch(folder / "d.pt"),
    "strides of 0": lambda folder: spread_torch(folder / "e.pth"),
    "storage of 16 TB": lambda folder: legacy_torch(folder / "f.pth"),
    "a thousand million blocks": lambda folder: many_layers(folder / "g.npz"),
}
CHILD = textwrap.dedent("""
    import json, resource, sys, time
    import torch
    from vitrail.errors import CheckpointError
    from vitrail.weights.load import load_model
    load_model(sys.argv[1])
    peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    found = {}
    for path in sys.argv[2:]:
        before, start = peak(), time.perf_counter()
        try:
            load_model(path)
            said = "loaded"
        except CheckpointError as error:
            said = error.message
        found[path] = {"growth": peak() - before, "seconds": time.perf_counter() - start, "said": said}
    print(json.dumps(found))
""")


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """The twin: a compressed npz, as Google's are."""
    from pathlib import Path

    source = Path(__file__).parents[1] / "golden" / "g06_hybrid_stemonly_gap" / "checkpoint_prelinen.npz"
    path = tmp_path_factory.mktemp("healthy") / "model.npz"
    np.savez_compressed(path, **dict(np.load(source)))
    return path


def test_bombs_are_refused_in_bounded_memory_and_the_healthy_twin_loads(healthy, tmp_path):
    paths = {name: str(make(tmp_path)) for name, make in BOMBS.items()}
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", CHILD, str(healthy), *paths.values()], capture_output=True, text=True, timeout=120
    )
    assert child.returncode == 0, child.stderr
    found = json.loads(child.stdout)
    for name, path in paths.items():
        assert found[path]["said"] != "loaded", name
        assert found[path]["growth"] <= GROWTH, (name, found[path])
        assert found[path]["seconds"] < 5, (name, found[path])


def test_the_sum_of_declared_arrays_is_checked_before_the_first_is_read(healthy):
    declared = sum(entry.nbytes for entry in open_archive(healthy).entries.values())
    assert load_model(healthy, max_weight_bytes=2 * declared)
    with pytest.raises(CheckpointError, match=r"arrays take .* bytes in all") as refusal:
        load_model(healthy, max_weight_bytes=declared // 2)
    assert "max_weight_bytes" in str(refusal.value)


def test_by_default_the_limit_is_the_memory_that_is_free(tmp_path, monkeypatch, healthy):
    monkeypatch.setattr("vitrail.weights.archive.available_memory", lambda: 1000)
    with pytest.raises(CheckpointError, match="1,000 are allowed"):
        load_model(healthy)


def test_many_members_that_share_their_bytes_are_refused(tmp_path):
    """Two entries of the directory that point at one stream (a "better zip bomb")."""
    path = tmp_path / "overlap.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        archive.writestr("embedding/kernel.npy", npy_header((4,)) + bytes(16))
    data = path.read_bytes()
    at = data.index(b"PK\x01\x02")
    entry, end = data[at : data.index(b"PK\x05\x06")], bytearray(data[data.index(b"PK\x05\x06") :])
    end[8:12] = struct.pack("<HH", 2, 2)
    end[12:16] = struct.pack("<I", 2 * len(entry))
    path.write_bytes(data[:at] + entry + entry + bytes(end))
    with pytest.raises(CheckpointError):
        load_model(path)
