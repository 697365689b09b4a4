"""The only file that touches torch.distributed.

torchrun, Slurm, Kubernetes and Ray all start processes with RANK, WORLD_SIZE,
LOCAL_RANK and MASTER_ADDR set; we honour those and nothing else. Without them there is
one rank and every function here is free.

CPU tensors travel by gloo and CUDA tensors by NCCL in one group, so that small control
messages (stop now?) never wait for the GPU. `shutdown` passes a barrier first: without
it gloo aborts in about a third of the exits, after the work is done.
"""

from __future__ import annotations

import inspect
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

__all__ = [
    "accumulating",
    "agree",
    "barrier",
    "broadcast_object",
    "gather_objects",
    "greatest_across",
    "group",
    "is_main",
    "is_sharded",
    "local_rank",
    "rank",
    "reshard",
    "shard",
    "sum_across",
    "whole",
    "world",
    "wrap_data_parallel",
]


def launched() -> bool:
    """Was this process started as one of several ranks?"""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1 and "RANK" in os.environ


def rank() -> int:
    return dist.get_rank() if dist.is_initialized() else int(os.environ.get("RANK", "0")) if launched() else 0


def world() -> int:
    return dist.get_world_size() if dist.is_initialized() else int(os.environ["WORLD_SIZE"]) if launched() else 1


def local_rank() -> int:
    return int(os.environ.get("LOCAL_RANK", "0"))


def is_main() -> bool:
    return rank() == 0


@contextmanager
def group(timeout_s: float = 600.0) -> Iterator[None]:
    """The process group for the length of a run; nothing with one rank, or inside a group that exists."""
    if not launched() or dist.is_initialized():
        yield
        return
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    try:
        yield
        dist.barrier()  # on the way out of a healthy run only: a failed rank must not wait for the others
    finally:
        dist.destroy_process_group()


def barrier() -> None:
    if dist.is_initialized():
        dist.barrier()


def sum_across(tensor: Tensor) -> Tensor:
    """Add a tensor over the ranks, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor)
    return tensor


def greatest_across(tensor: Tensor) -> Tensor:
    """The element-wise maximum over the ranks, in place."""
    if dist.is_initialized():
        dist.all_reduce(tensor, op=dist.ReduceOp.MAX)
    return tensor


def agree(code: int) -> int:
    """The largest code any rank brings: one small CPU message, so all ranks act at the same step."""
    if not dist.is_initialized():
        return code
    message = torch.tensor(code, dtype=torch.int64)
    dist.all_reduce(message, op=dist.ReduceOp.MAX)
    return int(message)


def broadcast_object(value: Any) -> Any:
    """Rank 0's value on every rank."""
    if not dist.is_initialized():
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, device=torch.device("cpu"))
    return box[0]


def gather_objects(value: Any) -> list[Any]:
    """Every rank's value, in rank order, on every rank."""
    if not dist.is_initialized():
        return [value]
    box: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(box, value)
    return box


def wrap_data_parallel(model: nn.Module, device: torch.device) -> nn.Module:
    """DDP: gradients averaged over ranks, buckets sent while the backward pass still runs."""
    ids = [device.index] if device.type == "cuda" else None
    wrapper = nn.parallel.DistributedDataParallel
    known = inspect.signature(wrapper.__init__).parameters
    buffers = "forward_sync_buffers" if "forward_sync_buffers" in known else "broadcast_buffers"  # 2.13 renamed it
    options: dict[str, Any] = {buffers: False}
    return wrapper(model, device_ids=ids, gradient_as_bucket_view=True, **options)


def shard(model: nn.Module, parts: Iterable[nn.Module], device: torch.device, methods: Iterable[str] = ()) -> nn.Module:
    """FSDP2: the parameters of each part, then the rest, sharded over the ranks and gathered just before use.

    Names do not change; parameters become DTensors. `methods` of the model gather them as `forward` does.
    """
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    mesh = init_device_mesh(device.type, (world(),))
    for part in parts:
        fully_shard(part, mesh=mesh)
    fully_shard(model, mesh=mesh)
    for name in methods:
        register_fsdp_forward_method(model, name)
    return model


def reshard(model: nn.Module) -> None:
    """Give gathered FSDP parameters back, so that parameters are shards again; nothing elsewhere."""
    part: Any
    for part in model.modules():
        if hasattr(part, "reshard"):
            part.reshard()


@contextmanager
def accumulating(module: Any, *, last: bool) -> Iterator[None]:
    """Around one micro-batch: gradients travel between ranks with the last one only."""
    if hasattr(module, "set_requires_gradient_sync"):  # FSDP2
        module.set_requires_gradient_sync(last)
    elif not last and hasattr(module, "no_sync"):  # DDP
        with module.no_sync():
            yield
        return
    yield


def is_sharded(tensor: Tensor) -> bool:
    return hasattr(tensor, "full_tensor")


def whole(tensor: Tensor) -> Tensor:
    """A sharded tensor gathered (every rank must call this), any other as it is."""
    return tensor.full_tensor() if is_sharded(tensor) else tensor  # type: ignore[attr-defined]
