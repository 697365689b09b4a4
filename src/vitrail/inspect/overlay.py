"""A map laid over the picture it belongs to, in the picture's own pixels.

The model saw a view: the upright original (orientation undone by decoding), resized and cropped.
`Preprocess.box(height, width)` says where that view lies in the original; a map is stretched to that box
and nothing is drawn outside it, where the model saw nothing.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from PIL import Image, ImageFilter

from vitrail.errors import UsageError, nearest
from vitrail.inspect.colour import heat

__all__ = ["STYLES", "overlay", "stretched"]

STYLES = ("heat", "paper")
Box = tuple[float, float, float, float]  # top, left, bottom, right in pixels of the original


def overlay(image: np.ndarray, map: Any, box: Box | None = None, *, style: str = "heat", strength: float = 0.75) -> np.ndarray:
    """Lay a map (rows, columns) over an upright image, uint8 (height, width, 3) -> the same.

    style: "heat" mixes in a colour by the map, and darkens what lay outside the view;
        "paper" is the rendering of Figures 6 and 14: the map, blurred by a patch, is how bright the image is.
    """
    if style not in STYLES:
        raise UsageError(f"no overlay is called {style!r}{nearest(style, STYLES)}.")
    image = np.asarray(image)
    if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
        raise UsageError(f"an overlay needs a uint8 image (height, width, 3), not {image.dtype} {image.shape}.")
    alpha, inside = stretched(map, image.shape[:2], box, blurred=style == "paper")
    if style == "paper":
        return np.rint(image * alpha[..., None]).astype(np.uint8)
    mixed = image * (1 - strength * alpha[..., None]) + heat(alpha) * (strength * alpha[..., None])
    return np.rint(np.where(inside[..., None], mixed, image * 0.3)).astype(np.uint8)


def stretched(map: Any, size: tuple[int, int], box: Box | None, *, blurred: bool = False) -> tuple[np.ndarray, np.ndarray]:
    """The map over the whole image, 0 … 1 and 0 outside the box; and which pixels are inside."""
    values = np.asarray(map, dtype=np.float32)
    if values.ndim != 2:
        raise UsageError(f"a map has rows and columns, not the shape {values.shape}.")
    top, left, bottom, right = (round(edge) for edge in box or (0, 0, *size))
    width, height = max(1, right - left), max(1, bottom - top)
    peak = values.max()
    values = np.clip(values / peak, 0, 1) if peak > 0 else np.zeros_like(values)
    big = Image.fromarray(values).resize((width, height), Image.Resampling.LANCZOS if blurred else Image.Resampling.BICUBIC)
    if blurred:  # as the authors drew it: 8 bits, a blur of one patch, then the full range
        grey = Image.fromarray(np.rint(np.clip(np.asarray(big), 0, 1) * 255).astype(np.uint8))
        blurry = np.asarray(grey.filter(ImageFilter.GaussianBlur(height / values.shape[0])), dtype=np.float32)
        span = blurry.max() - blurry.min()
        alpha = (blurry - blurry.min()) / span if span > 0 else np.zeros_like(blurry)
    else:
        alpha = np.clip(np.asarray(big), 0, 1)
    whole, inside = np.zeros(size, np.float32), np.zeros(size, bool)
    view = (slice(max(0, top), bottom), slice(max(0, left), right))
    whole[view] = alpha[view[0].start - top :, view[1].start - left :][: whole[view].shape[0], : whole[view].shape[1]]
    inside[view] = True
    return whole, inside
