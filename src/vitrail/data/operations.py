"""Image operations on uint8 batches: one table, run over many images of an operation at once, or image by image.

    kind      operations                                                     how
    ------    ----------------------------------------------------------    ------------------------------
    table     invert posterize solarize solarize_add brightness contrast     256 entries a channel, one
              autocontrast equalize                                          look-up for all of them
    affine    rotate shear_x shear_y translate_x translate_y                 one resampling for all of them
    blend     colour (with grey), sharpness (with its smoothed self)         towards 0 or beyond 1
    other     cutout, blur

Two flavours, because the originals differ in the last bit and in more: "tf" is TensorFlow's
RandAugment as big_vision runs it (grey truncated, nearest neighbour, thresholds that wrap in
uint8, posterise to 0 bits leaving one); "pillow" is what timm runs (Pillow's luma, bicubic).
Which operation an image gets, and how much, is known on the host beforehand (`Steps`), so the
device never waits, and each operation touches its own images only.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import UsageError

__all__ = ["AFFINE", "NAMES", "TABLES", "Flavour", "Steps", "run", "run_each", "run_together"]

Flavour = Literal["tf", "pillow"]
TABLES = ("invert", "posterize", "solarize", "solarize_add", "brightness", "contrast", "autocontrast", "equalize")
AFFINE = ("rotate", "shear_x", "shear_y", "translate_x", "translate_y")
NAMES = ("identity", *TABLES, *AFFINE, "colour", "sharpness", "cutout", "blur")
_KINDS = np.array(["table" if name in TABLES else "affine" if name in AFFINE else name for name in NAMES])
BLUR_RADIUS = 6  # three of the largest sigma in use (2); fixed, so that an image's company does not matter
_SMALL = 96 * 96  # pixels below which a CPU, too, is faster with all images of an operation at once


@dataclass(frozen=True)
class Steps:
    """One operation an image: its number in `NAMES`, its argument, and for cutout the centre (row, column)."""

    name: np.ndarray  # int64 (N)
    amount: np.ndarray  # float32 (N): degrees, shear, pixels, factor, threshold, bits, half a side, sigma
    centre: np.ndarray  # int64 (N, 2)

    def __getitem__(self, rows: slice | np.ndarray) -> Steps:
        return Steps(self.name[rows], self.amount[rows], self.centre[rows])


def run(images: Tensor, steps: Steps, flavour: Flavour, fill: tuple[int, int, int], *, count_bug: bool = False) -> Tensor:
    """(N, 3, H, W) uint8 -> the same, changed in place: together on a GPU and for small images, else one by one."""
    together = images.device.type != "cpu" or images.shape[2] * images.shape[3] <= _SMALL
    executor = run_together if together else run_each
    return executor(images, steps, flavour, fill, count_bug=count_bug)


def run_each(images: Tensor, steps: Steps, flavour: Flavour, fill: tuple[int, int, int], *, count_bug: bool = False) -> Tensor:
    """Image by image: what a CPU's caches prefer."""
    for i in range(len(images)):
        run_together(images[i : i + 1], steps[slice(i, i + 1)], flavour, fill, count_bug=count_bug)
    return images


def run_together(images: Tensor, steps: Steps, flavour: Flavour, fill: tuple[int, int, int], *, count_bug: bool = False) -> Tensor:
    """All images of a kind at once: some fifty launches a layer, whatever the batch."""
    if images.shape[1] != 3 or images.dtype != torch.uint8:
        raise UsageError(f"image operations work on uint8 RGB, not {images.dtype} with {images.shape[1]} channels.")

    kind = _KINDS[steps.name]

    def apply(name: str, operation: Callable[[Tensor, Steps], Tensor]) -> None:
        rows = np.flatnonzero(kind == name)
        if len(rows) == len(images):
            images.copy_(operation(images, steps))
        elif len(rows):
            where = _to(images.device, rows)
            images.index_copy_(0, where, operation(images.index_select(0, where), steps[rows]))

    apply("table", lambda x, s: _look_up(x, _tables(x, s, flavour, count_bug)))
    apply("affine", lambda x, s: _affine(x, _matrices(s, x.shape[2], x.shape[3], flavour), flavour, fill))
    apply("colour", lambda x, s: _blend(_grey(x, flavour), x, _column(s.amount, x)))
    apply("sharpness", lambda x, s: _blend(_smooth(x, flavour), x, _column(s.amount, x)))
    apply("cutout", lambda x, s: _cutout(x, s, fill))
    apply("blur", lambda x, s: _blur(x, s.amount))
    return images


