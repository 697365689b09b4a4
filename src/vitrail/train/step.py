"""One optimizer step: a rank's share of the global batch in, new weights out, no wait for the device.

    outcome = step(batch, lr)         # 0-d tensors; the host reads them later (`reports.py`)

The share is cut into micro-batches whose gradients add up to those of the whole batch. A loss
or gradient that is not finite changes nothing: no weight, no moment, no average. Every rank
sees the same verdict, because it is taken after the loss and the gradients have been summed
over ranks. After more such steps than the recipe allows, the step does nothing at all until
the host, which learns of it a few steps later, stops the run: it then finds the weights as
they were before the step that failed.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from vitrail.data.batch import Batch
from vitrail.errors import ResourceError
from vitrail.kernels import draws
from vitrail.kernels.fp8 import Scales
from vitrail.runtime import distributed
from vitrail.runtime.device import memory_in_use
from vitrail.runtime.faults import fault
from vitrail.train.ema import Ema
from vitrail.train.objective import Objective
from vitrail.train.optim import Optimizer
from vitrail.train.scale import LossScale

__all__ = ["Outcome", "TrainStep", "cut"]

Augmented = tuple[Tensor, Tensor]


class Outcome(NamedTuple):
    """What a step did; on the device."""

    loss: Tensor  # mean over the global batch
    grad_norm: Tensor
    applied: Tensor  # bool: the weights moved
    bad: Tensor  # bool: not finite, and not an overflow that the fp16 scale absorbs
    losses: Tensor  # (share,) this rank's samples


class TrainStep:
    """Holds what a step needs; `skipped` (on the device) counts the steps that were passed over."""

    def __init__(
        self,
        objective: Objective,
        optimizer: Optimizer,
        ema: Ema | None,
        scale: LossScale,
        augment: Callable[[Batch], Augmented],
        *,
        device: torch.device,
        micro: int,
        chunk: int,
        seed: int,
        draws_inside: bool,
        skip_nonfinite: int = 0,
        shrink: bool = False,
    ) -> None:
        self.objective, self.optimizer, self.ema, self.scale, self.augment = objective, optimizer, ema, scale, augment
        self.forward: Callable[..., Tensor] = objective  # or its DDP wrapper
        self.device, self.micro, self.chunk = device, micro, chunk
        self.words = draws.key(seed, "model")
        self.scales: Scales | None = None  # of fp8 layers
        self.draws_inside = draws_inside  # dropout or stochastic depth is on
        self.allowed, self.shrink = skip_nonfinite, shrink
        self.skipped = torch.zeros((), dtype=torch.int64, device=device)

    def __call__(self, batch: Batch, lr: float) -> Outcome:
        while True:
            try:
                with self.scales.step() if self.scales is not None else nullcontext():
                    losses = self.gradients(batch)
                break
            except torch.OutOfMemoryError as error:
                self.make_room(error, batch)
        share = len(batch)
        loss = losses.sum(dtype=torch.float64)
        if distributed.world() > 1:
            loss = distributed.sum_across(loss)
        loss = loss / (share * distributed.world())
        if (action := fault("step.gradient")) in ("nan", "inf"):
            next(iter(self.optimizer.named_parameters()))[1].grad.mul_(float(action))  # type: ignore[union-attr, arg-type]
        fault("step.before_update")
        return self.update(loss, losses, lr)

    def prepare(self, batch: Batch, steps: int = 1) -> list[list[Augmented]]:
        """The augmented pieces of each of `steps` shares that lie one after another, for whoever makes them ahead."""
        images, targets = self.augment(batch)
        share = len(batch) // steps
        cuts = [slice(start, min(start + self.chunk, share)) for start in range(0, share, self.chunk)]
        mine = [(images[first : first + share], targets[first : first + share]) for first in range(0, len(batch), share)]
        return [[(x[piece], y[piece]) for piece in cuts] for x, y in mine]

    def gradients(self, batch: Batch) -> Tensor:
        """Leaves the share's mean gradient in `.grad`; returns the losses of its samples."""
        self.optimizer.zero_grad()
        share, parts = len(batch), []
        for number, start in enumerate(range(0, share, self.chunk)):
            chunk = cut(batch, start, start + self.chunk)
            images, targets = batch.ready[number] if batch.ready else self.augment(chunk)
            fault("step.augmented")
            for first in range(0, len(chunk), self.micro):
                piece = slice(first, first + self.micro)
                last = start + first + self.micro >= share
                with distributed.accumulating(self.forward, last=last):
                    losses = self.losses(images[piece], targets[piece], chunk.position[piece])
                    (losses.sum() / share * self.scale.value).backward()
                parts.append(losses.detach())
        return torch.cat(parts)

    def losses(self, images: Tensor, targets: Tensor, position: Tensor) -> Tensor:
        key = draws.sample_keys(self.words, position) if self.draws_inside else None
        with torch.no_grad():
            prepared = self.objective.prepare(images, targets, position)
        losses = self.forward(images, key, *prepared)
        action = fault("step.loss")
        if action == "oom":
            raise torch.OutOfMemoryError("injected")
        return losses * float(action) if action in ("nan", "inf") else losses

    def update(self, loss: Tensor, losses: Tensor, lr: float) -> Outcome:
        finite = torch.isfinite(loss)
        stopped = self.skipped > self.allowed
        info = self.optimizer.step(lr, loss_scale=self.scale.value, ok=finite & ~stopped)
        overflow = finite & ~torch.isfinite(info.grad_norm)
        bad = ~info.applied & ~stopped
        if self.scale.on:
            bad = bad & ~self.scale.absorbs(overflow)
            self.scale.update(overflow)
        self.skipped += bad
        if self.scales is not None:
            self.scales.update()
        if self.ema is not None:
            self.ema.update(self.objective.model, info.applied, self.optimizer.carried)
        fault("step.after_update")
        return Outcome(loss, info.grad_norm, info.applied, bad, losses)

    def make_room(self, error: BaseException, batch: Batch) -> None:
        """After the device ran out of memory: half the micro-batch and once more, or say what would fit."""
        self.optimizer.zero_grad()
        peak = memory_in_use(self.device) / 2**30
        torch.cuda.empty_cache()
        size = tuple(batch.images.shape[2:])
        if not self.shrink or self.micro == 1:
            smaller = self.micro // 2
            raise ResourceError(
                f"{self.device} ran out of memory on {self.micro} images of {size[0]}x{size[1]} at once (peak {peak:.1f} GiB).",
                hint=f"train.micro_batch_size={smaller} gives the same result in more pieces; train.checkpoint_blocks=true needs less"
                if smaller
                else "train.checkpoint_blocks=true, a smaller image_size or a smaller model",
            ) from error
        self.micro = next(n for n in range(self.micro // 2, 0, -1) if self.micro % n == 0)
        warnings.warn(f"{self.device} ran out of memory; the same batches go on with {self.micro} images at once", stacklevel=2)


def cut(batch: Batch, start: int, stop: int) -> Batch:
    """Samples start .. stop of a batch."""
    if start == 0 and stop >= len(batch):
        return batch
    piece = slice(start, stop)
    host = batch.host_position
    return replace(
        batch,
        images=batch.images[piece],
        labels=batch.labels[piece],
        index=batch.index[piece],
        position=batch.position[piece],
        valid=batch.valid[piece],
        host_position=None if host is None else host[piece],
        ready=None,
    )
