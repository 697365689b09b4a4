"""Everything a run is made of, to files and back, bit for bit.

A run is a few named parts (model, optimizer, ema, loss scale), each a flat table of named
tensors, and one integer, `step`. Draws are functions of the step, so there is no generator
to save. Each part is one safetensors file; the rest is state.json.

Two layouts, each readable by any number of ranks: whole tensors (gathered from shards when
there are any), and shards (each rank writes its own through torch.distributed.checkpoint).
A compact checkpoint holds half as many bytes, and is then not the same bits: it is for
carrying a run to another machine over a narrow link.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from vitrail.errors import CheckpointError
from vitrail.runtime import distributed
from vitrail.runtime.disk import write_tensors
from vitrail.train.store import Checkpoint, Draft

__all__ = ["Part", "TrainState", "load_state", "save_state"]


class Part(Protocol):
    """Named live tensors out; the same names in, copied."""

    def state_dict(self) -> Mapping[str, Any]: ...
    def load_state_dict(self, state: Any) -> Any: ...


@dataclass
class TrainState:
    """What changes from step to step. parts["model"] is the plain module, inside any wrapper."""

    parts: dict[str, Part]
    step: int = 0
    pending: list[float] = field(default_factory=list)  # losses since the last line of metrics.jsonl
    best: dict[str, Any] = field(default_factory=dict)  # step and figure of the best evaluation
    counters: dict[str, float] = field(default_factory=dict)  # seconds, device-hours, lost log lines, …


def _tables(state: TrainState) -> dict[str, dict[str, Tensor]]:
    return {name: {key: value.detach() for key, value in part.state_dict().items()} for name, part in state.parts.items()}


def save_state(draft: Draft, state: TrainState, about: Mapping[str, Any], *, sharded: bool = False, compact: bool = False) -> None:
    """Fill a draft. Every rank calls this (gathering is collective); rank 0 writes the whole tensors."""
    tables = _tables(state)
    if sharded:
        _save_shards(draft, tables)
    refused: OSError | None = None  # raised at the end: until then the other ranks count on this one to gather
    for name, table in () if sharded else tables.items():
        gathered = {key: distributed.whole(value) for key, value in table.items()}
        if compact:
            gathered = {key: _halved(value, torch.bfloat16 if name == "optimizer" else torch.float16) for key, value in gathered.items()}
        if distributed.is_main() and refused is None:
            try:
                draft.add(f"{name}.safetensors", lambda path, table=gathered: write_tensors(path, table))  # type: ignore[misc]
            except OSError as error:
                refused = error
        del gathered
    if refused is not None:
        raise refused
    if distributed.is_main():
        body = {"step": state.step, "pending": state.pending, "best": state.best, "counters": state.counters}
        draft.add_json("state.json", {**about, **body, "parts": sorted(tables), "sharded": sharded, "compact": compact})


def _halved(value: Tensor, dtype: torch.dtype) -> Tensor:
    """A float32 tensor in two bytes an element; single numbers, and what float16 cannot hold, stay."""
    if value.dtype != torch.float32 or value.ndim == 0:
        return value
    if dtype == torch.float16 and not float(value.abs().max()) < 65504:
        return value
    return value.to(dtype)


def _save_shards(draft: Draft, tables: Mapping[str, Mapping[str, Tensor]]) -> None:
    import torch.distributed.checkpoint as dcp

    flat = {f"{part}/{name}": tensor for part, table in tables.items() for name, tensor in table.items()}
    dcp.save(flat, checkpoint_id=draft.path / "shards")  # type: ignore[attr-defined]
    if distributed.is_main():
        draft.add_existing("shards")


def load_state(checkpoint: Checkpoint, state: TrainState) -> dict[str, Any]:
    """Put a checkpoint into `state` and return its state.json: any layout into any number of ranks."""
    body = checkpoint.state()
    missing = sorted(state.parts.keys() - set(body["parts"]))
    if missing:
        raise CheckpointError(
            f"{checkpoint.path} has no {' and no '.join(missing)}, which this recipe needs.",
            hint="resume with the recipe the run was started with, or choose another --out.",
        )
    ours = _tables(state)
    saved = _read_shards(checkpoint.path, ours) if body["sharded"] else _read_files(checkpoint.path, ours)
    for name, part in state.parts.items():
        _check_names(f"{checkpoint.path} {name}", ours[name], saved[name])
        if body.get("compact"):
            saved[name] = {key: value.to(ours[name][key].dtype) for key, value in saved[name].items()}
        fitted = {key: _like(saved[name][key], target) for key, target in ours[name].items()}
        part.load_state_dict(fitted)
    state.step = int(body["step"])
    state.pending, state.best, state.counters = list(body["pending"]), dict(body["best"]), dict(body["counters"])
    return body


def _read_files(path: Path, ours: Mapping[str, Any]) -> dict[str, dict[str, Tensor]]:
    from safetensors.torch import load_file

    return {name: load_file(path / f"{name}.safetensors") for name in ours}


def _read_shards(path: Path, ours: Mapping[str, Mapping[str, Tensor]]) -> dict[str, dict[str, Tensor]]:
    """Let DCP fill tensors shaped and sharded as ours are now (it cuts and joins as needed)."""
    import torch.distributed.checkpoint as dcp

    flat = {f"{part}/{name}": torch.empty_like(tensor) for part, table in ours.items() for name, tensor in table.items()}
    dcp.load(flat, checkpoint_id=path / "shards", no_dist=distributed.world() == 1)  # type: ignore[attr-defined]
    return {part: {name: flat[f"{part}/{name}"] for name in table} for part, table in ours.items()}


def _check_names(where: str, ours: Mapping[str, Tensor], saved: Mapping[str, Tensor]) -> None:
    missing, unexpected = sorted(ours.keys() - saved.keys()), sorted(saved.keys() - ours.keys())
    shapes = [name for name in ours.keys() & saved.keys() if ours[name].shape != saved[name].shape]
    if missing or unexpected or shapes:
        raise CheckpointError(
            f"{where} does not fit: missing {missing[:5]}, unexpected {unexpected[:5]}, of another shape {shapes[:5]}.",
            hint="resume with the recipe the run was started with, or choose another --out.",
        )


def _like(value: Tensor, target: Tensor) -> Tensor:
    """A whole tensor cut up as `target` is, when that is sharded; shards from DCP fit already."""
    if not distributed.is_sharded(target) or distributed.is_sharded(value):
        return value
    from torch.distributed.tensor import distribute_tensor

    return distribute_tensor(value.to(target.device), target.device_mesh, target.placements)  # type: ignore[attr-defined]
