"""Resizing an image exactly as a named implementation does.

    filter       what it is
    ---------    ---------------------------------------------------------------
    bilinear     half-pixel centres, two taps a side; `antialias=False` is
                 TensorFlow 2's default, the one the paper's code trained with
    area         TensorFlow's ResizeArea: the exact average of each output's box
    bicubic      Keys' cubic; a = -0.5 antialiased (Pillow, torch antialias, TF),
                 a = -0.75 not antialiased (torch's and OpenCV's plain bicubic)
    lanczos      three lobes (Pillow)
    nearest      half-pixel centres

With `antialias` the filter widens by the scale when shrinking (Pillow and torch always do).
The result is float; `rounding` says how it becomes uint8: "truncate" (tf.cast, big_vision),
"round" (Pillow, torch), or "keep" (stay float32: vit_jax feeds the float on).

Two ways to the same filter: taps and weights in float32, for any of them; and torch's
uint8 kernel, several times faster, for antialiased bilinear and bicubic with "round"
(agrees with Pillow within one level; rarely two where a saturated image is enlarged).
"""

from __future__ import annotations

import math
from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F

from vitrail.errors import UsageError, nearest

__all__ = ["FILTERS", "ROUNDINGS", "resize", "resize_float", "to_uint8"]

FILTERS = ("area", "bicubic", "bilinear", "lanczos", "nearest")
ROUNDINGS = ("truncate", "round", "keep")


def resize(
    image: np.ndarray, size: tuple[int, int], filter: str = "bilinear", antialias: bool = False, rounding: str = "round"
) -> np.ndarray:
    """uint8 (H, W, C) -> (h, w, C), uint8 unless rounding is "keep"."""
    if filter not in FILTERS:
        raise UsageError(f"unknown resize filter {filter!r}{nearest(filter, FILTERS)}")
    if rounding not in ROUNDINGS:
        raise UsageError(f"unknown rounding {rounding!r}{nearest(rounding, ROUNDINGS)}")
    if image.shape[:2] == tuple(size):
        return image.astype(np.float32) if rounding == "keep" else np.ascontiguousarray(image)
    if filter in ("bilinear", "bicubic") and antialias and rounding == "round":
        return _resize_uint8(image, size, filter)
    result = resize_float(image, size, filter, antialias)
    if rounding == "truncate" and filter == "bilinear" and not antialias:
        result += np.float32(1e-4)  # a flat area must not lose a level to a sum of weights just below 1
    return to_uint8(result, rounding)


def resize_float(image: np.ndarray, size: tuple[int, int], filter: str, antialias: bool = False) -> np.ndarray:
    """The unrounded float32 result, on 0..255; overshoot of the cubic is left in."""
    height, width = image.shape[:2]
    if filter == "bilinear" and not antialias:
        return _bilinear(image, size)
    rows = _taps(height, size[0], filter, antialias)
    columns = _taps(width, size[1], filter, antialias)
    x = torch.from_numpy(np.require(image, requirements=("C", "W"))).to(torch.float32)
    x = _weigh(_weigh(x, columns, dim=1), rows, dim=0)
    if filter == "area":  # the sum over the box, divided once by its area: TensorFlow's order of roundings
        x *= float(np.float32(1) / (_ratio(height, size[0]) * _ratio(width, size[1])))
    return x.numpy()


def to_uint8(image: np.ndarray, rounding: str) -> np.ndarray:
    if rounding == "keep":
        return image.astype(np.float32, copy=False)
    clipped = np.clip(image, 0, 255)
    return (clipped if rounding == "truncate" else np.rint(clipped)).astype(np.uint8)


def _resize_uint8(image: np.ndarray, size: tuple[int, int], filter: str) -> np.ndarray:
    """torch's fixed-point kernel on channels-last bytes: it sees them as such, and answers in kind, only if
    the batch dimension is there before the permutation."""
    x = torch.from_numpy(np.require(image, requirements=("C", "W")))[None].permute(0, 3, 1, 2)
    y = F.interpolate(x, size=tuple(size), mode=filter, antialias=True, align_corners=False)
    return np.ascontiguousarray(y[0].permute(1, 2, 0).numpy())


