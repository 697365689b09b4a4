"""Augmentation of a batch, where the batch is: flip, operations, erasing, mixing.

    augment = Augment(recipe.augment, seed=0, classes=1000, group=8)
    images, targets = augment(batch)

Draws are functions of (seed, purpose, position in the stream), so any split of the global
batch over ranks and micro-batches gives the same images. What happens to which sample is
planned on the host from `batch.positions()`; the device carries it out without being waited
for. Images stay uint8 until something needs fractions (erasing, mixing).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.data import operations
from vitrail.data.batch import Batch
from vitrail.data.mix import erase, mix, plan_mix
from vitrail.data.randaugment import colour_jitter, level, randaugment, three_augment
from vitrail.errors import UsageError
from vitrail.kernels import draws

__all__ = ["Augment", "level"]


class Augment:
    """A recipe's `augment` section, applied. `group` samples are mixed among themselves; it divides every share."""

    def __init__(
        self,
        spec: Any,  # config.AugmentSpec
        *,
        seed: int,
        classes: int,
        group: int = 1,
        mean: tuple[float, ...] = (0.5, 0.5, 0.5),
        std: tuple[float, ...] = (0.5, 0.5, 0.5),
        contrast_bug: bool = False,
    ) -> None:
        self.spec, self.seed, self.classes, self.group = spec, seed, classes, group
        self.mean, self.std = (tuple(v) if len(v) == 3 else 3 * tuple(v) for v in (mean, std))
        self.contrast_bug = contrast_bug  # big_vision's Contrast of 2022: towards pixels / 256, not the mean
        self.mixes = spec.mixup > 0 or spec.cutmix > 0
        self._check()

    def _check(self) -> None:
        for name in ("flip", "erasing", "mix_probability", "mix_switch"):
            value = getattr(self.spec, name)
            if not 0 <= value <= 1:
                raise UsageError(f"augment.{name}={value}; it is a probability, 0 … 1.")
        for name in ("mixup", "cutmix", "colour_jitter", "randaugment_std", "randaugment_magnitude"):
            if getattr(self.spec, name) < 0:
                raise UsageError(f"augment.{name}={getattr(self.spec, name)}; it cannot be negative.")
        if self.mixes and self.group < 2:
            raise UsageError("mixup and cutmix need at least two samples to pair.", hint="use a batch size that is a multiple of 8")
        if self.mixes and self.classes < 1:
            raise UsageError("mixup and cutmix mix labels, and this objective has none.", hint="augment.mixup=0 augment.cutmix=0")

    @torch.no_grad()
    def __call__(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """(images (N, C, H, W), uint8 or float32 in 0..255; targets, int64 (N) or float32 (N, K))."""
        images, positions = batch.images, batch.positions()
        size = (int(images.shape[2]), int(images.shape[3]))
        images = self._flip(images, positions)
        steps = self.plan(positions, size)
        if steps:
            images = self._own(images, batch)
            for step, flavour in steps:
                fill = tuple(min(255, round(255 * m)) for m in self.mean) if flavour == "pillow" else (128, 128, 128)
                operations.run(images, step, flavour, fill, count_bug=self.contrast_bug)  # type: ignore[arg-type]
        if self.spec.erasing > 0:
            images = erase(images.float(), self.spec.erasing, self.seed, positions, self.mean, self.std)
        if not self.mixes:
            return images, batch.labels
        return self._mix(images, batch, positions, size)

    def plan(self, positions: np.ndarray, size: tuple[int, int]) -> list[tuple[operations.Steps, operations.Flavour]]:
        """The operations on the samples at these positions, layer by layer."""
        spec, plan = self.spec, []
        if spec.randaugment != "none" and spec.randaugment_layers > 0:
            which, layers, magnitude = spec.randaugment, spec.randaugment_layers, spec.randaugment_magnitude
            found = randaugment(which, layers, magnitude, spec.randaugment_std, self.seed, positions, size)
            plan += [(step, "tf" if which == "tf" else "pillow") for step in found]
        if spec.three_augment:
            plan += [(step, "pillow") for step in three_augment(self.seed, positions)]
        if spec.colour_jitter > 0:
            plan += [(step, "pillow") for step in colour_jitter(spec.colour_jitter, self.seed, positions)]
        return plan  # type: ignore[return-value]

    def _flip(self, images: Tensor, positions: np.ndarray) -> Tensor:
        if self.spec.flip <= 0:
            return images
        coin = draws.uniform_numpy(draws.key(self.seed, "flip"), positions, 1)[:, 0] < self.spec.flip
        turned = torch.from_numpy(coin).to(images.device, non_blocking=True).view(-1, 1, 1, 1)
        return torch.where(turned, images.flip(3), images)

    def _own(self, images: Tensor, batch: Batch) -> Tensor:
        """A contiguous copy that operations may write into; never the batch's own memory."""
        if images.dtype != torch.uint8:
            images = images.round().clamp(0, 255).to(torch.uint8)
        images = images.contiguous()
        return images.clone() if images.data_ptr() == batch.images.data_ptr() else images

    def _mix(self, images: Tensor, batch: Batch, positions: np.ndarray, size: tuple[int, int]) -> tuple[Tensor, Tensor]:
        if len(batch) % self.group or (len(positions) and positions[0] % self.group):
            raise UsageError(
                f"a share of {len(batch)} samples from position {positions[0]} does not hold whole groups of {self.group}.",
                hint="let the group divide the batch of every rank and micro-batch",
            )
        spec = self.spec
        groups = positions // self.group
        plan = plan_mix(spec.mixup, spec.cutmix, spec.mix_probability, spec.mix_switch, self.seed, groups, size)
        return mix(images.float(), self._targets(batch.labels), plan, self.group)

    def _targets(self, labels: Tensor) -> Tensor:
        """One-hot rows; a sample without a label (-1) has none."""
        if labels.dtype != torch.int64:
            return labels.float()
        hot = F.one_hot(labels.clamp(min=0), self.classes).to(torch.float32)
        return hot * (labels >= 0).to(torch.float32)[:, None]
