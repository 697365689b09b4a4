"""The training view: one image file and one stream of draws -> uint8 pixels of the training size.

    crop               what happens                                                    whose it is
    ---------------    ------------------------------------------------------------    ------------------
    inception          a random box as TensorFlow samples it, resized                   vit_jax, big_vision
    random_resized     a random box as torchvision samples it, resized                  timm, DeiT, MAE
    resize_crop        resize (squashed, or the shorter side), then a random crop       BiT, big_vision
    pad_crop           resize, reflect `crop_pad` pixels around, then a random crop     CIFAR customs
    resize             resize, aspect ignored                                           VTAB's structured tasks

The two samplers are not the same distribution: TensorFlow draws the aspect uniformly and then
the *height*, so small crops are more frequent; torchvision draws the area, and the aspect by
its logarithm. Flips and everything after are `augment.py`'s, on the device.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.data import decode
from vitrail.data.resize import FILTERS, resize
from vitrail.data.transform import Preprocess
from vitrail.errors import UsageError, nearest
from vitrail.kernels.draws import Stream

__all__ = ["CROPS", "VARIANTS", "TrainView", "bit_sizes", "inception_box", "random_resized_box", "variant"]

CROPS = ("inception", "pad_crop", "random_resized", "resize", "resize_crop")
Box = tuple[float, float, float, float]  # top, left, height, width, in pixels


@dataclass(frozen=True)
class TrainView:
    """How a training image is cut and resized. Sizes are (rows, columns) in pixels."""

    image_size: tuple[int, int] = (224, 224)
    crop: str = "inception"
    crop_area: tuple[float, float] = (0.05, 1.0)
    crop_ratio: tuple[float, float] = (0.75, 1.33)
    crop_resize: int | None = None  # resize_crop: None is 8/7 of the shorter side of image_size
    crop_squash: bool = False
    crop_pad: int = 4
    interpolation: str = "bilinear"
    antialias: bool = False
    dct_scale: bool = False  # decode a large JPEG at 1/2, 1/4 or 1/8: faster, and not the same pixels

    def __post_init__(self) -> None:
        if isinstance(self.image_size, int):
            object.__setattr__(self, "image_size", (self.image_size, self.image_size))
        for name in ("image_size", "crop_area", "crop_ratio"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if self.crop not in CROPS:
            raise UsageError(f"unknown training crop {self.crop!r}{nearest(self.crop, CROPS)}.")
        if self.interpolation not in FILTERS:
            raise UsageError(f"unknown resize filter {self.interpolation!r}{nearest(self.interpolation, FILTERS)}.")
        if len(self.image_size) != 2 or min(self.image_size) < 1:
            raise UsageError(f"image_size={self.image_size!r}; give (rows, columns) in pixels.")
        low, high = self.crop_area
        if not 0 < low <= high <= 1:
            raise UsageError(f"crop_area={self.crop_area}; parts of the image, 0 < least <= greatest <= 1.")
        if not 0 < self.crop_ratio[0] <= self.crop_ratio[1]:
            raise UsageError(f"crop_ratio={self.crop_ratio}; width / height, 0 < least <= greatest.")
        if self.crop == "resize_crop" and self.resized < self._needed:
            raise UsageError(
                f"crop_resize={self.crop_resize} is smaller than the crop of {self.image_size[0]}x{self.image_size[1]}.",
                hint=f"use at least {self._needed}",
            )
        if self.crop == "pad_crop" and not 0 <= self.crop_pad < min(self.image_size):
            raise UsageError(f"crop_pad={self.crop_pad}; a reflection is shorter than the image, 0 … {min(self.image_size) - 1}.")

    @classmethod
    def of(cls, spec: Any, image_size: tuple[int, int] | int) -> TrainView:
        """The training view that a recipe's data section describes."""
        names = "crop crop_area crop_ratio crop_resize crop_squash crop_pad interpolation antialias".split()
        return cls(image_size, **{name: getattr(spec, name) for name in names})  # type: ignore[arg-type]

    @property
    def channels(self) -> int:
        return 3

    @property
    def dtype(self) -> type:
        return np.uint8

    @property
    def rounding(self) -> str:
        """TensorFlow casts (truncates); everyone with an antialiased filter rounds."""
        return "round" if self.antialias else "truncate"

    @property
    def resized(self) -> int:
        """resize_crop: pixels (of the shorter side) before the crop."""
        return self.crop_resize if self.crop_resize is not None else self._needed * 8 // 7

    @property
    def _needed(self) -> int:
        return max(self.image_size) if self.crop_squash else min(self.image_size)

    # ------------------------------------------------------------ pixels

    def pixels(self, data: bytes | np.ndarray, stream: Stream, where: str = "") -> np.ndarray:
        """(rows, columns, 3) uint8. The draws are the stream's first ones, whatever the image holds."""
        if self.dct_scale and isinstance(data, bytes):
            return self._scaled(data, stream, where)
        if self.crop in ("inception", "random_resized"):
            part = decode.pixels(data, crop=lambda height, width: self.sample_box(height, width, stream), where=where)
            return self._resize(part, self.image_size)
        return self._fixed(decode.pixels(data, where=where), stream)

    def sample_box(self, height: int, width: int, stream: Stream) -> tuple[int, int, int, int]:
        """inception, random_resized: (top, left, height, width) of the random box."""
        sample = inception_box if self.crop == "inception" else random_resized_box
        return sample(height, width, stream, self.crop_area, self.crop_ratio)

    def _fixed(self, image: np.ndarray, stream: Stream) -> np.ndarray:
        """The crops that resize first."""
        rows, columns = self.image_size
        image = self._resize(image, self.size_before_crop(image.shape[0], image.shape[1]))
        top, left = self.sample_offset(image.shape[0], image.shape[1], stream)
        if self.crop == "pad_crop":
            pad = self.crop_pad
            image = np.pad(image, ((pad, pad), (pad, pad), (0, 0)), mode="reflect")
        return np.ascontiguousarray(image[top : top + rows, left : left + columns])

    def size_before_crop(self, height: int, width: int) -> tuple[int, int]:
        rows, columns = self.image_size
        if self.crop != "resize_crop":
            return rows, columns
        if self.crop_squash:
            return self.resized, self.resized
        short = min(rows, columns)
        ratio = max(self.resized * rows / short / height, self.resized * columns / short / width)
        return max(round(height * ratio), rows), max(round(width * ratio), columns)

    def sample_offset(self, height: int, width: int, stream: Stream) -> tuple[int, int]:
        """(top, left) of the random crop in the resized image (pad_crop: in the padded one)."""
        if self.crop == "pad_crop":
            return stream.integer(2 * self.crop_pad + 1), stream.integer(2 * self.crop_pad + 1)
        return stream.integer(height - self.image_size[0] + 1), stream.integer(width - self.image_size[1] + 1)

    def _resize(self, image: np.ndarray, size: tuple[int, int]) -> np.ndarray:
        return resize(image, size, self.interpolation, self.antialias, self.rounding)

    def _scaled(self, data: bytes, stream: Stream, where: str) -> np.ndarray:
        """Decode only as large as the crop needs; the box is drawn for the full size, so the draws stay the same."""
        _, width, height, _ = decode.probe(data, where=where)
        if self.crop not in ("inception", "random_resized"):
            rows, columns = self.size_before_crop(height, width)
            return self._fixed(decode.decode(data, min_size=(rows, columns), where=where), stream)
        top, left, rows, columns = self.sample_box(height, width, stream)
        least = math.ceil(height * self.image_size[0] / rows), math.ceil(width * self.image_size[1] / columns)
        image = decode.decode(data, min_size=least, where=where)
        down, across = image.shape[0] / height, image.shape[1] / width
        top, bottom = round(top * down), max(round((top + rows) * down), round(top * down) + 1)
        left, right = round(left * across), max(round((left + columns) * across), round(left * across) + 1)
        return self._resize(image[top:bottom, left:right], self.image_size)