def _bilinear(image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Half-pixel centres, two taps a side: torch's weights are TensorFlow's, its order of additions is not
    (1e-4 of a level; `resize` allows for that before it truncates)."""
    x = torch.from_numpy(np.require(image, requirements=("C", "W")))[None].permute(0, 3, 1, 2).to(torch.float32)
    y = F.interpolate(x, size=tuple(size), mode="bilinear", align_corners=False)
    return y[0].permute(1, 2, 0).numpy()


def _weigh(x: torch.Tensor, taps: tuple[torch.Tensor, torch.Tensor], dim: int) -> torch.Tensor:
    """sum over k of weight[:, k] * x taken at index[:, k] along `dim`."""
    index, weight = taps
    shape = [1, 1, 1]
    shape[dim] = -1
    out = x.index_select(dim, index[:, 0]) * weight[:, 0].view(shape)
    for k in range(1, index.shape[1]):
        out.addcmul_(x.index_select(dim, index[:, k]), weight[:, k].view(shape))
    return out


@lru_cache(maxsize=512)
def _taps(source: int, target: int, filter: str, antialias: bool) -> tuple[torch.Tensor, torch.Tensor]:
    """(target, K) source indices and float32 weights that sum to 1 (area: to the box's length)."""
    scale = source / target
    if filter == "nearest":
        index = np.minimum(((np.arange(target) + 0.5) * scale).astype(np.int64), source - 1)
        return torch.from_numpy(index[:, None]), torch.ones(target, 1)
    if filter == "area":
        index, weight = _area_taps(source, target)
    else:
        index, weight = _kernel_taps(source, target, scale, filter, antialias)
    return torch.from_numpy(np.clip(index, 0, source - 1)), torch.from_numpy(weight.astype(np.float32))


def _area_taps(source: int, target: int) -> tuple[np.ndarray, np.ndarray]:
    """Each output sums its box [i * scale, (i + 1) * scale); a pixel counts by its overlap, in float32."""
    scale = _ratio(source, target)
    low = np.arange(target, dtype=np.float32)[:, None] * scale
    high = np.arange(1, target + 1, dtype=np.float32)[:, None] * scale
    first = np.floor(low)
    pixel = first + np.arange(math.ceil(source / target) + 1, dtype=np.float32)
    from_left = np.where(pixel + 1 > high, scale, pixel + 1 - low)  # the box begins inside this pixel
    from_edge = np.where(pixel + 1 > high, high - pixel, np.float32(1))
    overlap = np.where(pixel < low, from_left, from_edge)
    return pixel.astype(np.int64), np.where(pixel < np.ceil(high), overlap, np.float32(0))


def _ratio(source: int, target: int) -> np.float32:
    return np.float32(source) / np.float32(target)


def _kernel_taps(source: int, target: int, scale: float, filter: str, antialias: bool) -> tuple[np.ndarray, np.ndarray]:
    """Taps around each output's centre; outside the image they are dropped (antialiased, Pillow)
    or clamped to the border (plain, torch and OpenCV)."""
    widen = max(scale, 1.0) if antialias else 1.0
    radius = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}[filter] * widen
    centre = (np.arange(target)[:, None] + 0.5) * scale
    if antialias:
        first = np.maximum((centre - radius + 0.5).astype(np.int64), 0)
    else:
        first = np.floor(centre - 0.5).astype(np.int64) - int(radius) + 1
    index = first + np.arange(math.ceil(2 * radius))  # as many pixels as the kernel is wide
    weight = _kernel(filter, (index + 0.5 - centre) / widen, -0.5 if antialias else -0.75)
    if antialias:
        weight = np.where((index < source) & (index + 0.5 < centre + radius + 0.5), weight, 0.0)
    return index, weight / weight.sum(1, keepdims=True)


def _kernel(filter: str, x: np.ndarray, a: float) -> np.ndarray:
    x = np.abs(x)
    if filter == "bilinear":
        return np.maximum(1 - x, 0)
    if filter == "lanczos":
        return np.where(x < 3, np.sinc(x) * np.sinc(x / 3), 0.0)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return np.where(x < 1, near, np.where(x < 2, far, 0.0))
