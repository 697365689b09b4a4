"""Masked patch prediction, the paper's self-supervised objective (section 4.6, appendix B.1.2).

Part of the patch embeddings (half) is corrupted, after the projection and before positions: of
these 80 % become a learned [mask] embedding, 10 % the embedding of another patch of the same
image, 10 % stay. From the output of every corrupted patch one linear layer predicts

    mean_colour   the patch's mean colour, 3 bits a channel: one of 512 classes              (1)
    downsized     the colours of the patch shrunk to 4 x 4: 16 predictions of 512 classes    (2)
    pixels        the whole patch, by least squares                                          (3)

The paper leaves open what follows, and so it is a choice: exactly round(rate * N) patches are
corrupted (`mask_exact`), targets are read after augmentation, the loss is a mean over the
corrupted patches. What is corrupted is a draw keyed by the sample's slot, as all draws are.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import ObjectiveSpec
from vitrail.errors import UsageError
from vitrail.kernels import draws
from vitrail.runtime.device import Precision
from vitrail.train.objective import Objective

__all__ = ["COLOURS", "MaskedPatches", "colour_class", "cut_patches", "fewest_first"]

COLOURS = 512  # 8 levels of each of 3 channels
SMALL = 4  # side of the downsized patch
MASKED, FOREIGN = 0.8, 0.9  # below the first: [mask]; below the second: another patch; else kept


class MaskedPatches(Objective):
    """Owns the [mask] embedding and the prediction layer; the model has no head."""

    def __init__(
        self, model: nn.Module, spec: ObjectiveSpec, precision: Precision, mean: Sequence[float], std: Sequence[float], seed: int
    ) -> None:
        super().__init__(model, precision, mean, std)
        config: Any = model.config
        if not 0.0 < spec.mask_rate < 1.0:
            raise UsageError(f"objective.mask_rate must lie between 0 and 1, not {spec.mask_rate}.")
        if not hasattr(model, "embed_patches") or config.stem is not None:
            raise UsageError("masked_patches predicts patches of pixels, so it needs a Vision Transformer without a convolutional stem.")
        self.spec, self.words = spec, draws.key(seed, "mask")
        self.patch_size: tuple[int, int] = config.patch_size
        self.patches = config.grid[0] * config.grid[1]
        self.prefix = config.prefix
        outputs = {"mean_colour": COLOURS, "downsized": SMALL * SMALL * COLOURS, "pixels": 3 * self.patch_size[0] * self.patch_size[1]}
        self.mask = nn.Parameter(torch.zeros(config.width).normal_(0.0, 0.02, generator=torch.Generator().manual_seed(seed)))
        self.predict_patch = nn.Linear(config.width, outputs[spec.mask_target])
        nn.init.zeros_(self.predict_patch.weight)
        nn.init.zeros_(self.predict_patch.bias)

    def prepare(self, images: Tensor, targets: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        """(corrupted, kind, foreign, target): which patches, what becomes of them, whose embedding, what is to be said."""
        keys, count = draws.sample_keys(self.words, position), self.patches
        noise, kind, other = draws.uniform(keys, 3 * count).split(count, dim=1)
        if self.spec.mask_exact:
            corrupted = fewest_first(noise).argsort(dim=1) < round(self.spec.mask_rate * count)
        else:
            corrupted = noise < self.spec.mask_rate
        steps = 1 + (other * (count - 1)).to(torch.int64)  # 1 … N - 1 places on: any patch but itself
        foreign = (torch.arange(count, device=images.device) + steps) % count
        return corrupted, kind, foreign, self.target(images)

    def target(self, images: Tensor) -> Tensor:
        """(B, N) or (B, N, 16) colour classes, or (B, N, 3 P P) pixels in the model's range."""
        if self.spec.mask_target == "pixels":
            return cut_patches(self.normalise(images), self.patch_size).flatten(2)
        patches = cut_patches(images.to(torch.float32) / 255, self.patch_size)
        if self.spec.mask_target == "mean_colour":
            return colour_class(patches.mean(dim=(3, 4)))
        small = F.adaptive_avg_pool2d(patches.flatten(0, 1), SMALL).unflatten(0, patches.shape[:2])
        return colour_class(small.flatten(3).transpose(2, 3))

    def forward(self, images: Tensor, key: Tensor | None, *prepared: Tensor) -> Tensor:
        corrupted, kind, foreign, target = prepared
        with self.precision.autocast(images.device):
            patches = self.model.embed_patches(self.normalise(images))
            elsewhere = patches.gather(1, foreign[:, :, None].expand_as(patches))
            changed = torch.where((kind < MASKED)[:, :, None], self.mask.to(patches.dtype), elsewhere)
            changed = torch.where((kind < FOREIGN)[:, :, None], changed, patches)
            patches = torch.where(corrupted[:, :, None], changed, patches)
            tokens = self.model.encode(self.model.assemble(patches, key=key), key)
        with self.precision.full(images.device):
            said = self.predict_patch(tokens[:, self.prefix :].to(self.precision.weights))
        wrong = self.patch_losses(said, target)
        return (wrong * corrupted).sum(1) / (self.spec.mask_rate * self.patches if not self.spec.mask_exact else corrupted.sum(1))

    def patch_losses(self, said: Tensor, target: Tensor) -> Tensor:
        """(B, N) losses of the patches."""
        if self.spec.mask_target == "pixels":
            return (said - target).square().mean(-1)
        if self.spec.mask_target == "downsized":
            losses = F.cross_entropy(said.unflatten(2, (SMALL * SMALL, COLOURS)).movedim(-1, 1), target, reduction="none")
            return losses.mean(-1)
        return F.cross_entropy(said.transpose(1, 2), target, reduction="none")


def fewest_first(noise: Tensor) -> Tensor:
    """Places in rising order of the noise; equal ones in order of place, so that every device agrees."""
    return noise.argsort(dim=1, stable=True)


def cut_patches(images_BCHW: Tensor, patch_size: tuple[int, int]) -> Tensor:
    """(B, N, C, rows, columns), in raster order."""
    rows, columns = patch_size
    cut = images_BCHW.unflatten(3, (-1, columns)).unflatten(2, (-1, rows))  # B C r P c Q
    return cut.permute(0, 2, 4, 1, 3, 5).flatten(1, 2)


def colour_class(colour: Tensor) -> Tensor:
    """Colours in [0, 1], channels last -> 64 r + 8 g + b of 3 bits each."""
    level = (8 * colour).floor().clamp(0, 7).to(torch.int64)
    return 64 * level[..., 0] + 8 * level[..., 1] + level[..., 2]
