"""Batches filled ahead by worker processes (or threads, or inline), in order, whatever happens to the workers.

A batch is cut into chunks of slots; every worker takes chunks of the same batch, so the first
one is ready soon and little is in flight. Pixels go straight into shared memory. One thread
of the consumer's process hands out chunks and watches:

    a worker dies        its chunks are done again by a new one; the fourth death at one sample is
                         a ResourceError that names it
    a worker stands      after a quarter of `stall_timeout_s` without a sample finished its Python stack is
                         logged and it is killed: from there on as above

Workers start from a forkserver (spawn where there is none): nothing of the parent's threads,
CUDA context or locks is inherited, and torch is imported once for all of them.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import signal
import threading
import time
import weakref
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import Pipe, connection

import numpy as np
import torch

from vitrail.data.pool import Hand, ProcessHand, Shared, ThreadHand
from vitrail.data.worker import Filled, Maker
from vitrail.errors import ResourceError, UsageError, VitrailError

__all__ = ["Pipeline"]

DEATHS = 3  # restarts at one sample before giving up
LENT = 2  # batches a consumer on the CPU may hold without a copy being made
CHUNK = 32  # slots in one errand, at most
AHEAD = 2  # errands a worker has at once, so that it never waits for the next
START_S = 120.0

log = logging.getLogger("vitrail.data")


@dataclass
class _Step:
    """One batch in the making."""

    step: int
    slot: int
    generation: int
    positions: np.ndarray
    remaining: int = 0
    parts: dict[int, Filled] = field(default_factory=dict)

    def filled(self) -> Filled:
        parts = [self.parts[offset] for offset in sorted(self.parts)]
        bad = [entry for part in parts for entry in part.bad]
        return Filled(np.concatenate([p.index for p in parts]), np.concatenate([p.valid for p in parts]), bad)


@dataclass
class _Chunk:
    """A run of slots of one batch: a worker's errand."""

    step: _Step
    offset: int
    positions: np.ndarray


