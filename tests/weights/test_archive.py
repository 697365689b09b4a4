"""What a file declares, and how much of it may be allocated."""

from pathlib import Path

import pytest
import torch

from vitrail.errors import CheckpointError
from vitrail.weights import archive
from vitrail.weights.archive import Entry, available_memory, check_total, open_archive


def container(folder, limit, used=500, cached=200):
    for name, text in (("memory.max", limit), ("memory.current", str(used)), ("memory.stat", f"anon 1\nfile {cached}\n")):
        (folder / name).write_text(text.rstrip() + "\n")
    return folder


def test_a_containers_limit_counts_and_cached_files_do_not(tmp_path, monkeypatch):
    monkeypatch.setattr(archive, "CGROUP", container(tmp_path, "1000"))
    assert available_memory() == 1000 - 500 + 200
    monkeypatch.setattr(archive, "CGROUP", container(tmp_path, "max"))
    assert available_memory() > 1 << 20
    monkeypatch.setattr(archive, "CGROUP", tmp_path / "none")
    assert available_memory() > 1 << 20


def test_the_sum_is_what_counts():
    check_total(Path("x"), [10, 20], 30)
    with pytest.raises(CheckpointError, match="31 bytes in all, and 30 are allowed"):
        check_total(Path("x"), [10, 21], 30)


def test_sizes_come_from_shapes_and_types():
    assert Entry((2, 3), torch.bfloat16).nbytes == 12
    assert Entry((), torch.float64).nbytes == 8
    assert Entry((0, 9), torch.float32).nbytes == 0


@pytest.mark.parametrize("content", [b"", b"hello, this is a text", b"GIF89a" + bytes(50)])
def test_what_is_no_weight_file_is_told_by_its_first_bytes(content, tmp_path):
    (tmp_path / "weights").write_bytes(content)
    with pytest.raises(CheckpointError, match="not a weight file"):
        open_archive(tmp_path / "weights")


def test_a_folder_or_nothing_cannot_be_opened(tmp_path):
    for path in (tmp_path, tmp_path / "absent"):
        with pytest.raises(CheckpointError, match="cannot be read"):
            open_archive(path)
