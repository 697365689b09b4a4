"""Hands that fill slots: a worker process or a thread behind the same pipe.

    Shared        what all hands see: the slots, each hand's progress, and the maker, whose large
                  arrays (labels, names, in-memory images) are mapped, not copied, by every process
    ProcessHand   a process from the forkserver
    ThreadHand    a thread of this process; it cannot be killed, so it cannot be replaced either

Memory is an anonymous file (memfd, or an unlinked temporary file), passed by descriptor: it
does not count against a container's small /dev/shm, and nothing is left behind, even after
SIGKILL.
"""

from __future__ import annotations

import contextlib
import faulthandler
import mmap
import multiprocessing as mp
import os
import pickle
import signal
import sys
import tempfile
import threading
import time
import traceback
import types
from collections import deque
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from multiprocessing.reduction import DupFd
from typing import Any

import numpy as np

from vitrail.data.worker import Maker
from vitrail.errors import ResourceError, VitrailError

__all__ = ["Hand", "ProcessHand", "Shared", "ThreadHand"]

_LINE = 64  # bytes; buffers begin at multiples of it


class Shared:
    """Slots (slab), progress (a row a hand: position, samples begun), and the pickled maker, in mapped memory."""

    def __init__(self, maker: Maker, slots: tuple[int, ...], hands: int) -> None:
        self.maker = maker
        self.layout = (slots, np.dtype(maker.dtype).str, hands)
        self.fd = _anonymous_file(_slab_bytes(*self.layout))
        self.slab, self.progress = _map_slab(self.fd, *self.layout)
        self._packed: tuple[int, list[tuple[int, int]]] | None = None
        self.needs_main = False

    def packed(self) -> tuple[int, list[tuple[int, int]]]:
        """(descriptor, extents) of the maker: first the pickle, then its large buffers."""
        if self._packed is None:
            buffers: list[pickle.PickleBuffer] = []
            head = pickle.dumps(self.maker, protocol=5, buffer_callback=buffers.append)
            self.needs_main = b"__main__" in head
            parts = [memoryview(head), *(buffer.raw() for buffer in buffers)]
            extents, at = [], 0
            for part in parts:
                extents.append((at, part.nbytes))
                at += -(-part.nbytes // _LINE) * _LINE
            fd = _anonymous_file(at)
            for (start, _), part in zip(extents, parts):
                _write(fd, part, start)
            self._packed = fd, extents
        return self._packed

    def __del__(self) -> None:
        for fd in (getattr(self, "fd", None), (getattr(self, "_packed", None) or (None,))[0]):
            if fd is not None:
                with contextlib.suppress(OSError):
                    os.close(fd)


def _slab_bytes(slots: tuple[int, ...], dtype: str, hands: int) -> int:
    return hands * _LINE + int(np.prod(slots)) * np.dtype(dtype).itemsize


def _map_slab(fd: int, slots: tuple[int, ...], dtype: str, hands: int) -> tuple[np.ndarray, np.ndarray]:
    memory = mmap.mmap(fd, _slab_bytes(slots, dtype, hands))
    progress = np.frombuffer(memory, np.int64, hands * (_LINE // 8)).reshape(hands, _LINE // 8)[:, :2]
    return np.frombuffer(memory, dtype, int(np.prod(slots)), hands * _LINE).reshape(slots), progress


def _anonymous_file(size: int) -> int:
    try:
        fd = os.memfd_create("vitrail") if hasattr(os, "memfd_create") else _unlinked()
        os.ftruncate(fd, size)
    except OSError as error:
        raise ResourceError(
            f"cannot reserve {size / 2**20:.0f} MiB for prefetched batches: {error.strerror}.", hint="use a smaller batch"
        ) from None
    return fd


def _unlinked() -> int:
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write(fd: int, part: memoryview, start: int) -> None:
    at = 0
    while at < part.nbytes:  # one call writes at most 2 GiB
        at += os.pwrite(fd, part[at : at + (1 << 30)], start + at)


def _unpack(fd: int, extents: list[tuple[int, int]]) -> Maker:
    """The maker, its arrays views of private (copy-on-write) memory that all workers share until one writes."""
    length = sum(extents[-1])
    memory = memoryview(mmap.mmap(fd, length, flags=mmap.MAP_PRIVATE, prot=mmap.PROT_READ | mmap.PROT_WRITE))
    parts = [memory[start : start + size] for start, size in extents]
    return pickle.loads(parts[0], buffers=parts[1:])


# ---------------------------------------------------------------- the errand runner


def serve(conn: Connection, maker: Maker, slab: np.ndarray, progress: np.ndarray) -> None:
    """Fill what is asked for until the pipe closes. `progress` is (position, samples begun)."""

    def begin(position: int) -> None:
        progress[0] = position
        progress[1] += 1

    with contextlib.suppress(EOFError, OSError):  # the other side has gone: so do we
        conn.send(("ready", os.getpid()))
        while True:
            slot, offset, packed = conn.recv()
            positions = np.frombuffer(packed, np.int64)
            conn.send(_fill(maker, positions, slab[slot, offset : offset + len(positions)], begin))


def _fill(maker: Maker, positions: np.ndarray, out: np.ndarray, begin: Any) -> tuple[str, Any]:
    try:
        return "filled", maker.fill(positions, out, begin).packed()
    except MemoryError:
        return "memory", None
    except VitrailError as error:
        return "error", error
    except Exception:
        return "error", traceback.format_exc()


def _process(conn: Connection, slab_fd: int, maker_fd: int, stack_fd: int, extents: Any, layout: Any, number: int) -> None:
    import torch

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it closes the pipe
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.register(signal.SIGUSR1, file=stack_fd, all_threads=True)
    torch.set_num_threads(1)
    slab, progress = _map_slab(slab_fd, *layout)
    try:
        maker = _unpack(maker_fd, extents)
    except Exception:
        with contextlib.suppress(OSError):
            conn.send(("error", traceback.format_exc()))
        return
    serve(conn, maker, slab, progress[number])


class Hand:
    """Somebody who fills slots; `errands` is what has been asked and not answered, oldest first."""

    pid: int | None = None
    conn: Any

    def __init__(self, number: int) -> None:
        self.number = number
        self.errands: deque[Any] = deque()
        self.ready = False
        self.ticks = -1
        self.since = time.monotonic()

    def dismiss(self) -> None:
        """No more errands: close the pipe."""
        with contextlib.suppress(OSError):
            self.conn.close()

    def end(self) -> None: ...

    def kill(self) -> bool:
        return False

    def stack(self) -> str:
        """What this hand is doing, as Python sees it."""
        with tempfile.TemporaryFile("w+") as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            return file.read()

    def obituary(self) -> str:
        return "ended"


class ThreadHand(Hand):
    def __init__(self, shared: Shared, number: int) -> None:
        super().__init__(number)
        self.conn, theirs = Pipe()
        shared.progress[number] = 0
        job = (theirs, shared.maker, shared.slab, shared.progress[number])
        self.thread = threading.Thread(target=serve, args=job, name=f"vitrail-data-{number}", daemon=True)
        self.thread.start()

    def end(self) -> None:
        """Wait for its errand: a thread that the interpreter's end finds inside a codec takes the process down."""
        self.dismiss()
        self.thread.join(3)


class ProcessHand(Hand):
    def __init__(self, shared: Shared, number: int) -> None:
        super().__init__(number)
        fd, extents = shared.packed()
        shared.progress[number] = 0
        context = _context()
        self.conn, theirs = Pipe()
        self.stack_fd = _anonymous_file(0)
        with _start_lock, _main_hidden(not shared.needs_main):
            self.process = context.Process(
                target=_process,
                args=(theirs, _Inherited(shared.fd), _Inherited(fd), _Inherited(self.stack_fd), extents, shared.layout, number),
                name=f"vitrail-data-{number}",
                daemon=True,
            )
            self.process.start()
        theirs.close()
        self.pid = self.process.pid

    def end(self) -> None:
        self.dismiss()
        self.process.join(3)
        if self.process.is_alive():
            self.process.kill()
            self.process.join(3)
        if self.stack_fd >= 0:
            os.close(self.stack_fd)
            self.stack_fd = -1

    def kill(self) -> bool:
        self.process.kill()
        self.process.join(5)
        return True

    def stack(self) -> str:
        """The worker writes it itself, unless it is stopped or stuck in the kernel."""
        if self.pid is not None:
            with contextlib.suppress(OSError):
                os.kill(self.pid, signal.SIGUSR1)
            time.sleep(0.2)
        text = os.pread(self.stack_fd, 1 << 20, 0).strip(b"\0").decode(errors="replace")
        return text or "(it does not answer: stopped, or stuck in the kernel)"

    def obituary(self) -> str:
        self.process.join(2)
        code = self.process.exitcode
        if code is None or code >= 0:
            return f"ended with code {code}"
        name = signal.Signals(-code).name
        return f"was killed by {name}" + (" (often: out of memory)" if name == "SIGKILL" else "")


_start_lock = threading.Lock()


class _Inherited:
    """A descriptor that arrives in the started process as a plain number."""

    def __init__(self, fd: int) -> None:
        self.fd = fd

    def __reduce__(self) -> tuple[Any, ...]:
        return _detach, (DupFd(self.fd),)


def _detach(handle: Any) -> int:
    return handle.detach()


def _context() -> Any:
    if "forkserver" not in mp.get_all_start_methods():
        return mp.get_context("spawn")
    context = mp.get_context("forkserver")
    context.set_forkserver_preload(["vitrail.data.worker", "vitrail.data.crop"])  # torch is imported once, for all
    return context


@contextlib.contextmanager
def _main_hidden(hide: bool) -> Iterator[None]:
    """multiprocessing would run the user's script again in every worker, which needs an `if __name__ ==
    "__main__"` in it and may be slow; nothing here comes from there unless the pickle says so."""
    main = sys.modules["__main__"]
    if hide:
        sys.modules["__main__"] = types.ModuleType("__main__")
    try:
        yield
    finally:
        sys.modules["__main__"] = main
