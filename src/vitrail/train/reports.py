"""What the steps did, read by the host a few steps later, so that neither waits for the other.

Each outcome starts its way to the host at once; it is looked at when the device is `lag`
steps further on (on a CPU: immediately), or when somebody drains the queue to write a line
or a checkpoint. Holding at most `lag` outcomes also keeps the host from running far ahead.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.train.step import Outcome

__all__ = ["Report", "Reports"]


@dataclass(frozen=True)
class Report:
    """Of one step, on the host."""

    step: int  # the number of the step, counted from 0
    loss: float
    grad_norm: float
    applied: bool
    bad: bool
    index: Tensor  # samples of this rank, and …
    losses: Tensor  # … what each of them lost

    def culprits(self) -> list[int]:
        """Samples of this rank whose own loss is not finite."""
        return self.index[~torch.isfinite(self.losses).to(self.index.device)].tolist()


class Reports:
    """`push` an outcome a step; what comes back is known for certain."""

    def __init__(self, device: torch.device, lag: int = 4) -> None:
        self.cuda = device.type == "cuda"
        self.lag = lag if self.cuda else 0
        self._queue: deque[tuple[int, Tensor, Tensor, Tensor, torch.cuda.Event | None]] = deque()

    def push(self, step: int, outcome: Outcome, index: Tensor) -> list[Report]:
        numbers = torch.stack([x.to(torch.float64) for x in (outcome.loss, outcome.grad_norm, outcome.applied, outcome.bad)])
        event = None
        if self.cuda:
            host = torch.empty(4, dtype=torch.float64, pin_memory=True)
            host.copy_(numbers, non_blocking=True)
            numbers, event = host, torch.cuda.Event()
            event.record()
        self._queue.append((step, numbers, index, outcome.losses, event))
        return [self._pop() for _ in range(len(self._queue) - self.lag)]

    def drain(self) -> list[Report]:
        """Wait for everything that was started."""
        return [self._pop() for _ in range(len(self._queue))]

    def _pop(self) -> Report:
        step, numbers, index, losses, event = self._queue.popleft()
        if event is not None:
            event.synchronize()
        loss, norm, applied, bad = numbers.tolist()
        return Report(step, loss, norm, bool(applied), bool(bad), index, losses)
