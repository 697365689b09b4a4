"""Images that arrive close together share one forward pass.

One asyncio task takes images from a bounded line, waits at most `max_wait_ms` for
company, and runs the model in one thread. A request that was cancelled (its client
went away, or its deadline passed) is skipped; an exception in the model fails that
batch and no other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from vitrail.ship.serve.limits import Limits
from vitrail.ship.serve.metrics import Metrics

Forward = Callable[[np.ndarray], np.ndarray]  # (N, H, W, C) uint8 -> (N, classes) float32


@dataclass
class Waiting:
    pixels: np.ndarray
    answer: asyncio.Future[np.ndarray]


class Batcher:
    """The line in front of one model. `taken` counts the images decoded or waiting, over all requests; `limits.queue` bounds it."""

    def __init__(self, forward: Forward, limits: Limits, metrics: Metrics) -> None:
        self.forward = forward
        self.limits = limits
        self.metrics = metrics
        self.line: asyncio.Queue[Waiting] = asyncio.Queue()
        self.taken = 0
        self.worker = ThreadPoolExecutor(1, thread_name_prefix="vitrail-model")
        self.task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.task = asyncio.get_running_loop().create_task(self._run(), name="vitrail-batcher")

    async def stop(self) -> None:
        if self.task:
            self.task.cancel()
            await asyncio.gather(self.task, return_exceptions=True)
        self.worker.shutdown(wait=False, cancel_futures=True)

    async def logits(self, pixels: np.ndarray) -> np.ndarray:
        """The logits of one preprocessed image, from whichever batch it travels in."""
        answer: asyncio.Future[np.ndarray] = asyncio.get_running_loop().create_future()
        self.line.put_nowait(Waiting(pixels, answer))
        return await answer

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            batch = await self._gather()
            if not batch:
                continue
            shape = batch[0].pixels.shape
            same = [w for w in batch if w.pixels.shape == shape]
            for late in (w for w in batch if w.pixels.shape != shape):  # a reload changed the image size
                self.line.put_nowait(late)
            try:
                rows = await loop.run_in_executor(self.worker, self._forward, [w.pixels for w in same])
            except Exception as error:
                for waiting in same:
                    if not waiting.answer.done():
                        waiting.answer.set_exception(error)
                continue
            self.metrics.batch(len(same))
            for waiting, row in zip(same, rows, strict=True):
                if not waiting.answer.done():
                    waiting.answer.set_result(row)

    async def _gather(self) -> list[Waiting]:
        """The next batch: the first image, and whoever joins it in time; cancelled ones left out."""
        batch = [await self.line.get()]
        deadline = asyncio.get_running_loop().time() + self.limits.max_wait_ms / 1000
        while len(batch) < self.limits.max_batch:
            while not self.line.empty() and len(batch) < self.limits.max_batch:
                batch.append(self.line.get_nowait())
            left = deadline - asyncio.get_running_loop().time()
            if left <= 0 or len(batch) >= min(self.taken, self.limits.max_batch):
                break  # nobody else is on the way: do not wait for them
            try:
                batch.append(await asyncio.wait_for(self.line.get(), left))
            except TimeoutError:
                break
        return [w for w in batch if not w.answer.done()]

    def _forward(self, images: list[np.ndarray]) -> np.ndarray:
        count = len(images)
        if self.limits.fixed_batch:
            images = images + [images[0]] * (self.limits.max_batch - count)
        return self.forward(np.stack(images))[:count]
