"""Masked autoencoder (He et al., 2022): the encoder sees a quarter of the patches, a small decoder draws the rest.

Which patches are hidden is a draw keyed by the sample's slot. The loss is the squared error of
the hidden patches' pixels, each patch first brought to zero mean and unit variance
(`normalised_pixels`; unbiased variance, epsilon 1e-6). The decoder is left behind afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitrail.config import ObjectiveSpec
from vitrail.errors import UsageError
from vitrail.kernels import draws
from vitrail.model.config import ViTConfig
from vitrail.model.initial import generator_for, xavier_uniform_
from vitrail.model.position import sincos2d
from vitrail.model.vit import Block
from vitrail.runtime.device import Precision
from vitrail.train.masked import cut_patches, fewest_first
from vitrail.train.objective import Objective

__all__ = ["Decoder", "Mae"]


class Decoder(nn.Module):
    """Tokens of the visible patches -> pixels of all."""

    position: Tensor

    def __init__(self, config: ViTConfig, spec: ObjectiveSpec) -> None:
        super().__init__()
        width = spec.decoder_width
        own = ViTConfig(
            width=width, depth=spec.decoder_depth, heads=spec.decoder_heads, mlp_width=4 * width, activation=config.activation,
            eps=config.eps, patch_size=config.patch_size, image_size=config.image_size, classes=0,
        )  # fmt: skip
        self.prefix = config.prefix
        self.embed = nn.Linear(config.width, width)
        self.mask = nn.Parameter(torch.empty(width))
        self.register_buffer("position", sincos2d(config.grid, width), persistent=False)
        self.blocks = nn.ModuleList(Block(own, index, own.depth) for index in range(own.depth))
        self.norm = nn.LayerNorm(width, eps=config.eps)
        self.pixels = nn.Linear(width, config.channels * config.patch_size[0] * config.patch_size[1])

    def forward(self, tokens_BTD: Tensor, keep_BV: Tensor) -> Tensor:
        tokens = self.embed(tokens_BTD)
        seen = tokens[:, self.prefix :]
        patches = self.mask.to(seen.dtype).expand(seen.shape[0], self.position.shape[0], -1)
        patches = patches.scatter(1, keep_BV[:, :, None].expand(-1, -1, seen.shape[2]), seen)
        z = torch.cat([tokens[:, : self.prefix], patches + self.position.to(patches.dtype)], dim=1)
        for block in self.blocks:
            z = block(z)
        return self.norm(z)[:, self.prefix :]

    @torch.no_grad()
    def initialise(self, seed: int) -> None:
        """Xavier for all linear layers, normal of 0.02 for the mask; a parameter's draw depends on seed and name."""
        for name, parameter in self.named_parameters():
            generator = generator_for(seed, f"decoder.{name}")
            if name == "mask":
                parameter.normal_(0.0, 0.02, generator=generator)
            elif parameter.ndim == 2:
                xavier_uniform_(parameter, generator, 3 if ".qkv." in name else 1)
            else:
                parameter.fill_(1.0 if name.endswith("weight") else 0.0)


class Mae(Objective):
    """Owns the decoder; the model has no head."""

    def __init__(
        self, model: nn.Module, spec: ObjectiveSpec, precision: Precision, mean: Sequence[float], std: Sequence[float], seed: int
    ) -> None:
        super().__init__(model, precision, mean, std)
        config: Any = model.config
        if not hasattr(model, "assemble") or config.stem is not None or config.position == "relative":
            raise UsageError("mae hides patches, so it needs a plain Vision Transformer without a stem or relative positions.")
        self.patches = config.grid[0] * config.grid[1]
        self.visible = round((1.0 - spec.mask_rate) * self.patches)
        if not 0 < self.visible < self.patches:
            raise UsageError(f"objective.mask_rate={spec.mask_rate} leaves {self.visible} of {self.patches} patches to see.")
        self.spec, self.words = spec, draws.key(seed, "mask")
        self.patch_size: tuple[int, int] = config.patch_size
        self.decoder = Decoder(config, spec)
        self.decoder.initialise(seed)

    def prepare(self, images: Tensor, targets: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        """(keep, target): numbers of the visible patches in raster order, and the pixels of all."""
        noise = draws.uniform(draws.sample_keys(self.words, position), self.patches)
        keep = fewest_first(noise)[:, : self.visible].sort(dim=1).values
        target = cut_patches(self.normalise(images), self.patch_size).flatten(2)
        if self.spec.normalised_pixels:
            mean, variance = target.mean(-1, keepdim=True), target.var(-1, keepdim=True)
            target = (target - mean) / (variance + 1e-6).sqrt()
        return keep, target

    def forward(self, images: Tensor, key: Tensor | None, *prepared: Tensor) -> Tensor:
        keep, target = prepared
        with self.precision.autocast(images.device):
            patches = self.model.embed_patches(self.normalise(images))
            tokens = self.model.encode(self.model.assemble(patches, keep=keep, key=key), key)
            decoded = self.decoder(tokens, keep)
        with self.precision.full(images.device):
            said = self.decoder.pixels(decoded.to(self.precision.weights))
        hidden = torch.ones(target.shape[:2], dtype=said.dtype, device=said.device).scatter(1, keep, 0.0)
        return ((said - target).square().mean(-1) * hidden).sum(1) / hidden.sum(1)
