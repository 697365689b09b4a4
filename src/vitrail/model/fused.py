"""A block through the fused kernels: the same sums as `Block.forward`, in fewer passes over memory.

    said = fuse(model, device)        # "fused attention, norm, gelu (triton 3.6.0)", or "plain (no triton …)"

Beside the kernels it uses that only the class token is read at the end: the last block then
computes queries, projection and MLP for that token alone, which changes no logit.
Whoever watches the inside (hooks on a block's modules) gets the plain path.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.kernels.paths import Choice, triton_version, why_plain
from vitrail.model.drop import DropPath, draw, kept
from vitrail.model.vit import Attention, Block, VisionTransformer, scaled, sequence_positions

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["Residual", "fuse"]

Residual = Literal["float32", "bfloat16"]
GELUS = ("gelu", "gelu_tanh")


def fuse(model: nn.Module, device: torch.device, choice: Choice = "auto", residual: Residual = "float32", precision: str = "bf16") -> str:
    """Switch a model's blocks to the kernels, or back; says which path they take there and why.

    residual: the precision of the sum that runs through the blocks; float32 is what autocast makes of it
    precision: the run's; only products of half precision (or less) have kernels
    """
    blocks = [module for module in model.modules() if isinstance(module, Block)]
    wide = f"{precision} products" if precision not in ("bf16", "fp16", "fp8") else None
    reason = why_plain(device, choice) or wide or why_not(blocks)
    for block in blocks:
        block.fused = None if reason else fused_block
    if isinstance(model, VisionTransformer):
        model.residual = None if reason or residual == "float32" else torch.bfloat16
    if reason:
        if choice == "fused":
            raise UsageError(f"fused kernels were asked for, and cannot be had: {reason}.", hint="kernels=auto takes them where they run")
        return f"plain ({reason})"
    alone = no_attention(blocks[0], getattr(model, "config", None))
    parts = f"norm, gelu; attention by torch: {alone}" if alone else "attention, norm, gelu"
    return f"fused {parts} (triton {triton_version()})"


def why_not(blocks: list[Block]) -> str | None:
    """What about these blocks the kernels do not know; None: nothing."""
    if not blocks:
        return "no transformer blocks"
    for block in blocks:
        if block.mlp.gated or block.mlp.activation not in GELUS:
            return f"the MLP is {'gated' if block.mlp.gated else block.mlp.activation}"
        if block.attention.drop.rate or block.mlp.drop1.rate:
            return "dropout"
    return None


def no_attention(block: Block, config: Any) -> str | None:
    """Why attention stays with torch; None: the kernel serves."""
    from vitrail.kernels.attention import MOST_TOKENS, WIDTHS

    attention = block.attention
    if type(attention) is not Attention:
        return type(attention).__name__
    if attention.relative is not None or attention.q_norm is not None:
        return "relative positions" if attention.relative is not None else "normalised q and k"
    width = block.norm1.normalized_shape[0] // attention.heads
    if width not in WIDTHS:
        return f"heads of width {width}"
    tokens = getattr(config, "tokens", 0)
    return f"{tokens} tokens, the kernel holds {MOST_TOKENS}" if tokens > MOST_TOKENS else None


def fused_block(
    block: Block, z: Float[Tensor, "B T D"], key: Int[Tensor, "B 2"] | None, rows: int | None, dtype: torch.dtype
) -> Float[Tensor, "B R D"]:
    """Equations 2 and 3; of the first `rows` tokens alone, if the others are not read."""
    from vitrail.kernels.norm import residual_norm

    position = block.position if block.position is not None else block.shared_position[0]
    if position is not None:
        z = z + sequence_positions(position, z.shape[1])
    z, n = residual_norm(z, None, None, None, None, block.norm1.weight, block.norm1.bias, block.norm1.eps, dtype)
    alone = type(block.attention) is Attention and isinstance(block.attention.qkv, nn.Linear)  # not one frozen in fp8
    short = rows is not None and rows < z.shape[1] and alone and block.attention.relative is None
    heads = first_heads(block.attention, n, rows) if short and rows is not None else all_heads(block, n)
    z = z[:, :rows] if short else z
    branch, bias = (heads, None) if type(block.attention) is not Attention else product(block.attention.out, heads)
    keep = keep_or_drop(block.path1, key, z)
    z, n = residual_norm(z, branch, bias, block.scale1, keep, block.norm2.weight, block.norm2.bias, block.norm2.eps, dtype)
    return z + block.path2(scaled(mlp(block, n), block.scale2), key)


def all_heads(block: Block, n: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
    """What every token gathers from all tokens. An attention of another kind comes with its output projection."""
    from vitrail.kernels.attention import MOST_TOKENS, attention

    if type(block.attention) is not Attention:
        return block.attention.attend(n)
    if n.shape[1] <= MOST_TOKENS and no_attention(block, None) is None:
        return attention(*product(block.attention.qkv, n), block.attention.heads)
    q, k, v = block.attention.project(n)
    relative = block.attention.relative
    bias = None if relative is None else relative(q * block.attention.scale)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias).transpose(1, 2).flatten(2)


def first_heads(attention: Attention, n: Float[Tensor, "B T D"], rows: int) -> Float[Tensor, "B R D"]:
    """What the first tokens gather from all: their queries alone, everybody's keys and values."""
    if not plain_linear(attention.qkv):
        q, k, v = attention.project(n)
        return F.scaled_dot_product_attention(q[:, :, :rows], k, v).transpose(1, 2).flatten(2)
    width = n.shape[2]
    weight, bias = attention.qkv.weight, attention.qkv.bias
    q = F.linear(n[:, :rows], weight[:width], None if bias is None else bias[:width])
    kv = F.linear(n, weight[width:], None if bias is None else bias[width:])
    q = q.unflatten(2, (attention.heads, -1)).transpose(1, 2)
    k, v = kv.unflatten(2, (2, attention.heads, -1)).permute(2, 0, 3, 1, 4)
    if attention.q_norm is not None and attention.k_norm is not None:
        q, k = attention.q_norm(q).to(v.dtype), attention.k_norm(k).to(v.dtype)
    return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)


def mlp(block: Block, n: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
    from vitrail.kernels.gelu import gelu, linear_gelu

    fc1, tanh = block.mlp.fc1, block.mlp.activation == "gelu_tanh"
    ordinary = plain_linear(fc1) and fc1.bias is not None and fc1.weight.dtype == n.dtype
    if ordinary and tanh and n.is_cuda and not torch.is_grad_enabled():
        return block.mlp.fc2(linear_gelu(n, fc1.weight, fc1.bias))
    u, bias = product(fc1, n)
    return block.mlp.fc2(gelu(u, bias, tanh=tanh))


def product(layer: nn.Linear, x: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B T E"], Float[Tensor, "E"] | None]:
    """The layer's output, and its bias if whoever reads the output has to make the bias's gradient."""
    if not plain_linear(layer) or layer.bias is None:
        return layer(x), None
    return F.linear(x, layer.weight, layer.bias.detach()), layer.bias


def plain_linear(layer: nn.Linear) -> bool:
    return type(layer).forward is nn.Linear.forward and not layer._forward_hooks and not layer._forward_pre_hooks


def keep_or_drop(path: DropPath, key: Int[Tensor, "B 2"] | None, z: Tensor) -> Float[Tensor, "B"] | None:
    """What stochastic depth multiplies each sample's branch by; None: by one."""
    if path.rate == 0.0 or not path.training:
        return None
    numbers = draw((z.shape[0], 1), path.site, key, z)
    return kept(numbers, path.rate, numbers)[:, 0]
