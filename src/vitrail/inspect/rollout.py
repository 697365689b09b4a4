"""Attention rollout (Abnar and Zuidema 2020; paper D.8, Figures 6 and 14).

Every layer's attention is averaged over heads, the residual connection is the identity added
to it, rows are normalised, and the layers are multiplied:

    Â_l = normalise(mean_heads(A_l) + I)          R_l = Â_l R_{l-1},  R_0 = I

Row t of R_L says from which input tokens token t was mixed. Two forms give the same row:

  * two matrices: R and one Â, from the first layer up; the whole of R is known at the end;
  * vectors: v' R_L = (((v' Â_L) Â_{L-1}) ...) Â_1, from the last layer down; v starts as what
    the head of the model reads (the class token, the mean of the patches, ...), and only one
    row an image is ever held.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from vitrail.errors import UsageError, nearest

__all__ = ["Fusion", "fuse", "rollout_matrix", "rollout_vector"]

_OVER_HEADS: dict[str, Callable[[Tensor], Tensor]] = {
    "mean": lambda attention: attention.mean(1),
    "max": lambda attention: attention.amax(1),
    "min": lambda attention: attention.amin(1),
}


@dataclass(frozen=True)
class Fusion:
    """How one layer's heads become one matrix. The defaults are the paper's.

    `discard` zeroes that share of the smallest entries of each fused matrix (never entry (0, 0))
    before the identity is added, as jacobgil/vit-explain does. `normalise="columns"` repeats
    that package's division, which has no keepdim and so divides column j by the sum of row j.
    """

    heads: str = "mean"
    residual: bool = True
    discard: float = 0.0
    normalise: str = "rows"

    def __post_init__(self) -> None:
        if self.heads not in _OVER_HEADS:
            raise UsageError(f"rollout cannot fuse heads by {self.heads!r}{nearest(self.heads, _OVER_HEADS)}")
        if self.normalise not in ("rows", "columns"):
            raise UsageError(f"rollout normalises 'rows' or 'columns', not {self.normalise!r}")
        if not 0.0 <= self.discard < 1.0:
            raise UsageError(f"discard is a share from 0 up to 1, not {self.discard}")

    def over_heads(self, attention: Tensor) -> Tensor:
        """(images, heads, queries, tokens) -> (images, queries, tokens)."""
        return _OVER_HEADS[self.heads](attention)

    @property
    def by_row(self) -> bool:
        """A row of Â needs no other row, so that a layer can be done in chunks."""
        return not self.discard and self.normalise == "rows"

    def finish(self, fused: Tensor, start: int = 0) -> Tensor:
        """Fused rows start, start + 1, … (images, queries, tokens) -> those rows of Â. Not `by_row`: all rows at once."""
        if self.discard:
            fused = _without_smallest(fused, self.discard)
        if not self.residual:
            return fused if self.heads == "mean" and not self.discard else _normalised(fused, self.normalise)
        mixed = fused.clone()
        mixed.diagonal(start, 1, 2).add_(1)
        return _normalised(mixed, self.normalise)


def _normalised(matrix: Tensor, which: str) -> Tensor:
    total = matrix.sum(-1)
    return matrix / (total[..., None, :] if which == "columns" else total[..., None])


def _without_smallest(fused: Tensor, share: float) -> Tensor:
    flat = fused.flatten(1).clone()
    smallest = flat.topk(int(flat.shape[1] * share), dim=1, largest=False).indices
    kept = flat[:, 0].clone()
    flat.scatter_(1, smallest, 0.0)
    flat[:, 0] = kept
    return flat.view_as(fused)


def fuse(attention: Tensor, fusion: Fusion | None = None) -> Tensor:
    """One layer's attention (images, heads, tokens, tokens) -> Â (images, tokens, tokens)."""
    fusion = fusion or Fusion()
    return fusion.finish(fusion.over_heads(attention))


def rollout_matrix(layers: Iterable[Tensor]) -> Tensor:
    """Â of the first layer first -> R_L (images, tokens, tokens). Holds two matrices at a time."""
    product: Tensor | None = None
    for mixed in layers:
        product = mixed if product is None else torch.bmm(mixed, product)
    if product is None:
        raise UsageError("rollout needs at least one layer")
    return product


def rollout_vector(start: Tensor, layers_from_last: Iterable[Tensor]) -> Tensor:
    """start (images, tokens) and Â of the LAST layer first -> start' R_L (images, tokens)."""
    row = start
    for mixed in layers_from_last:
        row = torch.bmm(row[:, None], mixed)[:, 0]
    return row
