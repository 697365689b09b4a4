"""C02: drafts of dead processes are removed at the next start; those of a living one are kept."""

import os

from vitrail.runtime.lock import boot_id
from vitrail.train.store import CheckpointStore


def draft(folder, pid, boot):
    path = folder / f".tmp-00000007-{pid}-{boot}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(b"half")
    return path


def test_only_what_nobody_writes_any_more_is_removed(tmp_path):
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)
    dead = draft(tmp_path, pid, boot_id()[:8])
    other_boot = draft(tmp_path, os.getppid(), "0" * 8)
    own_past = draft(tmp_path, os.getpid(), boot_id()[:8])  # our number, but we are only starting: a process before us
    living = draft(tmp_path, os.getppid(), boot_id()[:8])
    other = tmp_path / "notes"
    other.mkdir()
    removed = CheckpointStore(tmp_path).clean()
    assert sorted(removed) == sorted([dead, other_boot, own_past])
    assert living.exists() and other.exists()


def test_a_killed_run_leaves_a_draft_and_the_next_start_removes_it(tiny, tmp_path):
    out = tmp_path / "run"
    assert tiny.run(out, env={"VITRAIL_FAULT": "commit.after_manifest:2=kill"}).code == -9
    assert len(list((out / "checkpoints").glob(".tmp*"))) == 1
    assert tiny.run(out).code == 0
    assert not list((out / "checkpoints").glob(".tmp*"))
