"""Streams of batches: endless for training, finite for evaluation, the same for any number of workers and ranks.

    with TrainStream(source, TrainView(…), batch_size=512, seed=0, rank=0, world=4) as stream:
        for batch in stream: …                         # Batch of 128: this rank's share, uint8, pinned where there is a GPU

The batch of a step is a function of (source, view, seed, batch size, step), so a resume needs
one integer (`start_step`, or `seek`), and rank, world and workers may change on the way.
Images have channels-last strides: workers write the pixels as the codec leaves them.

A file that cannot be used is listed in `stream.quarantine` and its slot is kept: filled by a
draw from the same epoch (training), or `valid=False` (evaluation).
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch

from vitrail.data.batch import Batch
from vitrail.data.crop import TrainView
from vitrail.data.order import BalancedOrder, BatchLayout, EpochOrder
from vitrail.data.pipeline import Pipeline
from vitrail.data.quarantine import Quarantine
from vitrail.data.source import Source
from vitrail.data.transform import Preprocess
from vitrail.data.worker import EvalMaker, Filled, Maker, TrainMaker
from vitrail.errors import UsageError
from vitrail.runtime.cores import cores

__all__ = ["EvalStream", "Labels", "TrainStream", "default_workers", "make_order", "rank_cores"]

PREFETCH = 3  # batches ready or being made ahead of the consumer
FEW = 512  # fewer images than this to evaluate are not worth starting processes for


class _Stream:
    """What both streams share: a pipeline that fills positions, and batches made of what it returns."""

    def __init__(self, source: Source, maker: Maker, layout: BatchLayout, workers: int, pipeline: dict[str, Any]) -> None:
        if len(source) == 0:
            raise UsageError(f"{source.name} is empty; there is nothing to stream.")
        self.source = source
        self.layout = layout
        self.workers = workers
        self._labels = Labels(source)
        self._record = Quarantine(len(source))
        self._pipeline = Pipeline(maker, layout.positions, layout.share, workers=workers, **pipeline)

    @property
    def quarantine(self) -> list[dict[str, Any]]:
        """Every sample that could not be used, once an epoch: index, id, reason, detail, position, epoch."""
        return self._record.entries

    @property
    def worker_pids(self) -> list[int]:
        """Process ids of the decode workers, once they have started."""
        return self._pipeline.pids

    @property
    def quarantine_summary(self) -> str:
        return self._record.summary()

    def _batch(self, positions: np.ndarray, images: torch.Tensor, filled: Filled) -> Batch:
        self._record.take(int((filled.index >= 0).sum()), filled.bad)
        return Batch(
            images.permute(0, 3, 1, 2),
            self._labels(filled.index),
            torch.from_numpy(filled.index),
            torch.from_numpy(positions),
            torch.from_numpy(filled.valid),
            positions,
        )

    def close(self) -> None:
        """Stop the workers and give the memory back; may be called twice."""
        self._pipeline.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        pipeline = getattr(self, "_pipeline", None)
        if pipeline is not None:
            pipeline.close()


class TrainStream(_Stream):
    """The endless training stream: global batch `s` holds positions s*B … s*B+B-1, this rank its contiguous share."""

    def __init__(
        self,
        source: Source,
        view: TrainView,
        *,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        workers: int | None = None,
        threads: bool = False,
        start_step: int = 0,
        repeats: int = 1,
        balanced: bool = False,
        stall_timeout_s: float = 600.0,
        prefetch: int = PREFETCH,
        pin: bool | None = None,
    ) -> None:
        self.view = view
        self.order = make_order(source, seed, repeats, balanced)
        self.repeats = repeats
        maker = TrainMaker(source, view, self.order, seed)
        workers = default_workers(source, view.image_size, threads) if workers is None else workers
        options = {"threads": threads, "stall_timeout_s": stall_timeout_s, "prefetch": prefetch, "pin": pin}
        super().__init__(source, maker, BatchLayout(batch_size, rank, world), workers, options)
        self.step = start_step  # of the batch that comes next

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        images, filled = self._pipeline.get(self.step)
        batch = self._batch(self.layout.positions(self.step), images, filled)
        self.step += 1
        return batch

    def seek(self, step: int) -> None:
        """The next batch is that of `step`."""
        if step < 0:
            raise UsageError(f"cannot seek to step {step}.")
        self.step = step

    def epoch(self, step: int | None = None) -> float:
        """Passes over the source completed before `step` (default: the next one)."""
        return (self.step if step is None else step) * self.layout.batch_size / self.order.length


class EvalStream(_Stream):
    """Every sample exactly once, in order; the last batch is padded with `valid=False`. May be walked again."""

    def __init__(
        self,
        source: Source,
        preprocess: Preprocess,
        *,
        batch_size: int,
        rank: int = 0,
        world: int = 1,
        workers: int | None = None,
        threads: bool = False,
        stall_timeout_s: float = 600.0,
        prefetch: int = PREFETCH,
        pin: bool | None = None,
    ) -> None:
        self.preprocess = preprocess
        self.images = len(source)
        batch_size = -(-batch_size // world) * world  # equal shares; padding does not count
        maker = EvalMaker(source, preprocess, len(source))
        if workers is None:
            few = len(source) < FEW
            workers = 0 if few else default_workers(source, preprocess.image_size, threads)
        options = {"threads": threads, "stall_timeout_s": stall_timeout_s, "prefetch": prefetch, "pin": pin}
        super().__init__(source, maker, BatchLayout(batch_size, rank, world), workers, {**options, "steps": -(-len(source) // batch_size)})

    def __len__(self) -> int:
        return math.ceil(self.images / self.layout.batch_size)

    def __iter__(self) -> Iterator[Batch]:
        for step in range(len(self)):
            images, filled = self._pipeline.get(step)
            yield self._batch(self.layout.positions(step), images, filled)


class Labels:
    """Labels by sample index: int64 (N), or float32 (N, K) where samples have several."""

    def __init__(self, source: Source) -> None:
        self.classes = len(source.classes)
        self.several = source.multilabel
        self.labels: Any = source.labels if self.several else np.asarray(source.labels, np.int64)

    def __call__(self, index: np.ndarray) -> torch.Tensor:
        """Padding (index -1) has label -1, or no label."""
        if not self.several:
            return torch.from_numpy(np.where(index >= 0, self.labels[index], -1))
        hot = np.zeros((len(index), self.classes), np.float32)
        for row, i in enumerate(index.tolist()):
            if i >= 0:
                hot[row, list(self.labels[i])] = 1
        return torch.from_numpy(hot)


def make_order(source: Source, seed: int, repeats: int, balanced: bool) -> EpochOrder | BalancedOrder:
    if balanced:
        if source.multilabel:
            raise UsageError(
                f"{source.name}: samples have several labels, so classes cannot be drawn equally often.",
                hint="data.sampling='shuffle'",
            )
        return BalancedOrder(np.asarray(source.labels), seed, repeats=repeats)
    return EpochOrder(len(source), seed, shards=source.shards, repeats=repeats)


def default_workers(source: Source, image_size: tuple[int, int], threads: bool = False) -> int:
    """One decode worker for each core this rank may use; none where there is nothing to decode."""
    images = getattr(source, "images", None)
    if isinstance(images, np.ndarray) and images.shape[1] * images.shape[2] <= image_size[0] * image_size[1]:
        return 0
    return min(32, rank_cores())


def rank_cores() -> int:
    """This rank's share of the cores of its machine."""
    return max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1")))
