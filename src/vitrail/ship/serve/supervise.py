"""Two processes: a small parent that holds the socket, and the worker that holds the model.

The parent binds, starts the worker, passes signals on, and starts another when one dies
without being told to. It never imports torch, so a crash in native code costs one worker
and a few seconds, not the service. SIGTERM drains; SIGHUP loads the models anew.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Sequence

from vitrail.errors import ResourceError, UsageError

QUICK_DEATHS = 5  # in a row, each within QUICK_S of its start: give up
QUICK_S = 10.0


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or an error that says who has the port."""
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except socket.gaierror as error:
        raise UsageError(f"serve: {host!r} is no address of this machine ({error.strerror}).", hint="--host 127.0.0.1") from error
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
    except OSError as error:
        sock.close()
        hint = f"--port {port + 1 if port else 8080}, or stop what listens there"
        raise ResourceError(f"serve: cannot listen on {host}:{port} ({error.strerror}).", hint=hint) from error
    sock.listen(1024)
    sock.set_inheritable(True)
    return sock


def is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return False


def supervise(arguments: Sequence[str], sock: socket.socket, grace_s: float, announce: Callable[[], None] = lambda: None) -> int:
    """Run `vitrail serve ... --fd N` until told to stop; answers with the exit code. `announce` is called once signals are heeded."""
    stopping = False
    worker: subprocess.Popen[bytes] | None = None

    def stop(signum: int, _frame: object) -> None:
        nonlocal stopping
        stopping = True
        sock.close()  # the worker has its own; were ours left open, the kernel would go on taking connections
        if worker and worker.poll() is None:
            worker.send_signal(signal.SIGTERM)

    def reload(signum: int, _frame: object) -> None:
        if worker and worker.poll() is None:
            worker.send_signal(signal.SIGHUP)

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGHUP, reload)
    announce()
    quick = 0
    number = sock.fileno()
    command = [sys.executable, "-m", "vitrail", "serve", *arguments, "--fd", str(number)]
    while not stopping:
        started = time.monotonic()
        worker = subprocess.Popen(command, pass_fds=[number], start_new_session=True)
        if stopping:
            worker.send_signal(signal.SIGTERM)
        code = _wait(worker, lambda: stopping, grace_s)
        if stopping:
            return 0 if code in (0, -signal.SIGTERM) else 1
        if code in (2, 3, 4, 5, 6):  # the worker said what is wrong; starting it again would not help
            return code
        quick = quick + 1 if time.monotonic() - started < QUICK_S else 0
        if quick >= QUICK_DEATHS:
            raise ResourceError(f"serve: the worker died {quick} times within {QUICK_S:g} s of its start (last code {code}).")
        print(f"vitrail serve: the worker died (code {code}); starting another", file=sys.stderr, flush=True)
        time.sleep(min(0.1 * 2**quick, 5.0))
    return 0


def _wait(worker: subprocess.Popen[bytes], told_to_stop: Callable[[], bool], grace_s: float) -> int:
    deadline: float | None = None
    while True:
        try:
            return worker.wait(timeout=0.2)
        except subprocess.TimeoutExpired:
            if told_to_stop():
                deadline = deadline or time.monotonic() + grace_s + 5
                if time.monotonic() > deadline:
                    os.killpg(worker.pid, signal.SIGKILL)
