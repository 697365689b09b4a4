"""Grids: `optim.lr=0.01,0.03 train.batch_size=256,512` as the points to try.

    fixed, grid = read_grid(["data.train=photos/", "optim.lr=0.01,0.03"])
    points(recipe, grid)                  one Point for every combination, in the order written

A comma separates values of a key that holds one value; a key that holds a list takes lists in
brackets, `model.image_size=[224,224],[384,384]`. Text in double quotes is one value.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from vitrail.config import Recipe, holds_list, override, value_of
from vitrail.errors import UsageError

__all__ = ["Point", "points", "read_grid"]

_BRACKETS = re.compile(r"\[[^\]]*\]")


@dataclass(frozen=True)
class Point:
    """One combination. `values` as the recipe holds them, by key."""

    values: dict[str, Any]

    @property
    def name(self) -> str:
        """optim.lr=0.01 optim.weight_decay=0.1"""
        return " ".join(f"{key}={_text(value)}" for key, value in self.values.items()) or "as-it-is"

    @property
    def folder(self) -> str:
        """The name as a directory's."""
        return re.sub(r"[^A-Za-z0-9.=+_-]+", "-", self.name).strip("-")

    def of(self, recipe: Recipe) -> Recipe:
        return override(recipe, [f"{key}={_text(value)}" for key, value in self.values.items()])


def read_grid(assignments: Iterable[str]) -> tuple[list[str], dict[str, tuple[str, ...]]]:
    """(assignments of one value, values by key of the others)."""
    fixed, grid = [], {}
    for text in assignments:
        key, sign, value = text.partition("=")
        values = _split(value, holds_list(key.strip())) if sign else []
        if len(values) > 1:
            grid[key.strip()] = tuple(values)
        else:
            quoted = len(value) > 1 and value[0] == value[-1] == '"'
            fixed.append(f"{key}={value[1:-1]}" if quoted else text)
    return fixed, grid


def points(recipe: Recipe, grid: Mapping[str, Sequence[Any]]) -> tuple[Point, ...]:
    """Every combination, each value as the recipe reads it; a combination that occurs twice is tried once."""
    for key, values in grid.items():
        if not values:
            raise UsageError(f"The grid of {key} is empty.", hint=f"{key}=VALUE,VALUE")
    found: dict[str, Point] = {}
    for combination in itertools.product(*grid.values()):
        given = dict(zip(grid, combination))
        chosen = override(recipe, [f"{key}={_text(value)}" for key, value in given.items()])
        point = Point({key: value_of(chosen, key) for key in given})
        found.setdefault(point.name, point)
    return tuple(found.values())


def _split(text: str, lists: bool) -> list[str]:
    text = text.strip()
    if lists:
        return _BRACKETS.findall(text) or [text]
    if len(text) > 1 and text[0] == text[-1] == '"':
        return [text[1:-1]]
    return [part.strip() for part in text.split(",") if part.strip()] or [text]


def _text(value: Any) -> str:
    """As an override says it."""
    if isinstance(value, list | tuple):
        return "[" + ",".join(_text(part) for part in value) + "]"
    if isinstance(value, bool) or value is None:
        return str(value).lower()
    return f"{value:g}" if isinstance(value, float) and float(f"{value:g}") == value else str(value)