# ---------------------------------------------------------------- samplers


def inception_box(
    height: int, width: int, stream: Stream, area: tuple[float, float] = (0.05, 1.0), ratio: tuple[float, float] = (0.75, 1.33)
) -> tuple[int, int, int, int]:
    """(top, left, height, width) as `tf.image.sample_distorted_bounding_box` without boxes draws it, 100 attempts."""
    least, most = area[0] * height * width, area[1] * height * width
    for _ in range(100):
        size = _inception_size(height, width, stream, stream.uniform(*ratio), least, most)
        if size is not None:
            h, w = size
            # TensorFlow's off-by-one, kept: unless it spans it, a box never touches the far border
            top = stream.integer(height - h) if h < height else 0
            left = stream.integer(width - w) if w < width else 0
            return top, left, h, w
    return 0, 0, height, width


def _inception_size(height: int, width: int, stream: Stream, aspect: float, least: float, most: float) -> tuple[int, int] | None:
    low, high = round(math.sqrt(least / aspect)), round(math.sqrt(most / aspect))
    if round(high * aspect) > width:
        high = int((width + 0.5 - 1e-7) / aspect)
        if round(high * aspect) > width:
            high -= 1
    high = min(high, height)
    low = min(low, high)
    h = low + (stream.integer(high - low + 1) if low < high else 0)
    w = round(h * aspect)
    if h * w < least:  # rounding may have left the range by one pixel
        h, w = h + 1, round((h + 1) * aspect)
    if h * w > most:
        h, w = h - 1, round((h - 1) * aspect)
    fits = least <= h * w <= most and 0 < h <= height and 0 < w <= width
    return (h, w) if fits else None


