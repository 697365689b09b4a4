"""Every model by name with what it costs: what `vitrail models` prints. Needs no torch."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from vitrail.model.cost import cost_of
from vitrail.model.names import Config, config_for, config_to_dict, list_models

__all__ = ["Catalogue", "Description", "Entry", "catalogue", "describe"]

SIZES = (224, 384)


@dataclass(frozen=True)
class Entry:
    """One line of the catalogue. `large_size` is 384, or the next smaller size the patches divide."""

    name: str
    family: str
    parameters: int
    tokens: int
    gmacs_224: float
    gmacs_384: float
    large_size: int


@dataclass(frozen=True)
class Catalogue:
    models: tuple[Entry, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"models": [asdict(entry) for entry in self.models]}


@dataclass(frozen=True)
class Description:
    """One model in full: its configuration, its cost, and the cost of each part."""

    name: str
    config: dict[str, Any]
    parameters: int
    macs: int
    tokens: int
    parts: tuple[tuple[str, int, int], ...]  # (part, parameters, MACs)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "parts": [dict(zip(("part", "parameters", "macs"), part)) for part in self.parts]}


def catalogue(names: Iterable[str] | None = None) -> Catalogue:
    """Name, parameters (1000 classes), tokens at 224, GMACs at 224 and 384; all names when none are given."""
    return Catalogue(tuple(entry_for(name) for name in (list_models() if names is None else names)))


def entry_for(name: str) -> Entry:
    config = config_for(name)
    size = divisible(config, SIZES[1])
    small, large = cost_of(config_for(name, image_size=SIZES[0])), cost_of(config_for(name, image_size=size))
    return Entry(name, config.family, small.parameters, small.tokens, round(small.macs / 1e9, 3), round(large.macs / 1e9, 3), size)


def divisible(config: Config, size: int) -> int:
    """The largest image side up to `size` that the patches divide: what a network that cuts the rest off would see."""
    if config.family == "bit":
        return size
    stride = config.image_size[0] // config.grid[0]
    return size // stride * stride


def describe(name: str, **options: Any) -> Description:
    """One model by name, with options as `create_model` takes them."""
    config = config_for(name, **options)
    cost = cost_of(config)
    parts: dict[str, list[int]] = {}
    for layer, macs in cost.layers.items():
        part = parts.setdefault(layer.split(".")[0], [0, 0])
        part[0] += cost.layer_parameters[layer]
        part[1] += macs
    rows = tuple((part, parameters, macs) for part, (parameters, macs) in parts.items())
    return Description(name, config_to_dict(config), cost.parameters, cost.macs, cost.tokens, rows)