class Pipeline:
    """`get(step)` -> (images (share, rows, columns, channels), what filled them). Steps are expected in order."""

    def __init__(
        self,
        maker: Maker,
        positions: Callable[[int], np.ndarray],
        share: int,
        *,
        workers: int,
        threads: bool = False,
        stall_timeout_s: float = 600.0,
        prefetch: int = 3,
        pin: bool | None = None,
        steps: int | None = None,
    ) -> None:
        if workers < 0:
            raise UsageError(f"{workers} workers; give 0 (decode in this process) or more.")
        self.maker, self.positions, self.share, self.steps = maker, positions, share, steps
        self.workers, self.threads, self.stall_timeout_s = workers, threads, stall_timeout_s
        self.prefetch = max(1, prefetch)
        self.pin = torch.cuda.is_available() if pin is None else pin
        self.chunk = max(1, min(CHUNK, -(-share // max(1, workers))))
        self.feeder: _Feeder | None = None
        self._closed = False

    def get(self, step: int) -> tuple[torch.Tensor, Filled]:
        if self._closed:
            raise UsageError("this stream is closed.")
        if self.workers == 0:
            return self._inline(step)
        if self.feeder is None:
            self.feeder = _Feeder(self)
        return self.feeder.get(step)

    def _inline(self, step: int) -> tuple[torch.Tensor, Filled]:
        images = self.empty()
        return images, self.maker.fill(self.positions(step), images.numpy(), lambda _position: None)

    def empty(self) -> torch.Tensor:
        dtype = torch.float32 if np.dtype(self.maker.dtype) == np.float32 else torch.uint8
        return torch.empty((self.share, *self.maker.shape), dtype=dtype, pin_memory=self.pin)

    @property
    def pids(self) -> list[int]:
        """Process ids of the workers."""
        return [hand.pid for hand in self.feeder.hands if hand.pid] if self.feeder else []

    def close(self) -> None:
        self._closed = True
        feeder, self.feeder = self.feeder, None
        if feeder is not None:
            feeder.close()


class _Feeder:
    """The thread that hands out errands and the state it keeps. `lock` guards what the consumer sees too."""

    def __init__(self, pipeline: Pipeline) -> None:
        self.line = pipeline
        self.lock = threading.Condition()
        self.ready: dict[int, tuple[torch.Tensor, Filled]] = {}
        self.making: dict[int, _Step] = {}
        self.pending: deque[_Chunk] = deque()
        self.generation = 0
        self.next_step = 0  # to plan
        self.goal = -1  # the consumer's next step
        self.error: BaseException | None = None
        self.stop = False
        self.deaths: Counter[int] = Counter()
        self.false_starts = 0
        slots = pipeline.prefetch + (0 if pipeline.pin else LENT)
        self.free = list(range(slots))
        self.lent: set[int] = set()
        self.shared = Shared(pipeline.maker, (slots, pipeline.share, *pipeline.maker.shape), pipeline.workers)
        self.wake_in, self.wake_out = Pipe(duplex=False)
        self.hands: list[Hand] = [self._hire(i) for i in range(pipeline.workers)]
        self.thread = threading.Thread(target=self._run, name="vitrail-feeder", daemon=True)
        self.thread.start()
        _open.add(self)

    def _hire(self, number: int) -> Hand:
        return ThreadHand(self.shared, number) if self.line.threads else ProcessHand(self.shared, number)

    # ------------------------------------------------------------ the consumer's side

    def get(self, step: int) -> tuple[torch.Tensor, Filled]:
        with self.lock:
            if step != self.goal:
                self._restart_at(step)
            self._wake()
            while step not in self.ready:
                if self.error is not None:
                    raise self.error
                if not self.thread.is_alive():
                    raise ResourceError("the data pipeline's thread has ended unexpectedly.")
                self.lock.wait(0.5)
            self.goal = step + 1
            result = self.ready.pop(step)
            self._wake()
        return result

    def _restart_at(self, step: int) -> None:
        """Forget what was made for other steps; a slot that is still being written to is freed later."""
        self.generation += 1
        self.goal = self.next_step = step
        self.ready.clear()  # lent slots come back as their arrays are collected
        for chunk in self.pending:
            self._done(chunk)
        self.pending.clear()
        self.making.clear()

    def _wake(self) -> None:
        with contextlib.suppress(OSError, ValueError):
            if not self.wake_in.poll():
                self.wake_out.send_bytes(b"x")

    def close(self) -> None:
        _open.discard(self)
        self.stop = True
        self._wake()
        if threading.current_thread() is not self.thread:
            self.thread.join(10)
        for hand in self.hands:
            hand.dismiss()
        for hand in self.hands:
            hand.end()
        self.wake_in.close()
        self.wake_out.close()

    # ------------------------------------------------------------ the thread

    def _run(self) -> None:
        try:
            while not self.stop:
                with self.lock:
                    self._plan()
                    self._hand_out()
                waiting = [hand.conn for hand in self.hands]
                for ready in connection.wait([*waiting, self.wake_in], timeout=self._patience()):
                    if ready is self.wake_in:
                        self.wake_in.recv_bytes()
                    else:
                        self._listen(waiting.index(ready))  # type: ignore[arg-type]
                self._look_for_stalls()
        except BaseException as error:
            if not self.stop:
                with self.lock:
                    self.error = error
                    self.lock.notify_all()

    def _patience(self) -> float:
        stall = self.line.stall_timeout_s
        return min(1.0, stall / 20) if stall > 0 else 1.0

    def _plan(self) -> None:
        """Begin the next batches while there is room for them."""
        last = self.line.steps
        while self.goal >= 0 and self.free and len(self.making) + len(self.ready) < self.line.prefetch:
            if last is not None and self.next_step >= last:
                return
            step = _Step(self.next_step, self.free.pop(), self.generation, self.line.positions(self.next_step))
            size = self.line.chunk
            chunks = [_Chunk(step, at, step.positions[at : at + size]) for at in range(0, self.line.share, size)]
            step.remaining = len(chunks)
            self.making[step.step] = step
            self.pending.extend(chunks)
            self.next_step += 1

    def _hand_out(self) -> None:
        """Chunks in order, one more to whoever has least to do."""
        while self.pending:
            hand = min(self.hands, key=lambda h: len(h.errands))
            if len(hand.errands) >= AHEAD:
                return
            chunk = self.pending.popleft()
            if not hand.errands:
                hand.since = time.monotonic()
            hand.errands.append(chunk)
            with contextlib.suppress(OSError):  # it is dead: its end of the pipe will say so
                hand.conn.send((chunk.step.slot, chunk.offset, chunk.positions.tobytes()))

    def _listen(self, number: int) -> None:
        hand = self.hands[number]
        try:
            kind, value = hand.conn.recv()
        except (EOFError, OSError):
            self._replace(number, hand.obituary())
            return
        hand.since = time.monotonic()
        if kind == "ready":
            hand.ready, self.false_starts = True, 0
        elif kind == "filled":
            with self.lock:
                self._finish(hand.errands.popleft(), Filled.unpacked(value))
        elif kind == "memory":
            hand.end()
            self._replace(number, "ran out of memory")
        else:
            raise value if isinstance(value, VitrailError) else RuntimeError(f"a data worker failed:\n{value}")

    def _finish(self, chunk: _Chunk, filled: Filled) -> None:
        step = chunk.step
        step.parts[chunk.offset] = filled
        if not self._done(chunk) and step.remaining == 0:
            del self.making[step.step]
            self.ready[step.step] = (self._take_out(step.slot), step.filled())
            self.lock.notify_all()

    def _done(self, chunk: _Chunk) -> bool:
        """One chunk less to wait for; True when nobody wants its batch any more (its slot is freed with the last)."""
        chunk.step.remaining -= 1
        if chunk.step.generation == self.generation:
            return False
        if chunk.step.remaining == 0:
            self.free.append(chunk.step.slot)
        return True

    def _take_out(self, slot: int) -> torch.Tensor:
        """The pixels of a finished batch: lent until the tensor is collected, or copied (always into pinned
        memory, because a copy to the GPU may still be reading when the last reference goes)."""
        pixels = self.shared.slab[slot]
        if self.line.pin or len(self.lent) >= LENT + self.line.prefetch - 1:
            images = self.line.empty()
            images.copy_(torch.from_numpy(pixels))
            self.free.append(slot)
            return images
        self.lent.add(slot)
        lent = pixels.view()
        weakref.finalize(lent, self._given_back, slot).atexit = False
        return torch.from_numpy(lent)

    def _given_back(self, slot: int) -> None:
        """Runs wherever the last reference was dropped, perhaps while this thread holds the lock: so without it."""
        self.lent.discard(slot)
        self.free.append(slot)
        self._wake()

    # ------------------------------------------------------------ trouble

    def _replace(self, number: int, why: str) -> None:
        """A worker is gone: somebody else does its errands, from the sample it was at."""
        hand = self.hands[number]
        hand.end()
        if self.stop:
            return
        if hand.errands:
            self._blame(hand, why)
        elif not hand.ready:
            self.false_starts += 1
            if self.false_starts > DEATHS:
                raise ResourceError(f"a data worker cannot start: it {why}.", hint=_START_HINT)
        log.warning("data worker %s %s; a new one takes over", hand.pid or hand.number, why)
        with self.lock:
            self.pending.extendleft(reversed(hand.errands))
        self.hands[number] = self._hire(number)

    def _blame(self, hand: Hand, why: str) -> None:
        position, ticks = self.shared.progress[hand.number].tolist()
        at = position if ticks else int(hand.errands[0].positions[0])
        self.deaths[at] += 1
        if self.deaths[at] > DEATHS:
            raise ResourceError(
                f"the data worker at {self._sample(at)} {why}, {self.deaths[at]} times in a row.",
                hint="look at that file with `vitrail data check`, or at the memory and the storage of this machine",
            )

    def _sample(self, position: int) -> str:
        maker = self.line.maker
        try:
            order = getattr(maker, "order", None)
            index = int(order(np.array([position]))[0]) if order is not None else position
            return f"{maker.source.id(index)!r} (sample {index})"  # type: ignore[attr-defined]
        except Exception:  # a name is only a courtesy here
            return f"position {position}"

    def _look_for_stalls(self) -> None:
        limit = self.line.stall_timeout_s / (DEATHS + 1)
        if limit <= 0:
            return
        now = time.monotonic()
        for number, hand in enumerate(self.hands):
            ticks = int(self.shared.progress[number][1])
            if ticks != hand.ticks or not hand.errands:
                hand.ticks, hand.since = ticks, now
            elif now - hand.since > (limit if hand.ready else max(limit, START_S)):
                still = now - hand.since
                who = hand.pid or hand.number
                log.warning("data worker %s has not finished a sample for %.1f s; its stack:\n%s", who, still, hand.stack())
                if not hand.kill():
                    raise ResourceError(
                        f"a data thread has stood still for {still:.0f} s at {self._sample(int(self.shared.progress[number][0]))}.",
                        hint="look at the storage of this machine; worker processes can be replaced, threads cannot",
                    )
                self._replace(number, f"stood still for {still:.0f} s and was killed ({signal.Signals.SIGKILL.name})")


_open: weakref.WeakSet[_Feeder] = weakref.WeakSet()


@atexit.register
def _close_all() -> None:
    """Whatever a program leaves open ends before the interpreter does."""
    for feeder in list(_open):
        feeder.close()


_START_HINT = "workers import the package afresh: its import must work in a new process (data.workers=0 decodes in this one)"
