"""Numbers as colours. Both scales rise in lightness, so they read in grey and for colour-blind eyes."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["CLASS_COLOURS", "heat", "viridis"]

HEAT = ((20, 11, 53), (87, 16, 110), (157, 41, 93), (220, 80, 57), (249, 142, 9), (252, 210, 70), (252, 255, 200))
VIRIDIS = ((68, 1, 84), (70, 50, 126), (54, 92, 141), (39, 127, 142), (31, 161, 135), (74, 193, 109), (160, 218, 57), (253, 231, 37))
# Okabe and Ito's eight, told apart by most eyes
CLASS_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#b8a800", "#808080")


def table(stops: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    """The scale in 256 steps, RGB 0 … 255 as floats."""
    at = np.linspace(0, len(stops) - 1, 256)
    return np.stack([np.interp(at, range(len(stops)), channel) for channel in zip(*stops)], 1).astype(np.float32)


def looked_up(values: Any, colours: np.ndarray) -> np.ndarray:
    return colours[np.rint(np.clip(np.asarray(values, np.float32), 0, 1) * 255).astype(np.uint8)]


_HEAT, _VIRIDIS = table(HEAT), table(VIRIDIS)


def heat(values: Any) -> np.ndarray:
    """0 … 1 -> RGB 0 … 255 as floats, from dark violet over red to pale yellow."""
    return looked_up(values, _HEAT)


def viridis(values: Any) -> np.ndarray:
    """0 … 1 -> RGB 0 … 255 as floats; the scale of the paper's Figures 7 and 10."""
    return looked_up(values, _VIRIDIS)