def _to(device: torch.device, array: np.ndarray) -> Tensor:
    """To the device without waiting for it (small pageable memory is staged before the call returns)."""
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def _colour(fill: tuple[int, int, int], images: Tensor) -> Tensor:
    return _to(images.device, np.array(fill, np.uint8)).view(1, 3, 1, 1)


def _column(values: np.ndarray, images: Tensor) -> Tensor:
    return _to(images.device, values.astype(np.float32)).view(-1, 1, 1, 1)


# ---------------------------------------------------------------- tables


def _look_up(images: Tensor, tables: Tensor) -> Tensor:
    """tables uint8 (N, 3, 256)."""
    return tables.gather(2, images.flatten(2).long()).view_as(images)


def _tables(images: Tensor, steps: Steps, flavour: Flavour, count_bug: bool) -> Tensor:
    """What the host can work out itself, then the rows that depend on the pixels."""
    tables = _to(images.device, _fixed_tables(steps, flavour))[:, None].repeat(1, 3, 1)
    makers: dict[str, Callable[[Tensor, np.ndarray], Tensor]] = {
        "autocontrast": lambda x, _amount: _autocontrast(x),
        "equalize": lambda x, _amount: _equalize(x),
        "contrast": lambda x, amount: _contrast(x, amount, flavour, count_bug),
    }
    for name, make in makers.items():
        rows = np.flatnonzero(steps.name == NAMES.index(name))
        if len(rows):
            where = _to(images.device, rows)
            tables.index_copy_(0, where, make(images.index_select(0, where), steps.amount[rows]))
    return tables


def _fixed_tables(steps: Steps, flavour: Flavour) -> np.ndarray:
    tables = np.broadcast_to(np.arange(256, dtype=np.uint8), (len(steps.name), 256)).copy()
    for name, make in _MAKERS.items():
        here = steps.name == NAMES.index(name)
        if here.any():
            tables[here] = make(steps.amount[here, None], flavour == "tf")
    return tables


_EVERY = np.arange(256)


def _posterized(amount: np.ndarray, tf: bool) -> np.ndarray:
    shift = np.clip(8 - amount.astype(np.int64), 0, 7 if tf else 8)  # a shift of 8 is one of 7 in TensorFlow
    return (_EVERY >> shift) << shift


def _solarized(amount: np.ndarray, tf: bool) -> np.ndarray:
    threshold = amount.astype(np.int64) & (255 if tf else -1)  # TensorFlow's constant wraps in uint8: 256 is 0, 384 is 128
    return np.where(threshold > _EVERY, _EVERY, 255 - _EVERY)


_MAKERS: dict[str, Callable[[np.ndarray, bool], np.ndarray]] = {  # (amounts (N, 1), whether TensorFlow's) -> (N, 256)
    "invert": lambda _amount, _tf: 255 - _EVERY,
    "posterize": _posterized,
    "solarize": _solarized,
    "solarize_add": lambda amount, _tf: np.where(_EVERY < 128, np.clip(_EVERY + amount.astype(np.int64), 0, 255), _EVERY),
    "brightness": lambda amount, _tf: np.clip(_EVERY.astype(np.float32) * amount, 0, 255).astype(np.int64),
}


def _values(images: Tensor) -> Tensor:
    return torch.arange(256, dtype=torch.float32, device=images.device)


def _autocontrast(images: Tensor) -> Tensor:
    flat = images.flatten(2)
    low, high = flat.amin(2, keepdim=True).float(), flat.amax(2, keepdim=True).float()
    scale = 255.0 / (high - low)
    table = (_values(images) * scale + -low * scale).clamp(0, 255)
    return torch.where(high > low, table, _values(images)).to(torch.uint8)


def _equalize(images: Tensor) -> Tensor:
    n, pixels = images.shape[0] * 3, images.shape[2] * images.shape[3]
    offsets = torch.arange(n, device=images.device)[:, None] * 256
    bins = (images.reshape(n, pixels).long() + offsets).flatten()
    counts = torch.zeros(n * 256, dtype=torch.int32, device=images.device)
    counts = counts.scatter_add_(0, bins, torch.ones_like(bins, dtype=torch.int32)).view(n, 256)
    last = counts.gather(1, images.reshape(n, pixels).amax(1, keepdim=True).long())  # of the highest value there is
    step = torch.div(pixels - last, 255, rounding_mode="floor")
    before = counts.cumsum(1, dtype=torch.int32) - counts
    table = torch.div(before + torch.div(step, 2, rounding_mode="floor"), step.clamp(min=1), rounding_mode="floor").clamp(0, 255)
    table[:, 0] = 0
    table = torch.where(step == 0, torch.arange(256, dtype=torch.int32, device=images.device), table)
    return table.to(torch.uint8).view(-1, 3, 256)


