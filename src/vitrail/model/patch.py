"""Patches and their projection E (section 3.1), and its change of patch size and of channels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = ["PatchEmbedding", "change_channels", "resize_patch_kernel"]


class PatchEmbedding(nn.Module):
    """Cut into patches in raster order, flatten, project: (B, C, H, W) -> (B, N, D).

    The weight has the shape of a convolution, (D, C, rows, columns), as every checkpoint
    stores it. Kernel and stride being equal, the convolution is a reshape and one matrix
    product, and is computed so.
    """

    def __init__(self, channels: int, width: int, patch_size: tuple[int, int], bias: bool) -> None:
        super().__init__()
        self.patch_size = patch_size
        self.weight = nn.Parameter(torch.empty(width, channels, *patch_size))
        self.bias = nn.Parameter(torch.empty(width)) if bias else None

    def forward(self, x_BCHW: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        batch, channels, height, width = x_BCHW.shape
        rows, columns = self.patch_size
        patches = (
            x_BCHW.view(batch, channels, height // rows, rows, width // columns, columns)
            if x_BCHW.is_contiguous()
            else (x_BCHW.unflatten(3, (width // columns, columns)).unflatten(2, (height // rows, rows)))
        )
        flat = patches.permute(0, 2, 4, 1, 3, 5).flatten(3).flatten(1, 2)
        return F.linear(flat, self.weight.flatten(1), self.bias)

    def extra_repr(self) -> str:
        return f"{self.weight.shape[1]}, {self.weight.shape[0]}, patch_size={self.patch_size}"


def resize_patch_kernel(kernel_DCHW: Float[Tensor, "D C H W"], size: tuple[int, int]) -> Float[Tensor, "D C H2 W2"]:
    """The kernel of another patch size whose products with resized patches stay what they were (FlexiViT).

    With B the bilinear resize of a patch as a matrix, the answer is w' = pinv(B^T) w.
    """
    old = (kernel_DCHW.shape[2], kernel_DCHW.shape[3])
    if old == tuple(size):
        return kernel_DCHW
    basis = torch.eye(old[0] * old[1], dtype=torch.float64, device=kernel_DCHW.device).view(-1, 1, *old)
    resized = F.interpolate(basis, size=tuple(size), mode="bilinear", align_corners=False)
    inverse = torch.linalg.pinv(resized.flatten(1))  # (new, old): rows of `resized` are B^T
    new = kernel_DCHW.flatten(2).double() @ inverse.T
    return new.unflatten(2, tuple(size)).to(kernel_DCHW.dtype)


def change_channels(kernel_DCHW: Float[Tensor, "D C H W"], channels: int) -> Float[Tensor, "D C2 H W"]:
    """A kernel for another number of input channels, by timm's rule: 1 adds them up, others repeat them in turn, scaled by old / new.

    A picture with equal channels has the same products as before when `channels` is 1 or a multiple of the old number.
    """
    old = kernel_DCHW.shape[1]
    if old == channels:
        return kernel_DCHW
    if channels == 1:
        return kernel_DCHW.sum(1, keepdim=True)
    repeats = -(-channels // old)
    return kernel_DCHW.repeat(1, repeats, 1, 1)[:, :channels] * (old / channels)
