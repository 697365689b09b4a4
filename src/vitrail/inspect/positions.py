"""What a model has learned about places: how alike the position embeddings of two patches are.

One tile a patch: the cosine similarity of its embedding with that of every other patch
(Figure 7 centre, Figure 10). Rows of prefix tokens are left out. For the kinds of appendix D.4:

    learned, learned2d, sincos2d   the vectors added to the patches, of any grid
    relative                       a vector is of an offset q - k, not of a place: the tile of q shows
                                   how alike the embedding of offset q - k is to that of offset 0
    every layer                    one table a layer; `layer` chooses
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.model.vit import Block, VisionTransformer

__all__ = ["Positions", "position_similarity", "position_tables"]


@dataclass(frozen=True)
class Positions:
    """
    queries      the patches whose tiles these are, as (row, column)
    similarity   (queries, rows, columns), cosines from -1 to 1
    scores       mean similarity of a patch with: its neighbours, the rest of its row, of its column, all others
    """

    kind: str
    layer: int
    tables: int  # how many layers have a table of their own
    grid: tuple[int, int]
    queries: tuple[tuple[int, int], ...]
    similarity: Tensor
    scores: dict[str, float]


def position_tables(model: VisionTransformer) -> list[nn.Module]:
    """The position modules of a model, one, or one a layer; a model without any is refused."""
    blocks = [module for module in model.blocks.modules() if isinstance(module, Block)]
    if model.config.position == "relative":
        tables: list[nn.Module | None] = [block.attention.relative for block in blocks]
    else:
        tables = [model.position, *(block.position for block in blocks)]
    found = [table for table in tables if table is not None]
    if not found:
        raise UsageError("this model has no position embeddings (position='none'): it sees a bag of patches.")
    return found


@torch.no_grad()
def position_similarity(model: nn.Module, *, layer: int = 0, tiles: int = 16) -> Positions:
    """Cosine similarities on the grid, for at most tiles x tiles query patches spread evenly over it."""
    if not isinstance(model, VisionTransformer):
        raise UsageError(f"a {type(model).__name__} has no position embeddings.")
    tables = position_tables(model)
    if not 0 <= layer < len(tables):
        raise UsageError(f"layer {layer} of a model with {len(tables)} position tables.", hint=f"0 to {len(tables) - 1}")
    rows, columns = grid = model.config.grid
    chosen = torch.cartesian_prod(spread(rows, tiles), spread(columns, tiles))
    similarity = cosines(tables[layer], model, chosen[:, 0] * columns + chosen[:, 1]).unflatten(1, grid)
    queries = tuple((int(row), int(column)) for row, column in chosen)
    return Positions(model.config.position, layer, len(tables), grid, queries, similarity, scores(similarity, chosen))


def spread(length: int, most: int) -> Tensor:
    """At most `most` places of 0 … length - 1, evenly, the ends among them."""
    return torch.linspace(0, length - 1, min(length, most)).round().long()


def cosines(table: Any, model: VisionTransformer, queries: Tensor) -> Tensor:
    """(queries, N)."""
    if model.config.position == "relative":
        tokens = model.config.tokens
        offsets = table.table.detach().double().cpu()  # row o + T - 1 is offset o
        alike = F.cosine_similarity(offsets, offsets[tokens - 1 : tokens], dim=1)
        keys = torch.arange(tokens - model.config.prefix)
        return alike[queries[:, None] - keys[None] + tokens - 1]
    vectors = F.normalize(table.patches().detach().double().cpu(), dim=1)
    return vectors[queries] @ vectors.T


def scores(similarity: Tensor, queries: Tensor) -> dict[str, float]:
    """Does a patch know its row and its column? Means over all pairs (query, patch), a patch with itself left out."""
    rows, columns = similarity.shape[1:]
    down = (torch.arange(rows)[None, :, None] - queries[:, 0, None, None]).abs()
    across = (torch.arange(columns)[None, None] - queries[:, 1, None, None]).abs()
    near = (down + across) == 1
    kinds = {
        "neighbours": near,
        "same_row": (down == 0) & (across > 1),
        "same_column": (across == 0) & (down > 1),
        "elsewhere": (down > 0) & (across > 0),
    }
    mean = lambda where: float(similarity[where].mean()) if where.any() else float("nan")
    return {name: mean(where.expand_as(similarity)) for name, where in kinds.items()}
