"""Test-time augmentation: one image seen several ways, the probabilities averaged.

    flip    the image and its mirror image
    five    four corners and the centre of a larger view
    ten     these five and their mirror images

Crops are cut from the view before its centre crop (256 for 224 pixels); where the weights'
view crops nothing, from one 8/7 as large. All on the device, from one decoded image.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data.transform import Preprocess
from vitrail.errors import UsageError, nearest

__all__ = ["NAMES", "Views"]

NAMES = ("none", "flip", "five", "ten")


@dataclass(frozen=True)
class Views:
    """How an image is looked at, and how the answers become one."""

    name: str
    size: tuple[int, int]  # what the model takes

    def __post_init__(self) -> None:
        if self.name not in NAMES:
            raise UsageError(f"no test-time augmentation is called {self.name!r}{nearest(self.name, NAMES)}.")

    @property
    def count(self) -> int:
        """Passes through the model an image."""
        return {"none": 1, "flip": 2, "five": 5, "ten": 10}[self.name]

    @property
    def cropped(self) -> bool:
        return self.name in ("five", "ten")

    def preprocess(self, view: Preprocess) -> Preprocess:
        """The view to cut from."""
        if not self.cropped:
            return view
        rows, columns = self.size
        short = min(rows, columns)
        side = view.shorter_side if view.mode != "squash" else short
        side = side if side > short else round(short * 8 / 7)
        larger = (rows * side // short, columns * side // short)
        resize = None if view.mode == "squash" else max(larger) if view.mode == "bit" else side
        return dataclasses.replace(view, image_size=larger, resize=resize)

    def cut(self, images: Tensor) -> list[Tensor]:
        """(B, C, H, W) of the larger view -> as many (B, C, rows, columns) as the model is asked."""
        views = [images]
        if self.cropped:
            (rows, columns), (height, width) = self.size, images.shape[-2:]
            down, right = height - rows, width - columns
            places = [(down // 2, right // 2), (0, 0), (0, right), (down, 0), (down, right)]
            views = [images[..., top : top + rows, left : left + columns] for top, left in places]
        return views + [view.flip(-1) for view in views] if self.name in ("flip", "ten") else views

    def forward(self, model: Callable[[Tensor], Tensor], several: bool = False) -> Callable[[Tensor], Tensor]:
        """images -> logits: of the mean probability (softmax), or the mean logits where an image has several labels."""
        if self.name == "none":
            return model

        def ask(images: Tensor) -> Tensor:
            logits = torch.stack([model(view).float() for view in self.cut(images)])
            if several:
                return logits.mean(0)
            return F.log_softmax(logits, dim=-1).logsumexp(0) - torch.log(torch.tensor(float(len(logits)), device=logits.device))

        return ask
