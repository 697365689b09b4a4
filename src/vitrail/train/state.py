"""Everything a run is made of, to files and back, bit for bit.

`TrainState` holds the model, optimizer, EMA, loss scale and the one integer `step`; draws
are functions of the step, so there is no generator to save. Tensors go to safetensors
under readable names (`exp_avg/blocks.0.mlp.fc1.weight`); everything else to state.json.

Two layouts, read by each other: whole tensors (one file, gathered from shards when
needed), and sharded (each rank writes its part through torch.distributed.checkpoint).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from vitrail.errors import CheckpointError
from vitrail.runtime import distributed
from vitrail.runtime.disk import write_tensors
from vitrail.runtime.faults import fault
from vitrail.train.store import Checkpoint, Draft

__all__ = ["Stateful", "TrainState", "load_state", "optimizer_tensors", "save_state"]


class Stateful(Protocol):
    """An EMA or a loss scale: named tensors out, the same in."""

    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


@dataclass
class TrainState:
    """What changes from step to step. `model` is the plain module, inside any DDP or compiled wrapper."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    ema: Stateful | None = None
    extra: Stateful | None = None  # the loss scale of fp16
    step: int = 0


def optimizer_tensors(model: nn.Module, optimizer: torch.optim.Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The optimizer's state by parameter name: tensors as `key/name`, plain numbers apart."""
    tensors: dict[str, Tensor] = {}
    plain: dict[str, Any] = {}
    for name, parameter in model.named_parameters():
        for key, value in optimizer.state.get(parameter, {}).items():
            target = tensors if isinstance(value, Tensor) else plain
            target[f"{key}/{name}"] = value
    return tensors, plain


def _collect(state: TrainState) -> tuple[dict[str, dict[str, Tensor]], dict[str, Any]]:
    """{file name: {tensor name: tensor}} and the JSON that goes beside it."""
    optimizer, plain = optimizer_tensors(state.model, state.optimizer)
    files = {"model": dict(state.model.state_dict()), "optimizer": optimizer}
    body: dict[str, Any] = {"step": state.step, "optimizer": plain}
    for name, part in (("ema", state.ema), ("scale", state.extra)):
        if part is not None:
            saved = part.state_dict()
            files[name] = {key: value for key, value in saved.items() if isinstance(value, Tensor)}
            body[name] = {key: value for key, value in saved.items() if not isinstance(value, Tensor)}
    return files, body


def save_state(draft: Draft, state: TrainState, about: Mapping[str, Any], *, sharded: bool = False) -> None:
    """Fill a draft. With several ranks every rank calls this with a draft of the same path; rank 0's is committed."""
    files, body = _collect(state)
    if sharded:
        _save_shards(draft, files)
    for name, tensors in files.items():
        if sharded:
            break
        gathered = {key: distributed.whole(value) for key, value in tensors.items()}  # a collective: all ranks
        if distributed.is_main():
            draft.add(f"{name}.safetensors", lambda path, whole=gathered: write_tensors(path, _unshared(whole)))  # type: ignore[misc]
        del gathered
    if distributed.is_main():
        draft.add_json("state.json", {**about, **body, "files": sorted(files), "sharded": sharded})


def _unshared(tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _save_shards(draft: Draft, files: dict[str, dict[str, Tensor]]) -> None:
    import torch.distributed.checkpoint as dcp

    flat = {f"{file}/{name}": tensor.detach() for file, tensors in files.items() for name, tensor in tensors.items()}
    dcp.save(flat, checkpoint_id=draft.path / "shards")
    if distributed.is_main():
        draft.add_existing("shards")
        fault("commit.after_file")


def load_state(checkpoint: Checkpoint, state: TrainState) -> dict[str, Any]:
    """Put a checkpoint into `state` and return its state.json. Any layout into any number of ranks."""
    body = checkpoint.state()
    read = _read_shards if body["sharded"] else _read_files
    files = read(checkpoint.path, body, state)
    _load_model(state.model, files["model"], checkpoint.path)
    _load_optimizer(state, files["optimizer"], body["optimizer"])
    for name, part in (("ema", state.ema), ("scale", state.extra)):
        if part is not None and name in files:
            part.load_state_dict({**files[name], **body[name]})
    state.step = int(body["step"])
    return body


def _read_files(path: Path, body: dict[str, Any], _state: TrainState) -> dict[str, dict[str, Tensor]]:
    from safetensors.torch import load_file

    return {name: load_file(path / f"{name}.safetensors") for name in body["files"]}


def _read_shards(path: Path, body: dict[str, Any], state: TrainState) -> dict[str, dict[str, Tensor]]:
    """Allocate every tensor of the checkpoint, shaped and sharded as we are now, and let DCP fill them."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    metadata = dcp.FileSystemReader(path / "shards").read_metadata().state_dict_metadata
    ours = {**dict(state.model.named_parameters()), **dict(state.model.named_buffers())}
    flat: dict[str, Any] = {}
    for name, saved in metadata.items():
        assert isinstance(saved, TensorStorageMetadata), name
        parameter = ours.get(name.partition("/")[2] if name.startswith("model/") else name.split("/", 2)[-1])
        like = parameter is not None and parameter.shape == saved.size and distributed.is_sharded(parameter)
        flat[name] = (
            torch.zeros_like(parameter, dtype=saved.properties.dtype)  # type: ignore[arg-type]
            if like
            else torch.zeros(saved.size, dtype=saved.properties.dtype)
        )
    dcp.load(flat, checkpoint_id=path / "shards")
    files: dict[str, dict[str, Tensor]] = {name: {} for name in body["files"]}
    for name, tensor in flat.items():
        file, _, rest = name.partition("/")
        files[file][rest] = tensor
    return files


def _load_model(model: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    targets = dict(model.state_dict())
    if targets.keys() != tensors.keys():
        missing, unexpected = sorted(targets.keys() - tensors.keys()), sorted(tensors.keys() - targets.keys())
        raise CheckpointError(
            f"{path} does not fit this model: missing {missing[:5]}, unexpected {unexpected[:5]}.",
            hint="resume with the recipe the run was started with, or choose another --out.",
        )
    with torch.no_grad():
        for name, target in targets.items():
            target.copy_(_like(tensors[name], target))


def _like(value: Tensor, target: Tensor) -> Tensor:
    """`value` sharded as `target` is (full tensors are cut up; shards fit already)."""
    if distributed.is_sharded(target) and not distributed.is_sharded(value):
        from torch.distributed.tensor import distribute_tensor

        return distribute_tensor(value.to(target.device), target.device_mesh, target.placements)  # type: ignore[attr-defined]
    return distributed.whole(value) if distributed.is_sharded(value) and not distributed.is_sharded(target) else value


def _load_optimizer(state: TrainState, tensors: Mapping[str, Tensor], plain: Mapping[str, Any]) -> None:
    """Straight into `optimizer.state`: load_state_dict would cast a bf16 momentum to the parameter's type."""
    parameters = dict(state.model.named_parameters())
    on_device = {
        parameter: bool(group.get("fused") or group.get("capturable"))
        for group in state.optimizer.param_groups
        for parameter in group["params"]
    }
    for place, value in [*tensors.items(), *plain.items()]:
        key, _, name = place.partition("/")
        parameter = parameters[name]
        if isinstance(value, Tensor):
            if value.shape == parameter.shape:
                value = _like(value, parameter)
            if key != "step" or on_device.get(parameter, False):
                value = value.to(parameter.device)
        state.optimizer.state[parameter][key] = value
