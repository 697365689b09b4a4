"""Initial values, as the paper's code draws them (the table is in docs/papers.md).

Each parameter draws from its own generator, seeded by (seed, parameter's name): another
number of classes or one more option leaves all other parameters' values as they were,
and large parameters can be filled side by side.
"""

from __future__ import annotations

import math
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.kernels.draws import key as words
from vitrail.model.config import ResNetConfig, ViTConfig

__all__ = ["initialise", "initialise_head", "lecun_normal_", "xavier_uniform_"]

Config = ViTConfig | ResNetConfig
TRUNCATED_STD = 0.87962566103423978  # standard deviation of a unit normal cut at two of its own


def generator_for(seed: int, name: str) -> torch.Generator:
    high, low = words(seed, f"initial {name}")
    return torch.Generator().manual_seed((high << 32 | low) & (2**63 - 1))


def lecun_normal_(weight: Tensor, generator: torch.Generator) -> None:
    """flax's default: normal cut at two standard deviations, with variance 1 / fan_in after the cut."""
    std = math.sqrt(1.0 / weight[0].numel()) / TRUNCATED_STD
    nn.init.trunc_normal_(weight, std=std, a=-2 * std, b=2 * std, generator=generator)


def xavier_uniform_(weight: Tensor, generator: torch.Generator, parts: int = 1) -> None:
    """U(-b, b), b = sqrt(6 / (fan_in + fan_out)); `parts` matrices stacked by rows count each for itself."""
    bound = math.sqrt(6.0 / (weight.shape[1] + weight.shape[0] // parts))
    weight.uniform_(-bound, bound, generator=generator)


def initialise_parameter(name: str, parameter: Tensor, config: Any, generator: torch.Generator) -> None:
    """One parameter of a model by its name. The order of the tests is from the particular to the general."""
    *_, owner, kind = ("", *name.split("."))
    if owner in ("head", "head_dist"):
        parameter.fill_(0.0 if kind == "weight" else config.head_bias_init)
    elif kind in ("cls", "dist"):
        parameter.zero_()
    elif kind == "registers":
        parameter.normal_(0.0, 1e-6, generator=generator)
    elif kind == "probe":
        bound = math.sqrt(6.0 / (1 + config.width))
        parameter.uniform_(-bound, bound, generator=generator)
    elif kind in ("scale1", "scale2"):
        parameter.fill_(config.layer_scale or 0.0)
    elif kind in ("table", "rows", "columns", "first"):
        parameter.normal_(0.0, 0.02, generator=generator)
    elif kind == "weight" and parameter.ndim == 1:
        # a normalisation's scale; where it is the last step of a ResNet unit it starts at 0, and the unit as its shortcut
        last = owner == "norm3" and getattr(config, "version", "v1") == "v1"
        parameter.fill_(0.0 if last else 1.0)
    elif kind == "bias" and owner in ("fc1", "fc2"):
        parameter.normal_(0.0, 1e-6, generator=generator)
    elif kind == "bias":
        parameter.zero_()
    elif parameter.ndim == 4 or owner == "pre_logits":
        lecun_normal_(parameter, generator)
    else:
        parts = {"qkv": 3, "kv": 2, "fc1": 2 if config.mlp == "swiglu" and not name.startswith("map.") else 1}.get(owner, 1)
        xavier_uniform_(parameter, generator, parts)


@torch.no_grad()
def initialise(model: nn.Module, config: Config, seed: int) -> None:
    """Fill every parameter of a model that is on the CPU; large ones side by side."""
    jobs = list(model.named_parameters())

    def fill(job: tuple[str, Tensor]) -> None:
        name, parameter = job
        with torch.no_grad():
            initialise_parameter(name, parameter, config, generator_for(seed, name))

    with ThreadPoolExecutor(max_workers=min(8, max(1, torch.get_num_threads()))) as pool:
        list(pool.map(fill, jobs))


@torch.no_grad()
def initialise_head(head: nn.Module, config: Config) -> nn.Module:
    """A zero head with its bias at the configured value."""
    for name, parameter in head.named_parameters():
        initialise_parameter(f"head.{name}", parameter, config, torch.Generator())
    return head
