"""The evaluation view: one image file -> the pixels a set of weights expects, and their value range.

    mode                 what happens                                              whose it is
    -----------------    ------------------------------------------------------    --------------------------
    squash               resize straight to image_size, aspect ignored             vit_jax, HF's ViT, BiT
    resize_small_crop    shorter side to `resize` (rounded), centre crop           big_vision
    shorter_crop         shorter side to `resize` (truncated), centre crop         timm, torchvision, HF's DeiT
    bit                  squash to `resize` square, centre crop; with no           BiT (its released code has
                         `resize` straight to image_size                           no `resize` in evaluation)

Training, evaluation, prediction and serving all come through here, so they cannot disagree;
an identity card carries the `Preprocess` of its weights. The value range is
`(x - 255 mean) / (255 std)`; mean = std = 0.5 is the paper's [-1, 1].
"""

from __future__ import annotations

import math
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.data import decode
from vitrail.data.resize import FILTERS, ROUNDINGS, resize
from vitrail.errors import DecodeError, UsageError, nearest

__all__ = ["IMAGENET_MEAN", "IMAGENET_STD", "MODES", "PRESETS", "Preprocess", "preset"]

MODES = ("bit", "resize_small_crop", "shorter_crop", "squash")
IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


@dataclass(frozen=True)
class Preprocess:
    """How an image becomes input. Sizes are (rows, columns) in pixels."""

    image_size: tuple[int, int] = (224, 224)
    mode: str = "squash"
    resize: int | None = None  # before the centre crop; None: 8/7 of the size (big_vision), 1/0.875 (shorter_crop)
    interpolation: str = "bilinear"
    antialias: bool = False
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)  # of pixels in [0, 1], one a channel
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    rounding: str | None = None  # "truncate", "round", "keep" (fractions go on to the model); None: as the mode's owner
    channels: int = 3  # 1: luma alone

    def __post_init__(self) -> None:
        if isinstance(self.image_size, int):
            object.__setattr__(self, "image_size", (self.image_size, self.image_size))
        for name in ("image_size", "mean", "std"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        self._check()

    def _check(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"unknown preprocessing mode {self.mode!r}{nearest(self.mode, MODES)}.")
        if self.interpolation not in FILTERS:
            raise UsageError(f"unknown resize filter {self.interpolation!r}{nearest(self.interpolation, FILTERS)}.")
        if self.rounding is not None and self.rounding not in ROUNDINGS:
            raise UsageError(f"unknown rounding {self.rounding!r}{nearest(self.rounding, ROUNDINGS)}.")
        if len(self.image_size) != 2 or min(self.image_size) < 1:
            raise UsageError(f"image_size={self.image_size!r}; give (rows, columns) in pixels.")
        if self.channels not in (1, 3):
            raise UsageError(f"{self.channels} channels; images have 3 (RGB), or 1 (luma).")
        if {len(self.mean), len(self.std)} - {1, self.channels}:
            raise UsageError(f"mean and std have {len(self.mean)} and {len(self.std)} values, {self.channels} are needed.")
        if min(self.std) <= 0:
            raise UsageError(f"std={self.std}; it divides the pixels and must be above 0.")
        if self.mode != "squash" and self.resize is not None:
            needed = max(self.image_size) if self.mode == "bit" else min(self.image_size)
            if self.resize < needed:
                raise UsageError(
                    f"resize={self.resize} is smaller than the crop of {self.image_size[0]}x{self.image_size[1]}.",
                    hint=f"use at least {needed}, or mode='squash'",
                )

    @classmethod
    def of(cls, spec: Any, image_size: tuple[int, int] | int) -> Preprocess:
        """The evaluation view that a recipe's data section describes."""
        return cls(
            image_size,  # type: ignore[arg-type]
            spec.eval_mode,
            spec.eval_resize,
            spec.eval_interpolation,
            spec.eval_antialias,
            spec.mean,
            spec.std,
        )

    # ------------------------------------------------------------ pixels

    @property
    def dtype(self) -> type:
        """Of `pixels`: uint8, or float32 where fractions are kept."""
        return np.float32 if self._rounding == "keep" else np.uint8

    def pixels(self, data: bytes | np.ndarray, where: str = "") -> np.ndarray:
        """An image file (or a uint8 array) -> its view, (rows, columns, channels): uint8, or float32 in 0..255
        where fractions are kept."""
        image = decode.pixels(data, where=where)
        size, (top, left) = self._plan(image.shape[0], image.shape[1])
        image = resize(image, size, self.interpolation, self.antialias, self._rounding)
        image = image[top : top + self.image_size[0], left : left + self.image_size[1]]
        return np.ascontiguousarray(image if self.channels == 3 else _luma(image))

    def box(self, height: int, width: int) -> tuple[float, float, float, float]:
        """(top, left, bottom, right) of the view in an upright original of that size, in its pixels."""
        (rows, columns), (top, left) = self._plan(height, width)
        down, across = height / rows, width / columns
        return top * down, left * across, (top + self.image_size[0]) * down, (left + self.image_size[1]) * across

    def _plan(self, height: int, width: int) -> tuple[tuple[int, int], tuple[int, int]]:
        """(size after the resize), (top, left) of the crop in it."""
        rows, columns = self.image_size
        if self.mode == "squash" or (self.mode == "bit" and self.resize is None):
            return self.image_size, (0, 0)
        if self.mode == "bit":
            assert self.resize is not None
            size = (self.resize, self.resize)
            return size, ((size[0] - rows) // 2, (size[1] - columns) // 2)
        if self.mode == "resize_small_crop":
            size = self._cover(height, width, "round")
            return size, ((size[0] - rows) // 2, (size[1] - columns) // 2)
        size = self._cover(height, width, "truncate")
        return size, (round((size[0] - rows) / 2), round((size[1] - columns) / 2))  # torchvision rounds half to even

    def _cover(self, height: int, width: int, how: str) -> tuple[int, int]:
        """The size, aspect kept, that just covers `resize` (times the shape, where that is not square)."""
        rows, columns = self.image_size
        short = min(rows, columns)
        goal = self.shorter_side
        target_rows, target_columns = goal * rows // short, goal * columns // short
        if how == "round":  # in float32, like the original
            ratio = max(np.float32(target_rows) / np.float32(height), np.float32(target_columns) / np.float32(width))
            size = int(np.rint(np.float32(height) * ratio)), int(np.rint(np.float32(width) * ratio))
        elif target_rows * width >= target_columns * height:
            size = target_rows, int(target_rows * width / height)
        else:
            size = int(target_columns * height / width), target_columns
        return max(size[0], rows), max(size[1], columns)

    @property
    def shorter_side(self) -> int:
        """Pixels of the shorter side before the centre crop."""
        if self.resize is not None:
            return self.resize
        short = min(self.image_size)
        return short * 8 // 7 if self.mode == "resize_small_crop" else math.floor(short / 0.875)

    @property
    def _rounding(self) -> str:
        """None: vit_jax feeds fractions on, big_vision truncates, everyone with Pillow rounds."""
        if self.rounding is not None:
            return self.rounding
        if self.mode == "resize_small_crop":
            return "truncate"
        return "round" if self.antialias or self.mode == "shorter_crop" else "keep"

    # ------------------------------------------------------------ values

    def normalise(self, images: Tensor) -> Tensor:
        """(N, C, H, W) or (C, H, W), uint8 or float in 0..255 -> float32 (or its own float type), the model's range."""
        images = images if images.is_floating_point() else images.to(torch.float32)
        if len({*self.mean}) == len({*self.std}) == 1:
            return (images - 255 * self.mean[0]) / (255 * self.std[0])
        # made on the host and sent without waiting: `torch.tensor(…, device=…)` would stop for the device
        mean, std = (torch.tensor(v, dtype=images.dtype).to(images.device, non_blocking=True) for v in (self.mean, self.std))
        return (images - 255 * mean.view(-1, 1, 1)) / (255 * std.view(-1, 1, 1))

    def __call__(self, image: Any) -> Tensor:
        """A path, the bytes of a file, a uint8 array (H, W[, C]) or a Pillow image -> (C, rows, columns)."""
        data, where = _data(image)
        pixels = torch.from_numpy(self.pixels(data, where))
        return self.normalise(pixels.permute(2, 0, 1)).contiguous()

    def to_dict(self) -> dict[str, Any]:
        table = asdict(self)
        return {name: list(value) if isinstance(value, tuple) else value for name, value in table.items()}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any]) -> Preprocess:
        known = [item.name for item in fields(cls)]
        for name in table:
            if name not in known:
                raise UsageError(f"preprocessing has no key {name!r}{nearest(name, known)}.")
        return cls(**table)


def _data(image: Any) -> tuple[bytes | np.ndarray, str]:
    """Whatever a user holds -> what `pixels` takes, and a name to report it by."""
    if isinstance(image, (bytes, bytearray, memoryview)):
        return bytes(image), ""
    if isinstance(image, (str, os.PathLike)):
        try:
            return Path(image).read_bytes(), str(image)
        except OSError as error:
            raise DecodeError("io", error.strerror or str(error), where=str(image)) from None
    if hasattr(image, "getbands"):  # Pillow's; it keeps orientation in the metadata
        from PIL import ImageOps

        upright = ImageOps.exif_transpose(image)
        has_alpha = upright.mode in ("LA", "PA", "RGBA") or "transparency" in upright.info
        return np.asarray(upright.convert("RGBA" if has_alpha else "RGB")), ""
    if isinstance(image, Tensor):
        raise UsageError("a tensor does not say its layout; give a uint8 array (height, width, channels).")
    return np.asarray(image), ""


def _luma(image: np.ndarray) -> np.ndarray:
    """ITU-R 601 luma, (H, W, 1), rounded where the image is uint8."""
    grey = image.astype(np.float32) @ np.array([0.299, 0.587, 0.114], np.float32)
    return (np.rint(grey).astype(np.uint8) if image.dtype == np.uint8 else grey)[..., None]


# ---------------------------------------------------------------- conventions by name

_PILLOW = {"antialias": True, "rounding": "round"}
_IMAGENET = {"mean": IMAGENET_MEAN, "std": IMAGENET_STD}
PRESETS: dict[str, dict[str, Any]] = {
    "vit_jax": {"mode": "squash"},  # the paper's release: bilinear without antialias, fractions kept
    "big_vision": {"mode": "resize_small_crop", "interpolation": "area"},  # shorter side 8/7, truncated
    "big_vision_squash": {"mode": "squash", "rounding": "truncate"},
    "bit": {"mode": "bit", "interpolation": "bilinear", **_PILLOW},  # the PyTorch release of BiT
    "hf_vit": {"mode": "squash", "interpolation": "bilinear", **_PILLOW},
    "timm_augreg": {"mode": "shorter_crop", "interpolation": "bicubic", "crop": 0.9, **_PILLOW},
    "timm_full": {"mode": "shorter_crop", "interpolation": "bicubic", "crop": 1.0, **_PILLOW},
    "deit": {"mode": "shorter_crop", "interpolation": "bicubic", "crop": 0.875, **_PILLOW, **_IMAGENET},
    "deit3": {"mode": "shorter_crop", "interpolation": "bicubic", "crop": 1.0, **_PILLOW, **_IMAGENET},
    "dinov2": {"mode": "shorter_crop", "interpolation": "bicubic", "crop": 0.875, **_PILLOW, **_IMAGENET},
    "torchvision": {"mode": "shorter_crop", "interpolation": "bilinear", "crop": 0.875, **_PILLOW, **_IMAGENET},
}


def preset(name: str, image_size: tuple[int, int] | int = 224, **changes: Any) -> Preprocess:
    """A published convention at a size. `crop` is the part of the shorter side that is kept (0.875: 256 -> 224)."""
    if name not in PRESETS:
        raise UsageError(f"unknown preprocessing {name!r}{nearest(name, PRESETS)}.")
    options = {**PRESETS[name], **changes}
    crop = options.pop("crop", None)
    size = (image_size, image_size) if isinstance(image_size, int) else tuple(image_size)
    if crop is not None:
        options.setdefault("resize", math.floor(min(size) / crop))
    return Preprocess(size, **options)  # type: ignore[arg-type]
