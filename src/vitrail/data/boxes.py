"""The random boxes of a whole batch at once: `crop.inception_box` and `crop.random_resized_box`, vectorised.

Draw for draw and pixel for pixel what those two give one sample at a time (a test holds them
together); a thousand samples cost a millisecond instead of twenty.
"""

from __future__ import annotations

import math

import numpy as np

from vitrail.kernels.draws import Streams

__all__ = ["inception_boxes", "random_resized_boxes"]

Pair = tuple[float, float]


def inception_boxes(height: np.ndarray, width: np.ndarray, streams: Streams, area: Pair, ratio: Pair) -> np.ndarray:
    """(N, 4) int64: top, left, height, width."""
    out = np.stack([np.zeros_like(height), np.zeros_like(height), height, width], 1).astype(np.int64)
    rest = np.arange(len(height))
    for _ in range(100):
        if not len(rest):
            break
        rows, columns = height[rest], width[rest]
        least, most = area[0] * rows * columns, area[1] * rows * columns
        h, w = _inception_sizes(rows, columns, streams, rest, least, most, ratio)
        fits = (least <= h * w) & (h * w <= most) & (h > 0) & (h <= rows) & (w > 0) & (w <= columns)
        done, h, w = rest[fits], h[fits], w[fits]
        top, left = np.zeros_like(h), np.zeros_like(w)
        inside = h < height[done]
        top[inside] = streams.integer(done[inside], height[done][inside] - h[inside])
        inside = w < width[done]
        left[inside] = streams.integer(done[inside], width[done][inside] - w[inside])
        out[done] = np.stack([top, left, h, w], 1)
        rest = rest[~fits]
    return out


def _inception_sizes(
    rows: np.ndarray, columns: np.ndarray, streams: Streams, rest: np.ndarray, least: np.ndarray, most: np.ndarray, ratio: Pair
) -> tuple[np.ndarray, np.ndarray]:
    aspect = streams.uniform(rest, *ratio)
    whole = lambda x: np.rint(x).astype(np.int64)
    low, high = whole(np.sqrt(least / aspect)), whole(np.sqrt(most / aspect))
    narrower = ((columns + 0.5 - 1e-7) / aspect).astype(np.int64)
    narrower -= whole(narrower * aspect) > columns
    high = np.minimum(np.where(whole(high * aspect) > columns, narrower, high), rows)
    low = np.minimum(low, high)
    h = low.copy()
    some = low < high
    h[some] += streams.integer(rest[some], (high - low + 1)[some])
    w = whole(h * aspect)
    h = h + (h * w < least)  # rounding may have left the range by one pixel
    w = whole(h * aspect)
    h = h - (h * w > most)
    return h, whole(h * aspect)


def random_resized_boxes(height: np.ndarray, width: np.ndarray, streams: Streams, area: Pair, ratio: Pair) -> np.ndarray:
    """(N, 4) int64: top, left, height, width."""
    out = _centre_boxes(height, width, ratio)
    rest = np.arange(len(height))
    for _ in range(10):
        if not len(rest):
            break
        rows, columns = height[rest], width[rest]
        pixels = rows * columns * streams.uniform(rest, *area)
        logs = streams.uniform(rest, math.log(ratio[0]), math.log(ratio[1]))
        aspect = np.fromiter(map(math.exp, logs.tolist()), np.float64, len(rest))  # numpy's exp may differ in the last bit
        w, h = np.rint(np.sqrt(pixels * aspect)).astype(np.int64), np.rint(np.sqrt(pixels / aspect)).astype(np.int64)
        fits = (w > 0) & (w <= columns) & (h > 0) & (h <= rows)
        done, h, w = rest[fits], h[fits], w[fits]
        top = streams.integer(done, height[done] - h + 1)
        left = streams.integer(done, width[done] - w + 1)
        out[done] = np.stack([top, left, h, w], 1)
        rest = rest[~fits]
    return out


def _centre_boxes(height: np.ndarray, width: np.ndarray, ratio: Pair) -> np.ndarray:
    """Where ten attempts fail: the largest centred box whose aspect is in the range."""
    tall, wide = width / height < ratio[0], width / height > ratio[1]
    h = np.where(tall, np.maximum(1, np.rint(width / ratio[0])), height).astype(np.int64)
    w = np.where(wide, np.maximum(1, np.rint(height * ratio[1])), width).astype(np.int64)
    return np.stack([(height - h) // 2, (width - w) // 2, h, w], 1)