def random_resized_box(
    height: int, width: int, stream: Stream, area: tuple[float, float] = (0.08, 1.0), ratio: tuple[float, float] = (3 / 4, 4 / 3)
) -> tuple[int, int, int, int]:
    """(top, left, height, width) as torchvision's RandomResizedCrop draws it: 10 attempts, else a centre crop."""
    low, high = math.log(ratio[0]), math.log(ratio[1])
    for _ in range(10):
        pixels = height * width * stream.uniform(*area)
        aspect = math.exp(stream.uniform(low, high))
        w, h = round(math.sqrt(pixels * aspect)), round(math.sqrt(pixels / aspect))
        if 0 < w <= width and 0 < h <= height:
            return stream.integer(height - h + 1), stream.integer(width - w + 1), h, w
    h, w = height, width
    if width / height < ratio[0]:
        h = max(1, round(width / ratio[0]))
    elif width / height > ratio[1]:
        w = max(1, round(height * ratio[1]))
    return (height - h) // 2, (width - w) // 2, h, w


# ---------------------------------------------------------------- fine-tuning by name


def bit_sizes(height: int, width: int) -> tuple[int, int]:
    """BiT-HyperRule: (resize, crop) for images of a data set, by their area."""
    return (160, 128) if height * width < 96 * 96 else (448, 384)


VARIANTS = ("big_vision_inception", "big_vision_res_crop", "big_vision_resmall_crop", "bit", "vit_jax")


def variant(name: str, image_size: int = 384, resize: int | None = None) -> tuple[TrainView, Preprocess]:
    """(training, evaluation) of a documented way to fine-tune; `resize` is 7/6 of the size (448 for 384).

    bit                        train: squash to `resize`, random crop; evaluate: squash to the size (what the paper follows)
    vit_jax                    train: inception crop;                  evaluate: squash to the size
    big_vision_inception       train: inception crop;                  evaluate: resize_small(`resize`), central crop
    big_vision_resmall_crop    train: resize_small, random crop;       evaluate: the same with the central crop
    big_vision_res_crop        train: squash, random crop;             evaluate: resize_small, central crop
    """
    if name not in VARIANTS:
        raise UsageError(f"unknown fine-tuning variant {name!r}{nearest(name, VARIANTS)}.")
    size = (image_size, image_size)
    resize = resize or image_size * 7 // 6
    inception = TrainView(size, "inception")
    squashed = TrainView(size, "resize_crop", crop_resize=resize, crop_squash=True)
    small = TrainView(size, "resize_crop", crop_resize=resize, interpolation="area")
    central = Preprocess(size, "resize_small_crop", resize, "area")
    return {
        "bit": (squashed, Preprocess(size, "bit")),
        "vit_jax": (inception, Preprocess(size, "squash")),
        "big_vision_inception": (inception, central),
        "big_vision_resmall_crop": (small, central),
        "big_vision_res_crop": (squashed, central),
    }[name]
