"""A block that keeps a third of its activations for the backward pass and computes the rest again.

What a block keeps for one token, in units of its width D and two bytes: the residual stream before
and after attention, q, k and v, and what the heads gathered, 6 to 8 D of 16 to 18. Both norms, the
first dense layer of the MLP and its GELU are computed again when gradients want them; attention,
its projections and the last product, two thirds of the work, are not. `checkpoint_blocks` keeps the
block's input alone and computes everything again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.kernels.paths import product_dtype
from vitrail.model.vit import Attention, Block, scaled, sequence_positions

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["lean_block"]


def lean_block(block: Block, z: Float[Tensor, "B T D"], key: Int[Tensor, "B 2"] | None = None) -> Float[Tensor, "B T D"]:
    """Equations 2 and 3, as `Block.forward`."""
    position = block.position if block.position is not None else block.shared_position[0]
    if position is not None:
        z = z + sequence_positions(position, z.shape[1])
    z = z + block.path1(scaled(attended(block, z, key), block.scale1), key)  # eq. 2
    return checkpoint(mlp_half, block, z, key, use_reentrant=False)  # eq. 3


def attended(block: Block, z: Tensor, key: Tensor | None) -> Tensor:
    """MSA(LN(z)); q, k, v and the heads are kept, the normalised z is not."""
    attention = block.attention
    if type(attention) is not Attention or attention.relative is not None or attention.q_norm is not None:
        return checkpoint(lambda z: attention(block.norm1(z), key), z, use_reentrant=False)
    qkv = checkpoint(projected, block, z, use_reentrant=False)
    if serves(block, qkv):
        from vitrail.kernels.attention import attention as fused_attention

        heads = fused_attention(qkv, None, attention.heads)
    else:
        q, k, v = qkv.unflatten(2, (3, attention.heads, -1)).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    return attention.drop(attention.out(heads), key)


def serves(block: Block, qkv: Tensor) -> bool:
    """Whether the fused attention is this block's."""
    if block.fused is None or product_dtype(qkv) is None:
        return False
    from vitrail.kernels.attention import MOST_TOKENS
    from vitrail.model.fused import no_attention

    return qkv.shape[1] <= MOST_TOKENS and no_attention(block, None) is None


def projected(block: Block, z: Tensor) -> Tensor:
    return block.attention.qkv(normed(block, block.norm1, z)[1])


def mlp_half(block: Block, z: Tensor, key: Tensor | None) -> Tensor:
    z, n = normed(block, block.norm2, z)
    if block.fused is None or product_dtype(z) is None:
        return z + block.path2(scaled(block.mlp(n, key), block.scale2), key)
    from vitrail.model.fused import mlp

    return z + block.path2(scaled(mlp(block, n), block.scale2), key)


def normed(block: Block, norm: nn.LayerNorm, z: Tensor) -> tuple[Tensor, Tensor]:
    """z and LN(z), through the kernel where the block has it: there both gradients meet in one pass."""
    if block.fused is None or (dtype := product_dtype(z)) is None:
        return z, norm(z)
    from vitrail.kernels.norm import residual_norm

    return residual_norm(z, None, None, None, None, norm.weight, norm.bias, norm.eps, dtype)