def _contrast(images: Tensor, amount: np.ndarray, flavour: Flavour, count_bug: bool) -> Tensor:
    """Towards the mean of the grey image, or (big_vision's old bug) towards pixels / 256."""
    if count_bug:
        mean = torch.full((len(images), 1, 1), float(min(255, images.shape[2] * images.shape[3] // 256)), device=images.device)
    else:
        total = _grey(images, flavour).flatten(1).sum(1, dtype=torch.int64).double()
        mean = (total / (images.shape[2] * images.shape[3]) + (0.5 if flavour == "pillow" else 0)).floor().float().view(-1, 1, 1)
    factor = _to(images.device, amount.astype(np.float32)).view(-1, 1, 1)
    table = (mean + factor * (_values(images) - mean)).clamp(0, 255).to(torch.uint8)
    return table.expand(-1, 3, -1)


# ---------------------------------------------------------------- blends


def _blend(base: Tensor, images: Tensor, factor: Tensor) -> Tensor:
    """base + factor (image - base), clipped and truncated, as both originals do."""
    start = base.float()
    return (start + factor * (images.float() - start)).clamp_(0, 255).to(torch.uint8)


def _grey(images: Tensor, flavour: Flavour) -> Tensor:
    """(N, 1, H, W) uint8."""
    if flavour == "pillow":
        r, g, b = images.to(torch.int32).unbind(1)
        return ((r * 19595 + g * 38470 + b * 7471 + 0x8000) >> 16).to(torch.uint8)[:, None]
    r, g, b = (images.float() * (1 / 255)).unbind(1)
    return ((r * 0.2989 + g * 0.587 + b * 0.114) * 255.5).to(torch.uint8)[:, None]


def _smooth(images: Tensor, flavour: Flavour) -> Tensor:
    """The 3x3 mean with weight 5 in the middle; the border keeps its pixels."""
    height, width = images.shape[2:]
    if height < 3 or width < 3:
        return images
    out = images.clone()
    out[:, :, 1:-1, 1:-1] = _mean_tf(images) if flavour == "tf" else _mean_pillow(images)
    return out


_AROUND, _MIDDLE = (float(np.float32(w) / np.float32(13)) for w in (1, 5))


def _mean_tf(images: Tensor) -> Tensor:
    """A float convolution, then truncated. Where the exact mean is whole, the order of roundings decides, so the
    nine terms are added one after another (which is also faster than any library's convolution of three channels)."""
    x = images.float()
    height, width = x.shape[2] - 2, x.shape[3] - 2
    mean = torch.zeros_like(x[:, :, 1:-1, 1:-1])
    for i in range(3):
        for j in range(3):
            mean.add_(x[:, :, i : i + height, j : j + width], alpha=_MIDDLE if i == j == 1 else _AROUND)
    return mean.clamp_(0, 255).to(torch.uint8)


def _mean_pillow(images: Tensor) -> Tensor:
    x = images.to(torch.int32)
    rows = x[:, :, :-2] + x[:, :, 1:-1] + x[:, :, 2:]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * x[:, :, 1:-1, 1:-1]
    return torch.div(total + 6, 13, rounding_mode="floor").to(torch.uint8)


# ---------------------------------------------------------------- geometry


def _matrices(steps: Steps, height: int, width: int, flavour: Flavour) -> np.ndarray:
    """(N, 6): where an output pixel (x, y) is read from: x' = a x + b y + c, y' = d x + e y + f."""
    amount = steps.amount.astype(np.float32)
    zero, one = np.zeros_like(amount), np.ones_like(amount)
    shift = np.float32(0.0 if flavour == "tf" else 0.5)  # Pillow's shears turn about the corner of the corner pixel
    angle = amount * np.float32(math.pi / 180)
    cos, sin = np.cos(angle), np.sin(angle)
    right, down = np.float32(width - 1), np.float32(height - 1)
    made = {
        "rotate": [
            cos, -sin, (right - (cos * right - sin * down)) / 2,
            sin, cos, (down - (sin * right + cos * down)) / 2,
        ],
        "shear_x": [one, amount, amount * shift, zero, one, zero],
        "shear_y": [one, zero, zero, amount, one, amount * shift],
        "translate_x": [one, zero, amount, zero, one, zero],
        "translate_y": [one, zero, zero, zero, one, amount],
    }  # fmt: skip
    out = np.zeros((len(amount), 6), np.float32)
    for name, columns in made.items():
        here = steps.name == NAMES.index(name)
        out[here] = np.stack(columns, 1)[here]
    return out


def _affine(images: Tensor, matrices: np.ndarray, flavour: Flavour, fill: tuple[int, int, int]) -> Tensor:
    height, width = images.shape[2:]
    m = _to(images.device, matrices)[:, :, None, None]
    x = torch.arange(width, dtype=torch.float32, device=images.device)[None, None, :]
    y = torch.arange(height, dtype=torch.float32, device=images.device)[None, :, None]
    across, down = m[:, 0] * x + m[:, 1] * y + m[:, 2], m[:, 3] * x + m[:, 4] * y + m[:, 5]
    colour = _colour(fill, images)
    if flavour == "tf":
        across, down = _round(across), _round(down)
        inside = (across >= 0) & (across < width) & (down >= 0) & (down < height)
        read = _read(images, down.long(), across.long())
    else:
        inside = (across >= -0.5) & (across < width - 0.5) & (down >= -0.5) & (down < height - 0.5)
        read = _bicubic(images, down, across)
    return torch.where(inside[:, None], read, colour)


def _round(x: Tensor) -> Tensor:
    """Half away from zero, as C does."""
    return torch.trunc(x + torch.copysign(torch.full_like(x, 0.5), x))


def _read(images: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Pixels at (N, H, W) integer places, clamped to the image."""
    channels, height, width = images.shape[1:]
    place = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
    return images.flatten(2).gather(2, place.flatten(1)[:, None].expand(-1, channels, -1)).view_as(images)


def _bicubic(images: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Pillow's cubic of transforms (a = -1), borders clamped, rounded."""
    channels, height, width = images.shape[1:]
    top, left = down.floor(), across.floor()
    weight_down, weight_across = _cubic(down - top), _cubic(across - left)
    first_row, first_column = top.long() - 1, left.long() - 1
    rows = [(first_row + i).clamp_(0, height - 1).mul_(width) for i in range(4)]
    columns = [(first_column + j).clamp_(0, width - 1) for j in range(4)]
    flat = images.flatten(2)
    total = torch.zeros_like(images, dtype=torch.float32)
    for i in range(4):
        line = torch.zeros_like(total)
        for j in range(4):
            place = (rows[i] + columns[j]).flatten(1)[:, None].expand(-1, channels, -1)
            line.addcmul_(flat.gather(2, place).view_as(images).float(), weight_across[j][:, None])
        total.addcmul_(line, weight_down[i][:, None])
    return total.add_(0.5).clamp_(0, 255).to(torch.uint8)


def _cubic(t: Tensor) -> tuple[Tensor, ...]:
    """Weights of the four neighbours of a point t after the second, for a = -1."""
    t2, t3 = t * t, t * t * t
    return -t + 2 * t2 - t3, 1 - 2 * t2 + t3, t + t2 - t3, -t2 + t3


# ---------------------------------------------------------------- others


def _cutout(images: Tensor, steps: Steps, fill: tuple[int, int, int]) -> Tensor:
    """A square of side 2 * amount about the centre, as far as it lies in the image."""
    height, width = images.shape[2:]
    centre = _to(images.device, steps.centre)
    half = _to(images.device, steps.amount.astype(np.int64))[:, None]
    y, x = torch.arange(height, device=images.device)[None], torch.arange(width, device=images.device)[None]
    rows = (y >= centre[:, :1] - half) & (y < centre[:, :1] + half)
    columns = (x >= centre[:, 1:] - half) & (x < centre[:, 1:] + half)
    colour = _colour(fill, images)
    return torch.where((rows[:, :, None] & columns[:, None, :])[:, None], colour, images)


def _blur(images: Tensor, sigma: np.ndarray) -> Tensor:
    """A Gaussian an image, borders replicated."""
    radius = BLUR_RADIUS
    taps = np.arange(-radius, radius + 1, dtype=np.float32)
    kernel = np.exp(-0.5 * (taps / np.maximum(sigma[:, None], 1e-3)) ** 2)
    kernel = (kernel / kernel.sum(1, keepdims=True)).astype(np.float32)
    weight = _to(images.device, kernel).unbind(1)
    x = images.float()
    for dim, border in ((2, (0, 0, radius, radius)), (3, (radius, radius, 0, 0))):
        padded, x = F.pad(x, border, mode="replicate"), torch.zeros_like(x)
        for i, share in enumerate(weight):
            x.addcmul_(padded.narrow(dim, i, images.shape[dim]), share.view(-1, 1, 1, 1))
    return x.add_(0.5).clamp_(0, 255).to(torch.uint8)
