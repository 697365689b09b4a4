"""Polyak averaging: a second set of weights that follows the first.

    average <- d average + (1 - d) weights        after each step

Three ways to start (the paper gives none, so the choice is a recipe's):
    plain    from the weights as they are; after t steps they still hold a part d ** t of it
             (13.5 % after the 20,000 steps and 0.9999 of Table 2)
    debias   from nothing, divided by 1 - d ** t when read: no trace of the start
    ramp     d_t = min(d, (1 + t) / (10 + t)): short memory first, long memory later
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitrail.config import EmaSpec
from vitrail.errors import CheckpointError, UsageError

__all__ = ["Ema"]


class Ema:
    """The average of a model's parameters (float32); buffers are copied as they are."""

    def __init__(self, model: nn.Module, spec: EmaSpec) -> None:
        if spec.decay is None or not 0.0 <= spec.decay < 1.0:
            raise UsageError(f"ema.decay must be at least 0 and below 1, not {spec.decay}.")
        self.spec = spec
        self.decay = spec.decay
        self.updates = 0
        self.start_share = 1.0  # product of all decays so far: what is left of the start
        self._average = {
            name: torch.zeros_like(p, dtype=torch.float32) if spec.debias else p.detach().float().clone()
            for name, p in model.named_parameters()
        }

    def decay_at(self, update: int) -> float:
        """The decay of update 0, 1, 2, …"""
        return min(self.decay, (1 + update) / (10 + update)) if self.spec.ramp else self.decay

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """To be called after each step. After a step that was skipped it takes the unchanged weights once more."""
        decay = self.decay_at(self.updates)
        average, weights = [], []
        for name, p in model.named_parameters():
            average.append(_local(self._average[name]))
            weights.append(_local(p.detach()).float())
        torch._foreach_lerp_(average, weights, 1.0 - decay)
        self.updates += 1
        self.start_share *= decay

    def average(self) -> dict[str, Tensor]:
        """The averaged parameters by name (bias-corrected where the spec says so)."""
        if not self.spec.debias:
            return dict(self._average)
        if self.updates == 0:
            raise UsageError("A debiased average has no value before its first update.")
        return {name: t / (1.0 - self.start_share) for name, t in self._average.items()}

    @torch.no_grad()
    def copy_to(self, model: nn.Module) -> None:
        """Writes the average into a model of the same shape."""
        parameters = dict(model.named_parameters())
        for name, t in self.average().items():
            parameters[name].copy_(t)

    @contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """The model holds the average inside this block, and exactly its own weights after it."""
        own = {name: p.detach().clone() for name, p in model.named_parameters()}
        if self.updates or not self.spec.debias:
            self.copy_to(model)
        try:
            yield
        finally:
            with torch.no_grad():
                for name, p in model.named_parameters():
                    p.copy_(own[name])

    def state_dict(self) -> dict[str, Tensor]:
        """Flat and live, as `Optimizer.state_dict`."""
        share = torch.tensor(self.start_share, dtype=torch.float64)
        return {**self._average, "updates": torch.tensor(self.updates), "start_share": share}

    @torch.no_grad()
    def load_state_dict(self, table: Mapping[str, Tensor]) -> None:
        own = self.state_dict()
        odd = sorted(own.keys() ^ table.keys()) or [n for n, t in own.items() if t.shape != table[n].shape]
        if odd:
            raise CheckpointError(
                f"The saved average does not fit this model: {len(odd)} tensors differ, for example {odd[0]!r}.",
                hint="resume with the recipe the run was started with",
            )
        for name, t in self._average.items():
            t.copy_(table[name])
        self.updates = int(table["updates"])
        self.start_share = float(table["start_share"])


def _local(t: Tensor) -> Tensor:
    """This rank's part of a sharded tensor (FSDP2), or the tensor itself."""
    to_local = getattr(t, "to_local", None)
    return to_local() if to_local is not None else t
