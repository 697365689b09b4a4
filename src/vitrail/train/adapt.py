"""Which weights learn: all of them, the head alone, all but the first blocks, or low-rank updates (LoRA).

    adapt(model, spec)      freezes and inserts, in place, before the optimizer is built
    merged_state(model)     the plain model's weights, low-rank updates added into those they update

LoRA (Hu et al. 2022): W + (alpha / rank) B A, with A drawn and B zero, so that the first
forward pass is the original's. It is a parametrisation of `weight`, so whoever reads
`layer.weight` sees the sum.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vitrail.config import AdaptSpec
from vitrail.errors import UsageError
from vitrail.kernels import draws
from vitrail.train.optim import is_head

__all__ = ["LowRank", "adapt", "merged_state"]


class LowRank(nn.Module):
    """W -> W + scale * b @ a."""

    def __init__(self, weight: Tensor, rank: int, alpha: float, words: tuple[int, int]) -> None:
        super().__init__()
        rows, columns = weight.shape
        keys = draws.sample_keys(words, torch.arange(rank))
        bound = 1 / math.sqrt(columns)
        self.a = nn.Parameter(((2 * draws.uniform(keys, columns) - 1) * bound).to(weight))
        self.b = nn.Parameter(torch.zeros(rows, rank).to(weight))
        self.scale = alpha / rank

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.scale * (self.b @ self.a)


def adapt(model: nn.Module, spec: AdaptSpec, *, seed: int = 0) -> nn.Module:
    """Leave to learn only what `spec` names; the head always learns."""
    if spec.train == "all":
        _freeze_blocks(model, spec.frozen_blocks)
        return model
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(is_head(name))
    if spec.train == "lora":
        _insert(model, spec, seed)
    return model


def merged_state(model: nn.Module) -> dict[str, Tensor]:
    """The state of the plain model, every low-rank update added into its weight; `model` keeps learning as it is."""
    state = {name: tensor for name, tensor in model.state_dict().items() if ".parametrizations." not in name}
    for name, module in model.named_modules():
        if parametrize.is_parametrized(module, "weight"):
            state[f"{name}.weight"] = module.weight.detach()
    return state


def _freeze_blocks(model: nn.Module, count: int) -> None:
    if count == 0:
        return
    blocks = getattr(model, "blocks", None)
    if blocks is None or not 0 < count <= len(blocks):
        have = "no blocks" if blocks is None else f"{len(blocks)} blocks"
        raise UsageError(f"adapt.frozen_blocks={count}, and the model has {have}.", hint="adapt.train=head freezes everything but the head")
    for name, parameter in model.named_parameters():
        in_block = name.startswith("blocks.")
        parameter.requires_grad_(int(name.split(".")[1]) >= count if in_block else _is_above(name))


def _is_above(name: str) -> bool:
    """Whether a parameter lies after the last block."""
    return name.split(".")[0] in ("norm", "fc_norm", "map", "pre_logits", "head", "head_dist")


def _insert(model: nn.Module, spec: AdaptSpec, seed: int) -> None:
    if spec.lora_rank < 1:
        raise UsageError(f"adapt.lora_rank={spec.lora_rank} must be at least 1.")
    layers = [
        (name, module)
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and any(name.endswith(target) for target in spec.lora_targets)
    ]
    if not layers:
        linear = sorted({name.split(".", 2)[-1] for name, module in model.named_modules() if isinstance(module, nn.Linear)})
        raise UsageError(
            f"No linear layer's name ends in one of {', '.join(spec.lora_targets)}.", hint=f"this model's layers: {', '.join(linear[:8])}"
        )
    for name, layer in layers:
        update = LowRank(layer.weight, spec.lora_rank, spec.lora_alpha, draws.key(seed, f"lora {name}"))
        parametrize.register_parametrization(layer, "weight", update)
