"""Numbers as colours. Both scales rise in lightness, so they read in grey and for colour-blind eyes."""

from __future__ import annotations

from typing import Any

import numpy as np

__all__ = ["CLASS_COLOURS", "heat", "viridis"]

HEAT = ((20, 11, 53), (87, 16, 110), (157, 41, 93), (220, 80, 57), (249, 142, 9), (252, 210, 70), (252, 255, 200))
VIRIDIS = ((68, 1, 84), (70, 50, 126), (54, 92, 141), (39, 127, 142), (31, 161, 135), (74, 193, 109), (160, 218, 57), (253, 231, 37))
# Okabe and Ito's eight, told apart by most eyes
CLASS_COLOURS = ("#0072b2", "#e69f00", "#009e73", "#d55e00", "#cc79a7", "#56b4e9", "#b8a800", "#808080")


def scaled(values: Any, stops: tuple[tuple[int, int, int], ...]) -> np.ndarray:
    at = np.clip(np.asarray(values, np.float32), 0, 1) * (len(stops) - 1)
    table = np.asarray(stops, np.float32)
    low = np.minimum(at.astype(int), len(stops) - 2)
    part = (at - low)[..., None]
    return table[low] * (1 - part) + table[low + 1] * part


def heat(values: Any) -> np.ndarray:
    """0 … 1 -> RGB 0 … 255 as floats, from dark violet over red to pale yellow."""
    return scaled(values, HEAT)


def viridis(values: Any) -> np.ndarray:
    """0 … 1 -> RGB 0 … 255 as floats; the scale of the paper's Figures 7 and 10."""
    return scaled(values, VIRIDIS)
