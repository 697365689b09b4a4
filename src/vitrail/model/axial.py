"""Axial attention (appendix D.6): a block is row attention and MLP, then column attention and MLP.

The tokens are the grid of patches, in raster order from the first block to the last; only
an attention sees it as rows or as columns. Everything else is the VisionTransformer's.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from torch import Tensor, nn

from vitrail.model.config import ViTConfig
from vitrail.model.vit import Attention, Block, VisionTransformer

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["AxialAttention", "AxialBlock", "AxialVisionTransformer"]


class AxialAttention(Attention):
    """Self-attention inside each row of the grid, or inside each column."""

    def __init__(self, config: ViTConfig, site: int, axis: str) -> None:
        super().__init__(config, site)
        self.axis, self.grid = axis, config.grid

    def attend(self, x_BND: Float[Tensor, "B N D"]) -> Float[Tensor, "B N D"]:
        return self.together(super().attend(self.apart(x_BND)), x_BND.shape[0])

    def apart(self, x_BND: Float[Tensor, "B N D"]) -> Float[Tensor, "lines length D"]:
        """(B, rows * columns, D) -> (B * rows, columns, D), or (B * columns, rows, D)."""
        lines = x_BND.unflatten(1, self.grid)
        return (lines if self.axis == "rows" else lines.transpose(1, 2)).flatten(0, 1)

    def together(self, lines: Float[Tensor, "lines length D"], batch: int) -> Float[Tensor, "B N D"]:
        """The inverse of `apart`."""
        lines = lines.unflatten(0, (batch, -1))
        return (lines if self.axis == "rows" else lines.transpose(1, 2)).flatten(1, 2)


class AxialBlock(nn.Module):
    """Two blocks of the encoder, one along each axis."""

    def __init__(self, config: ViTConfig, index: int) -> None:
        super().__init__()
        count = 2 * config.depth
        self.rows = Block(config, 2 * index, count, attention=partial(AxialAttention, axis="rows"))
        self.columns = Block(config, 2 * index + 1, count, attention=partial(AxialAttention, axis="columns"))

    def forward(self, z_BND: Float[Tensor, "B N D"], key: Int[Tensor, "B 2"] | None = None) -> Float[Tensor, "B N D"]:
        return self.columns(self.rows(z_BND, key), key)


class AxialVisionTransformer(VisionTransformer):
    """AxialViT: a VisionTransformer whose blocks attend along one axis at a time."""

    def layer(self, config: ViTConfig, index: int) -> AxialBlock:
        """Layer `index` of the encoder, unfilled."""
        return AxialBlock(config, index)

    def resize(self, image_size: int | tuple[int, int]) -> AxialVisionTransformer:
        """Another image size, in place: positions and lines go to the new grid."""
        super().resize(image_size)
        for module in self.modules():
            if isinstance(module, AxialAttention):
                module.grid = self.config.grid
        return self
