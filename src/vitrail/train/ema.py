"""Polyak averaging: a second set of weights that follows the first.

    average <- d average + (1 - d) weights        after each step

Three ways to start (the paper gives none, so the choice is a recipe's):
    plain    from the weights as they are; after t steps they still hold a part d ** t of it
             (13.5 % after the 20,000 steps and 0.9999 of Table 2)
    debias   from nothing, divided by 1 - d ** t when read: no trace of the start
    ramp     d_t = min(d, (1 + t) / (10 + t)): short memory first, long memory later

A step that was passed over (NaN) leaves the average, and its count, as they are. Whether it
was is known on the device alone, so the count lives there, and no step waits for it.
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
    """The average of a model's parameters (in float32 at least); buffers are left alone."""

    def __init__(self, model: nn.Module, spec: EmaSpec) -> None:
        if spec.decay is None or not 0.0 <= spec.decay < 1.0:
            raise UsageError(f"ema.decay must be at least 0 and below 1, not {spec.decay}.")
        self.spec = spec
        self.decay = spec.decay
        self._average = {
            name: torch.zeros_like(wide(p.detach())) if spec.debias else wide(p.detach()).clone() for name, p in model.named_parameters()
        }
        device = _local(next(iter(self._average.values()))).device
        self._known: tuple[nn.Module, list[tuple[str, nn.Parameter]]] | None = None
        self._updates = torch.zeros((), dtype=torch.float64, device=device)
        self._start_share = torch.ones((), dtype=torch.float64, device=device)  # product of all decays: what is left of the start

    @property
    def updates(self) -> int:
        return int(self._updates)

    @property
    def start_share(self) -> float:
        return float(self._start_share)

    def decay_at(self, update: Tensor) -> Tensor:
        """The decay of update 0, 1, 2, …"""
        if not self.spec.ramp:
            return torch.full_like(update, self.decay)
        return torch.clamp_max((1 + update) / (10 + update), self.decay)

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._average)

    @property
    def now(self) -> Tensor:
        """The number of the next update, on the device."""
        return self._updates

    def tensor(self, name: str) -> Tensor:
        """One average, live, for whoever moves it (`Optimizer.carry`)."""
        return self._average[name]

    @torch.no_grad()
    def update(self, model: nn.Module, applied: Tensor | None = None, carried: frozenset[str] = frozenset()) -> None:
        """To be called after each step; `applied` False (0-d, on the device) changes nothing. carried: moved by the optimizer."""
        decay = self.decay_at(self._updates)
        if applied is not None:
            decay = torch.where(applied, decay, 1.0)
        named = [(name, p) for name, p in self._named(model) if name not in carried]
        if named:
            average = [_local(self._average[name]) for name, _ in named]
            weights = [wide(_local(p.detach())) for _, p in named]
            change = torch._foreach_sub(weights, average)
            torch._foreach_mul_(change, (1.0 - decay).to(average[0].dtype))
            torch._foreach_add_(average, change)
        self._updates += 1 if applied is None else applied
        self._start_share *= decay

    def _named(self, model: nn.Module) -> list[tuple[str, nn.Parameter]]:
        """The model's parameters; walking the modules takes as long as a small model's update, so they are remembered."""
        if self._known is None or self._known[0] is not model:
            self._known = (model, list(model.named_parameters()))
        return self._known[1]

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
        return {**self._average, "updates": self._updates, "start_share": self._start_share}

    @torch.no_grad()
    def load_state_dict(self, table: Mapping[str, Tensor]) -> None:
        own = self.state_dict()
        odd = sorted(own.keys() ^ table.keys()) or [n for n, t in own.items() if t.shape != table[n].shape]
        if odd:
            raise CheckpointError(
                f"The saved average does not fit this model: {len(odd)} tensors differ, for example {odd[0]!r}.",
                hint="resume with the recipe the run was started with",
            )
        for name, t in own.items():
            t.copy_(table[name])


def wide(t: Tensor) -> Tensor:
    """float32, or float64 where it already is."""
    return t if t.dtype == torch.float64 else t.float()


def _local(t: Tensor) -> Tensor:
    """This rank's part of a sharded tensor (FSDP2), or the tensor itself."""
    to_local = getattr(t, "to_local", None)
    return to_local() if to_local is not None else t
