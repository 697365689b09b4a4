"""The lock of a run directory: held by the living, taken over from the dead."""

import json
import os
import socket
import subprocess
import sys

import pytest

from vitrail.errors import ResourceError
from vitrail.runtime.lock import RunLock, boot_id, is_alive


def dead_pid() -> int:
    process = subprocess.Popen([sys.executable, "-c", ""])
    process.wait()
    return process.pid


def test_a_free_directory_is_locked_and_released(tmp_path):
    with RunLock(tmp_path):
        holder = json.loads((tmp_path / ".lock").read_text())
        assert holder["pid"] == os.getpid() and holder["host"] == socket.gethostname()
    assert not (tmp_path / ".lock").exists()


def test_a_living_holder_is_refused_by_name(tmp_path):
    with RunLock(tmp_path), pytest.raises(ResourceError, match=rf"in use by process {os.getpid()} on"):
        with RunLock(tmp_path):
            pass


@pytest.mark.parametrize(
    "change",
    [
        lambda lock: {**lock, "pid": dead_pid()},
        lock_of_another_boot := lambda lock: {**lock, "boot": "0" * 32},
        lambda lock: {**lock, "started": "1"},  # the pid was given to a new process
    ],
    ids=["dead pid", "another boot", "reused pid"],
)
def test_a_stale_lock_is_taken_over(tmp_path, change):
    with RunLock(tmp_path):
        body = json.loads((tmp_path / ".lock").read_text())
    if change is lock_of_another_boot and not boot_id():
        pytest.skip("this system has no boot id")
    (tmp_path / ".lock").write_text(json.dumps(change(body)))
    with RunLock(tmp_path):
        assert json.loads((tmp_path / ".lock").read_text()) == body


def test_a_lock_half_written_by_a_killed_process_is_taken_over(tmp_path):
    (tmp_path / ".lock").write_text('{"pid": 12')
    with RunLock(tmp_path):
        pass


def test_a_holder_on_another_host_is_refused_with_the_way_out(tmp_path):
    (tmp_path / ".lock").write_text(json.dumps({"pid": 1, "host": "elsewhere", "boot": "", "started": ""}))
    with pytest.raises(ResourceError) as refusal, RunLock(tmp_path):
        pass
    assert "elsewhere" in refusal.value.hint


def test_a_zombie_is_not_alive():
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    while is_alive(pid):  # ends: the child exits at once and becomes a zombie
        pass
    os.waitpid(pid, 0)
