"""What a file beside the weights says, value by value: of the expected type, or an error that names the key."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vitrail.errors import CheckpointError

__all__ = ["flag", "number", "numbers", "patched", "size", "table", "whole", "word"]


def _refuse(key: str, value: Any, wanted: str) -> CheckpointError:
    return CheckpointError(
        f"the description beside the weights says {key} = {value!r}, which is not {wanted}.",
        hint="correct or remove that entry; what is missing is inferred from the weights",
    )


def whole(said: Mapping[str, Any], key: str, *, least: int = 1) -> int | None:
    """A whole number, or None where nothing is said."""
    value = said.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value < 1 << 31:
        raise _refuse(key, value, f"a whole number of at least {least}")
    return value


def number(said: Mapping[str, Any], key: str) -> float | None:
    """A finite number of at least 0."""
    value = said.get(key)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise _refuse(key, value, "a number")
    return float(value)


def numbers(said: Mapping[str, Any], key: str) -> tuple[float, ...] | None:
    """A list of numbers (means, deviations)."""
    value = said.get(key)
    if value is None:
        return None
    if not isinstance(value, list | tuple) or not 1 <= len(value) <= 64:
        raise _refuse(key, value, "a list of numbers")
    if any(isinstance(item, bool) or not isinstance(item, int | float) for item in value):
        raise _refuse(key, value, "a list of numbers")
    return tuple(float(item) for item in value)


def flag(said: Mapping[str, Any], key: str) -> bool | None:
    """True or false."""
    value = said.get(key)
    if value is None or isinstance(value, bool):
        return value
    raise _refuse(key, value, "true or false")


def word(said: Mapping[str, Any], key: str) -> str | None:
    """A text."""
    value = said.get(key)
    if value is None or isinstance(value, str):
        return value
    raise _refuse(key, value, "a text")


def table(said: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """An object; empty where nothing is said."""
    value = said.get(key)
    if value is None:
        return {}
    if isinstance(value, Mapping):
        return value
    raise _refuse(key, value, "an object")


def size(said: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    """(rows, columns) from a number, [rows, columns], [channels, rows, columns] or {"height": …, "width": …}."""
    value = said.get(key)
    if value is None:
        return None
    sides: Any = value
    if isinstance(value, Mapping):
        edge = value.get("shortest_edge")
        sides = (edge, edge) if edge is not None else (value.get("height"), value.get("width"))
    elif isinstance(value, int) and not isinstance(value, bool):
        sides = (value, value)
    elif isinstance(value, list | tuple):
        sides = value[-2:] if len(value) in (2, 3) else ()
    if not isinstance(sides, list | tuple) or len(sides) != 2 or not all(type(side) is int and 0 < side < 1 << 20 for side in sides):
        raise _refuse(key, value, "a size in pixels")
    return sides[0], sides[1]


def patched(pixels: tuple[int, int] | None, step: tuple[int, int]) -> tuple[int, int] | None:
    """An image size without the rows and columns that make no whole patch (384 by patches of 14: 378).

    Some models were published at such a size; a convolution never looks at those pixels.
    """
    return None if pixels is None else (max(1, pixels[0] // step[0]) * step[0], max(1, pixels[1] // step[1]) * step[1])
