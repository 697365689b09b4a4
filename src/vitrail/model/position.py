"""Position embeddings (appendix D.4): they know their grid, and go to another one.

Every kind that is added to tokens answers two questions: `patches()`, the (N, D) for the
patch tokens in raster order, and `prefix()`, the rows of the tokens before them (None: they
have none). The relative kind is added to the logits of an attention instead.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import UsageError

if TYPE_CHECKING:
    from jaxtyping import Float

__all__ = [
    "LearnedPosition",
    "LearnedPosition2d",
    "Position",
    "RelativePosition",
    "SincosPosition",
    "position_for",
    "resample_grid",
    "sincos2d",
]

Grid = tuple[int, int]


class Position(nn.Module):
    """What is added to the tokens of a grid of (rows, columns)."""

    grid: Grid

    def prefix(self) -> Float[Tensor, "P D"] | None:
        """(P, D): rows of the class token and the like, or None."""
        return None

    def patches(self) -> Float[Tensor, "N D"]:
        """(N, D), in raster order."""
        raise NotImplementedError

    def resize(self, grid: Grid) -> None:
        """To another grid, in place."""
        raise NotImplementedError


class LearnedPosition(Position):
    """A learned vector for every token (the paper's): table rows are prefix tokens, then patches."""

    def __init__(self, width: int, grid: Grid, prefix: int, resample: str) -> None:
        super().__init__()
        self.grid, self.prefix_rows, self.resample = grid, prefix, resample
        self.table = nn.Parameter(torch.empty(prefix + grid[0] * grid[1], width))

    def prefix(self) -> Float[Tensor, "P D"] | None:
        return self.table[: self.prefix_rows] if self.prefix_rows else None

    def patches(self) -> Float[Tensor, "N D"]:
        return self.table[self.prefix_rows :]

    @torch.no_grad()
    def resize(self, grid: Grid) -> None:
        patches = resample_grid(self.patches(), self.grid, grid, self.resample)
        self.table = _like(self.table, torch.cat([self.table[: self.prefix_rows], patches]))
        self.grid = grid


class LearnedPosition2d(Position):
    """A learned half-width vector for every column and every row, concatenated [column; row]."""

    def __init__(self, width: int, grid: Grid, prefix: int, resample: str) -> None:
        super().__init__()
        self.grid, self.prefix_rows, self.resample = grid, prefix, resample
        self.rows = nn.Parameter(torch.empty(grid[0], width // 2))
        self.columns = nn.Parameter(torch.empty(grid[1], width // 2))
        self.first = nn.Parameter(torch.empty(prefix, width)) if prefix else None

    def prefix(self) -> Float[Tensor, "P D"] | None:
        return self.first

    def patches(self) -> Float[Tensor, "N D"]:
        shape = (*self.grid, self.rows.shape[1])
        return torch.cat([self.columns[None].expand(shape), self.rows[:, None].expand(shape)], dim=2).flatten(0, 1)

    @torch.no_grad()
    def resize(self, grid: Grid) -> None:
        self.rows = _like(self.rows, resample_grid(self.rows, (1, self.grid[0]), (1, grid[0]), self.resample))
        self.columns = _like(self.columns, resample_grid(self.columns, (1, self.grid[1]), (1, grid[1]), self.resample))
        self.grid = grid


class SincosPosition(Position):
    """Fixed sines and cosines of column and row; nothing learned, nothing stored."""

    table: Tensor

    def __init__(self, width: int, grid: Grid) -> None:
        super().__init__()
        self.width = width
        self.resize(grid)

    def patches(self) -> Float[Tensor, "N D"]:
        return self.table

    def resize(self, grid: Grid) -> None:
        like = self.__dict__.get("_buffers", {}).get("table")
        table = sincos2d(grid, self.width)
        self.grid = grid
        self.register_buffer("table", table if like is None else table.to(like), persistent=False)


class RelativePosition(nn.Module):
    """1-D relative positions: for every offset p_q - p_k of the sequence an embedding of a head's width.

    Adds q . r_{q-k} to the logits of a layer; one table a layer, shared by its heads.
    """

    def __init__(self, tokens: int, head_width: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.table = nn.Parameter(torch.empty(2 * tokens - 1, head_width))

    def forward(self, q_BHqd: Float[Tensor, "B H q d"], start: int = 0) -> Float[Tensor, "B H q T"]:
        """Logits (B, H, q, T) of the query rows start .. start + q - 1 against every key."""
        count, tokens = q_BHqd.shape[2], self.tokens
        first = tokens - start - count  # row 2T-2-o of the flipped table holds offset o - (T-1)
        needed = self.table.flip(0)[first : first + tokens + count - 1]
        logits = q_BHqd @ needed.T  # (B, H, q, T+q-1): query i wants the T columns from q-1-i
        skewed = logits.flatten(2)[:, :, count - 1 : count - 1 + count * (tokens + count - 2)]
        return skewed.unflatten(2, (count, tokens + count - 2))[..., :tokens] if count > 1 else logits

    @torch.no_grad()
    def resize(self, tokens: int) -> None:
        """Offsets of the sequence, stretched linearly with 0 kept in the middle."""
        table = resample_grid(self.table, (2 * self.tokens - 1, 1), (2 * tokens - 1, 1), "bilinear")
        self.table = _like(self.table, table)
        self.tokens = tokens


def position_for(kind: str, width: int, grid: Grid, prefix: int, resample: str) -> Position | None:
    """The module of one kind; None where nothing is added to the tokens."""
    if kind == "learned":
        return LearnedPosition(width, grid, prefix, resample)
    if kind == "learned2d":
        return LearnedPosition2d(width, grid, prefix, resample)
    if kind == "sincos2d":
        return SincosPosition(width, grid)
    return None


def resample_grid(table_ND: Float[Tensor, "N D"], old: Grid, new: Grid, mode: str) -> Float[Tensor, "N2 D"]:
    """(rows * columns, D) of one grid -> of another, computed in float32 (float64 stays)."""
    if table_ND.shape[0] != old[0] * old[1]:
        raise UsageError(f"{table_ND.shape[0]} positions are no grid of {old[0]} x {old[1]}.")
    if tuple(old) == tuple(new):
        return table_ND
    work = table_ND if table_ND.dtype == torch.float64 else table_ND.float()
    image = work.reshape(1, *old, -1).permute(0, 3, 1, 2)  # the other layout's antialiased kernel is wrong for one column (torch 2.13)
    kind, _, variant = mode.partition("_")
    if variant == "offset":
        scale = tuple((side + 0.1) / before for side, before in zip(new, old))
        resized = F.interpolate(image, scale_factor=scale, mode="bicubic")
        if tuple(resized.shape[2:]) != tuple(new):
            raise UsageError(f"positions of {old} do not reach {new} by the offset rule of DINOv2.")
    else:
        aligned = (kind == "bilinear" and variant == "") or variant == "aligned"
        resized = F.interpolate(image, size=tuple(new), mode=kind, align_corners=aligned, antialias=variant == "antialias")
    return resized[0].flatten(1).T.to(table_ND.dtype).contiguous()


def sincos2d(grid: Grid, width: int) -> Float[Tensor, "N D"]:
    """[sin x, cos x, sin y, cos y] with x the column, y the row, and width / 4 frequencies from 1 to 1/10000."""
    rows, columns = grid
    quarter = width // 4
    omega = 1.0 / 10_000 ** (torch.arange(quarter, dtype=torch.float64, device="cpu") / (quarter - 1))
    y = torch.arange(rows, dtype=torch.float64, device="cpu").repeat_interleave(columns)[:, None] * omega
    x = torch.arange(columns, dtype=torch.float64, device="cpu").repeat(rows)[:, None] * omega
    return torch.cat([x.sin(), x.cos(), y.sin(), y.cos()], dim=1).float()


def _like(old: nn.Parameter, values: Tensor) -> nn.Parameter:
    return nn.Parameter(values.to(old), requires_grad=old.requires_grad)
