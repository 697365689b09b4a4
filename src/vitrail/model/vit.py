"""The Vision Transformer, beside the paper: each numbered equation is one line tagged `# eq. N`.

Shape letters: B batch, C channels, N patches, T tokens (N plus class token and the like),
D width, H heads, d width of a head (D / H), K classes; q query rows, k key rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from vitrail.errors import UsageError
from vitrail.kernels.paths import product_dtype
from vitrail.model.config import ResNetStem, ViTConfig
from vitrail.model.drop import Dropout, DropPath
from vitrail.model.head import head_for
from vitrail.model.initial import initialise, initialise_head
from vitrail.model.mlp import Mlp
from vitrail.model.patch import PatchEmbedding
from vitrail.model.pool import AttentionPool, pool_tokens
from vitrail.model.position import Position, RelativePosition, position_for
from vitrail.model.resnet import HybridStem

if TYPE_CHECKING:
    from jaxtyping import Float, Int

__all__ = ["Attention", "Block", "ResNetStem", "ViTConfig", "VisionTransformer"]

SITES_A_BLOCK = 5  # places in a block where something is drawn; site 0 is after the positions


class Attention(nn.Module):
    """MSA, multi-head self-attention. U_qkv is `qkv` (rows q, k, v), U_msa is `out`."""

    def __init__(self, config: ViTConfig, site: int) -> None:
        super().__init__()
        width, self.heads = config.width, config.heads
        self.scale = (width // config.heads) ** -0.5
        self.qkv = nn.Linear(width, 3 * width, bias=config.qkv_bias)
        self.q_norm = nn.LayerNorm(width // config.heads, eps=config.eps) if config.qk_norm else None
        self.k_norm = nn.LayerNorm(width // config.heads, eps=config.eps) if config.qk_norm else None
        self.relative = RelativePosition(config.tokens, width // config.heads) if config.position == "relative" else None
        self.out = nn.Linear(width, width, bias=config.dense_bias)
        self.drop = Dropout(config.dropout, site)

    def forward(self, x_BTD: Float[Tensor, "B T D"], key: Int[Tensor, "B 2"] | None = None) -> Float[Tensor, "B T D"]:
        return self.drop(self.attend(x_BTD), key)

    def attend(self, x_BTD: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        q, k, v = self.project(x_BTD)
        bias = self.relative(q * self.scale) if self.relative is not None else None
        heads = F.scaled_dot_product_attention(q, k, v, attn_mask=bias)  # eq. 6 and eq. 7: softmax(q k^T / sqrt(d)) v
        return self.out(heads.transpose(1, 2).flatten(2))  # eq. 8

    def project(self, x_BTD: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B H T d"], Float[Tensor, "B H T d"], Float[Tensor, "B H T d"]]:
        """q, k, v, each (B, H, T, d)."""
        q, k, v = self.qkv(x_BTD).unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)  # eq. 5
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q).to(v.dtype), self.k_norm(k).to(v.dtype)
        return q, k, v

    def qk(self, x_BTD: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B H T d"], Float[Tensor, "B H T d"]]:
        """q (already divided by sqrt(d)) and k, for whoever wants the weights: softmax(self.logits(q, k))."""
        q, k, _ = self.project(x_BTD)
        return q * self.scale, k

    def logits(
        self, q_BHTd: Float[Tensor, "B H T d"], k_BHTd: Float[Tensor, "B H T d"], start: int = 0, stop: int | None = None
    ) -> Float[Tensor, "B H q T"]:
        """Attention logits (B, H, q, T) of the query rows start .. stop of a `qk` pair, relative positions included."""
        rows = q_BHTd[:, :, start:stop]
        content = rows @ k_BHTd.transpose(2, 3)
        return content if self.relative is None else content + self.relative(rows, start)


class Block(nn.Module):
    """One layer of the encoder: z -> z' -> z, each half normalised first and added to its input.

    `index` of `count`: where the layer stands, for stochastic depth and the sites of its draws.
    `shared`: the model's own positions, where every layer adds them again.
    """

    def __init__(
        self,
        config: ViTConfig,
        index: int,
        count: int,
        shared: Position | None = None,
        attention: Callable[[ViTConfig, int], Attention] = Attention,
    ) -> None:
        super().__init__()
        site = 1 + SITES_A_BLOCK * index
        depth_share = 1.0 if config.drop_path_uniform else index / max(1, count - 1)
        self.norm1 = nn.LayerNorm(config.width, eps=config.eps)
        self.attention = attention(config, site)
        self.path1 = DropPath(config.drop_path * depth_share, site + 1)
        self.norm2 = nn.LayerNorm(config.width, eps=config.eps)
        self.mlp = Mlp(
            config.width, config.mlp_width, config.activation,
            gated=config.mlp == "swiglu", bias=config.dense_bias, dropout=config.dropout, site=site + 2,
        )  # fmt: skip
        self.path2 = DropPath(config.drop_path * depth_share, site + 4)
        scales = config.layer_scale is not None
        self.scale1 = nn.Parameter(torch.empty(config.width)) if scales else None
        self.scale2 = nn.Parameter(torch.empty(config.width)) if scales else None
        separate = config.position_at == "every" and index > 0  # the first layer's table is the model's own
        self.position = build_position(config) if separate else None
        self.shared_position = (shared,)  # a tuple, so that its parameters are the model's alone
        self.fused: Callable[..., Tensor] | None = None  # the same through fused kernels, where `model.fused.fuse` allowed them

    def forward(
        self, z_BTD: Float[Tensor, "B T D"], key: Int[Tensor, "B 2"] | None = None, rows: int | None = None
    ) -> Float[Tensor, "B T D"]:
        """`rows`: only so many first tokens will be read, so that no more need be returned."""
        z = z_BTD
        if self.fused is not None and (dtype := product_dtype(z)) is not None and not self.watched():
            return self.fused(self, z, key, rows, dtype)
        position = self.position if self.position is not None else self.shared_position[0]
        if position is not None:
            z = z + sequence_positions(position, z.shape[1])
        z = z + self.path1(scaled(self.attention(self.norm1(z), key), self.scale1), key)  # eq. 2
        z = z + self.path2(scaled(self.mlp(self.norm2(z), key), self.scale2), key)  # eq. 3
        return z

    def watched(self) -> bool:
        """Whether a hook waits for what one of the parts is given or gives."""
        return any(part._forward_hooks or part._forward_pre_hooks for part in (self.norm1, self.attention, self.norm2, self.mlp))


class VisionTransformer(nn.Module):
    """ViT, equations 1 to 8 of the paper.

    The paper's names beside ours:
      E        `patch.weight`, `patch.bias`     x_class   `cls`
      E_pos    `position.table`                 L, D, k   `depth`, `width`, `heads`
      LN       `norm1`, `norm2`, `norm`         U_qkv     `blocks[l].attention.qkv`
      MSA      `blocks[l].attention`            U_msa     `blocks[l].attention.out`
      MLP      `blocks[l].mlp`                  y         what `features` gives

    forward(x) -> logits (B, K); `features` stops before the head, `tokens` before pooling.
    `key`, one pair of words a sample (`kernels.draws.sample_keys`), makes dropout and
    stochastic depth a function of the sample; without it torch's generator draws.
    """

    def __init__(self, config: ViTConfig) -> None:
        super().__init__()
        self.config = config
        width = config.width
        self.recompute: bool | str = False  # in the backward pass: True, a block's activations; "parts", two thirds of them (lean.py)
        self.residual: torch.dtype | None = None  # precision of the residual sum through fused blocks; None: as it comes
        self.stem = stem_for(config)
        self.patch = PatchEmbedding(
            config.stem.out_channels if config.stem else config.channels, width, config.patch_size, config.patch_bias
        )
        self.cls = nn.Parameter(torch.empty(1, 1, width)) if config.class_token else None
        self.dist = nn.Parameter(torch.empty(1, 1, width)) if config.distilled else None
        self.registers = nn.Parameter(torch.empty(1, config.registers, width)) if config.registers else None
        self.position = build_position(config)
        self.drop = Dropout(config.dropout, site=0)
        self.norm_pre = nn.LayerNorm(width, eps=config.eps) if config.norm_pre else None
        self.blocks = nn.ModuleList(self.layer(config, index) for index in range(config.depth))
        self.norm = nn.LayerNorm(width, eps=config.eps) if config.final_norm else nn.Identity()
        self.map = AttentionPool(config) if config.pool == "map" else None
        self.fc_norm = nn.LayerNorm(config.pooled_width, eps=config.eps) if config.fc_norm else nn.Identity()
        self.pre_logits = nn.Linear(config.pooled_width, config.representation) if config.representation else None
        self.head = head_for(config)
        self.head_dist = head_for(config) if config.distilled else None

    def layer(self, config: ViTConfig, index: int) -> nn.Module:
        """Layer `index` of the encoder, unfilled."""
        shared = self.position if config.position_at == "shared" and index > 0 else None
        return Block(config, index, config.depth, shared)

    # ---- forward, from the picture to the logits ----

    def forward(self, x: Float[Tensor, "B C H W"], key: Int[Tensor, "B 2"] | None = None) -> Float[Tensor, "B *K"]:
        """Logits (B, K). Without a head, the normalised tokens; unpooled, (B, T, K); distilled, the mean of both heads."""
        if self.config.classes == 0:
            return self.tokens(x, key)
        if self.head_dist is not None:
            first, second = self.two_heads(self.tokens(x, key))
            return (first + second) / 2
        return self.head(self.features(x, key))

    def tokens(self, x: Float[Tensor, "B C H W"], key: Int[Tensor, "B 2"] | None = None) -> Float[Tensor, "B T D"]:
        """All tokens after the last block, normalised: class token, registers, patches in raster order."""
        return self.encode(self.embed(x, key), key)

    def features(self, x: Float[Tensor, "B C H W"], key: Int[Tensor, "B 2"] | None = None) -> Float[Tensor, "B *D"]:
        """What the head reads: y of eq. 4, after pre_logits. Distilled: the mean of both class tokens."""
        alone = self.config.pool == "token" and self.dist is None  # the class token: all that is read
        return self.pool(self.encode(self.embed(x, key), key, rows=1 if alone else None))

    def embed(self, x: Float[Tensor, "B C H W"], key: Int[Tensor, "B 2"] | None = None) -> Float[Tensor, "B T D"]:
        """z_0: the tokens before the first block."""
        return self.assemble(self.embed_patches(x), key=key)

    def embed_patches(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B N D"]:
        """x_p E: one vector a patch, before class token and positions (masked prediction corrupts here)."""
        self.check_input(x)
        return self.patch(x if self.stem is None else self.stem(x))

    def assemble(
        self, patches: Float[Tensor, "B N D"], keep: Int[Tensor, "B V"] | None = None, key: Int[Tensor, "B 2"] | None = None
    ) -> Float[Tensor, "B T D"]:
        """z_0 from patch vectors; `keep` leaves only the patches with these numbers, after their positions are added (MAE)."""
        patches = patches if self.position is None else patches + self.position.patches()
        if keep is not None:
            patches = patches.gather(1, keep[:, :, None].expand(-1, -1, patches.shape[2]))
        z = patches if self.config.prefix == 0 else torch.cat([self.prefix_tokens(patches), patches], dim=1)  # eq. 1
        z = self.drop(z, key)
        return z if self.norm_pre is None else self.norm_pre(z)

    def prefix_tokens(self, patches_BND: Float[Tensor, "B N D"]) -> Float[Tensor, "B P D"]:
        """[x_class, distillation, registers] with their rows of E_pos, for every sample: (B, P, D)."""
        prefix = torch.cat([token for token in (self.cls, self.dist, self.registers) if token is not None], dim=1)
        rows = self.position.prefix() if self.position is not None else None
        if rows is not None:
            prefix = prefix + F.pad(rows, (0, 0, 0, prefix.shape[1] - rows.shape[0]))
        return prefix.to(patches_BND.dtype).expand(patches_BND.shape[0], -1, -1)

    def encode(self, z: Float[Tensor, "B T D"], key: Int[Tensor, "B 2"] | None = None, rows: int | None = None) -> Float[Tensor, "B T D"]:
        """All blocks, then LN over the whole sequence (row 0 of it is y of eq. 4); `rows`: see `Block.forward`."""
        if self.residual is not None and torch.is_autocast_enabled(z.device.type):
            z = z.to(self.residual)
        for number, block in enumerate(self.blocks, start=1):
            last = number == len(self.blocks) and isinstance(block, Block)
            given = (z, key, rows) if last and rows is not None else (z, key)
            z = self.recomputed(block, *given) if self.recompute and self.training else block(*given)
        return self.norm(z)

    def recomputed(self, block: nn.Module, z: Float[Tensor, "B T D"], *given: Any) -> Float[Tensor, "B T D"]:
        """The block, of whose activations only some are kept for the backward pass."""
        if self.recompute == "parts" and isinstance(block, Block):
            from vitrail.model.lean import lean_block

            return lean_block(block, z, *given[:1])
        return checkpoint(block, z, *given, use_reentrant=False)

    def pool(self, tokens: Float[Tensor, "B T D"]) -> Float[Tensor, "B *D"]:
        """Normalised tokens -> what the head reads."""
        if self.map is not None:
            y = self.map(tokens if self.config.pool_prefix else tokens[:, self.config.prefix :])
        elif self.dist is not None:
            y = (tokens[:, 0] + tokens[:, 1]) / 2
        else:
            y = pool_tokens(tokens, self.config)  # eq. 4: y = LN(z_L)[0], the norm being done
        y = self.fc_norm(y)
        return y if self.pre_logits is None else torch.tanh(self.pre_logits(y))

    def two_heads(self, tokens: Float[Tensor, "B T D"]) -> tuple[Float[Tensor, "B K"], Float[Tensor, "B K"]]:
        """Distilled models: logits of the class head and of the distillation head, from `tokens(x)`."""
        if self.head_dist is None:
            raise UsageError("this model has one head; two_heads() is for distilled=True.")
        return self.head(self.fc_norm(tokens[:, 0])), self.head_dist(self.fc_norm(tokens[:, 1]))

    def check_input(self, x_BCHW: Float[Tensor, "B C H W"]) -> None:
        """Refuse what would be cut or mis-positioned."""
        expected = (self.config.channels, *self.config.image_size)
        if tuple(x_BCHW.shape[1:]) != expected:
            raise UsageError(
                f"input of shape {tuple(x_BCHW.shape)} for a model of (batch, {', '.join(map(str, expected))}).",
                hint="model.resize((height, width)) takes the positions to another image size",
            )

    # ---- changes of a built model ----

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns) of patches."""
        return self.config.grid

    def resize(self, image_size: int | tuple[int, int]) -> VisionTransformer:
        """Another image size, in place: every position table goes to the new grid (section 3.2)."""
        config = self.config.replace(image_size=image_size)
        for module in self.modules():
            if isinstance(module, RelativePosition):
                module.resize(config.tokens)
            elif isinstance(module, Position):
                module.resize(config.grid)
        self.config = config
        return self

    def reset_head(self, classes: int, *, keep_representation: bool = False) -> VisionTransformer:
        """The fine-tuning head, in place: pre_logits is dropped and one zero-initialised linear layer attached (section 3.2)."""
        like = next(self.parameters())
        kept = self.config.representation if keep_representation else None
        self.config = self.config.replace(classes=classes, representation=kept, head_bias_init=0.0)
        if not keep_representation:
            self.pre_logits = None
        self.head = initialise_head(head_for(self.config), self.config).to(like)
        if self.config.distilled:
            self.head_dist = initialise_head(head_for(self.config), self.config).to(like)
        return self

    def initialise(self, seed: int = 0) -> VisionTransformer:
        """Every parameter as the paper's code draws it; a parameter's draw depends on seed and name alone."""
        initialise(self, self.config, seed)
        return self


def scaled(x: Tensor, scale: Tensor | None) -> Tensor:
    """LayerScale, where there is one."""
    return x if scale is None else x * scale


def build_position(config: ViTConfig) -> Position | None:
    return position_for(config.position, config.width, config.grid, config.position_prefix, config.position_resample)


def sequence_positions(position: Position, tokens: int) -> Tensor:
    """(T, D): rows of the whole sequence, zero for prefix tokens that have none (appendix D.4, every layer)."""
    prefix, patches = position.prefix(), position.patches()
    missing = tokens - patches.shape[0] - (prefix.shape[0] if prefix is not None else 0)
    patches = F.pad(patches, (0, 0, missing, 0))
    return patches if prefix is None else torch.cat([prefix, patches])


def stem_for(config: ViTConfig) -> HybridStem | None:
    return HybridStem(config.stem, config.channels) if config.stem else None
