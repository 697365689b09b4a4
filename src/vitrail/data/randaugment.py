"""Which operation an image gets, and how much of it: RandAugment's lists, AugReg's levels, 3-Augment, colour jitter.

    "tf"      big_vision's: 16 operations, always applied, magnitude 0 … 10 and beyond
    "timm"    rand-m9-mstd0.5-inc1: 15 operations, each applied with probability 1/2, strength
              grows with a magnitude of its own, drawn about the given one, 0 … 10

`randaug(2, 0)` of "tf" is not the identity: brightness, colour, contrast and sharpness get the
factor 0.1, posterise leaves one bit, solarise inverts. That is AugReg's light1.

Every draw is a function of (seed, purpose, position); `Steps` come from the host, so that the
device is told what to do and never asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from vitrail.data.operations import NAMES, Steps
from vitrail.errors import UsageError, nearest
from vitrail.kernels import draws

__all__ = ["LEVELS", "TF", "TIMM", "colour_jitter", "level", "randaugment", "three_augment"]

Amount = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]  # (magnitude / 10, sign, rows, columns) -> argument


def _whole(scale: float) -> Amount:
    return lambda m, _sign, _rows, _columns: np.floor(m * scale + 1e-9)  # int(), safe from 0.7 * 10 = 6.999…


def _signed(scale: float) -> Amount:
    return lambda m, sign, _rows, _columns: sign * m * scale


_NONE: Amount = lambda m, _sign, _rows, _columns: np.zeros_like(m)
_ENHANCE: Amount = lambda m, _sign, _rows, _columns: m * 1.8 + 0.1
_ENHANCE_MORE: Amount = lambda m, sign, _rows, _columns: np.maximum(0.1, 1 + sign * m * 0.9)

TF: dict[str, Amount] = {
    "autocontrast": _NONE,
    "equalize": _NONE,
    "invert": _NONE,
    "rotate": _signed(30),
    "posterize": _whole(4),
    "solarize": _whole(256),
    "colour": _ENHANCE,
    "contrast": _ENHANCE,
    "brightness": _ENHANCE,
    "sharpness": _ENHANCE,
    "shear_x": _signed(0.3),
    "shear_y": _signed(0.3),
    "translate_x": _signed(100),  # pixels, whatever the size of the image
    "translate_y": _signed(100),
    "cutout": _whole(40),
    "solarize_add": _whole(110),
}
TIMM: dict[str, Amount] = {
    "autocontrast": _NONE,
    "equalize": _NONE,
    "invert": _NONE,
    "rotate": _signed(30),
    "posterize": lambda m, *_: 4 - np.floor(m * 4 + 1e-9),
    "solarize": lambda m, *_: 256 - np.minimum(256, np.floor(m * 256 + 1e-9)),
    "solarize_add": lambda m, *_: np.minimum(128, np.floor(m * 110 + 1e-9)),
    "colour": _ENHANCE_MORE,
    "contrast": _ENHANCE_MORE,
    "brightness": _ENHANCE_MORE,
    "sharpness": _ENHANCE_MORE,
    "shear_x": _signed(0.3),
    "shear_y": _signed(0.3),
    "translate_x": lambda m, sign, _rows, columns: sign * m * 0.45 * columns,
    "translate_y": lambda m, sign, rows, _columns: sign * m * 0.45 * rows,
}
_LISTS = {"tf": TF, "timm": TIMM}
_LANES = 8  # draws a layer: operation, whether, sign, two for the magnitude, two for the centre


def randaugment(
    which: str, layers: int, magnitude: float, std: float, seed: int, positions: np.ndarray, size: tuple[int, int]
) -> list[Steps]:
    """One `Steps` a layer for the samples at these positions, images of `size`."""
    if which not in _LISTS:
        raise UsageError(f"unknown RandAugment {which!r}{nearest(which, _LISTS)}.")
    draw = draws.uniform_numpy(draws.key(seed, "randaugment"), positions, layers * _LANES)
    return [_layer(which, magnitude, std, draw[:, k * _LANES : (k + 1) * _LANES], size) for k in range(layers)]


def _layer(which: str, magnitude: float, std: float, u: np.ndarray, size: tuple[int, int]) -> Steps:
    table = _LISTS[which]
    choice = (u[:, 0] * len(table)).astype(np.int64)
    sign = np.where(u[:, 2] < 0.5, -1.0, 1.0)
    m = np.full(len(u), float(magnitude))
    if std > 0:
        m = np.clip(m + std * _normal(u[:, 3], u[:, 4]), 0, 10)
    elif which == "timm":
        m = np.clip(m, 0, 10)
    name, amount = np.zeros(len(u), np.int64), np.zeros(len(u), np.float32)
    for i, (operation, rule) in enumerate(table.items()):
        here = choice == i
        name[here] = NAMES.index(operation)
        amount[here] = rule(m[here] / 10, sign[here], *size)
    if which == "timm":
        name = np.where(u[:, 1] < 0.5, name, 0)
    return Steps(name, amount, (u[:, 5:7] * np.asarray(size)).astype(np.int64))


def _normal(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return np.sqrt(-2 * np.log(1 - a)) * np.cos(2 * np.pi * b)


def three_augment(seed: int, positions: np.ndarray) -> list[Steps]:
    """DeiT III: one of grey, solarise at 128, Gaussian blur with sigma 0.1 … 2; always."""
    u = draws.uniform_numpy(draws.key(seed, "three augment"), positions, 2)
    choice = (u[:, 0] * 3).astype(np.int64)
    name = np.array([NAMES.index(n) for n in ("colour", "solarize", "blur")])[choice]
    amount = np.choose(choice, [np.zeros(len(u)), np.full(len(u), 128.0), 0.1 + 1.9 * u[:, 1]])
    return [Steps(name, amount.astype(np.float32), np.zeros((len(u), 2), np.int64))]


def colour_jitter(strength: float, seed: int, positions: np.ndarray) -> list[Steps]:
    """torchvision's ColorJitter(strength, strength, strength): brightness, contrast and saturation by factors
    1 - strength … 1 + strength, in an order of the sample's own."""
    u = draws.uniform_numpy(draws.key(seed, "colour jitter"), positions, 6)
    order = np.argsort(u[:, :3], axis=1)
    factor = np.maximum(0, 1 + strength * (2 * u[:, 3:] - 1))
    names = np.array([NAMES.index(n) for n in ("brightness", "contrast", "colour")])
    none = np.zeros((len(u), 2), np.int64)
    rows = np.arange(len(u))
    return [Steps(names[order[:, k]], factor[rows, order[:, k]].astype(np.float32), none) for k in range(3)]


# "How to train your ViT?": RandAugment's (layers, magnitude) and mixup's alpha
LEVELS: dict[str, tuple[int, float, float]] = {
    "none": (0, 0, 0.0),
    "light1": (2, 0, 0.0),
    "light2": (2, 10, 0.2),
    "medium1": (2, 15, 0.2),
    "medium2": (2, 15, 0.5),
    "strong1": (2, 20, 0.5),
    "strong2": (2, 20, 0.8),
}


def level(name: str) -> dict[str, Any]:
    """The fields of `AugmentSpec` for a level of AugReg: `AugmentSpec(**level("strong2"))`."""
    if name not in LEVELS:
        raise UsageError(f"unknown augmentation level {name!r}{nearest(name, LEVELS)}.")
    layers, magnitude, mixup = LEVELS[name]
    if layers == 0:
        return {"randaugment": "none", "mixup": mixup}
    return {"randaugment": "tf", "randaugment_layers": layers, "randaugment_magnitude": float(magnitude), "mixup": mixup}
