"""Mean attention distance, in pixels, of every head (paper D.7, Figures 7 right and 11).

For a patch q and a patch k, `distance` is the length between their centres in pixels of
the model's input. A head's number is the mean over images and queries of

    sum_k  A[q, k] * distance[q, k]        over patch tokens only.

Prefix tokens (class token, registers) are dropped from both sides. What they received is
not handed to the patches: the rows then sum to a little less than one, which is how the
paper's own code did it. `renormalise=True` gives the other convention.
"""

from __future__ import annotations

import torch
from torch import Tensor

__all__ = ["DistanceMeter", "attention_distance", "pixel_distances", "uniform_distance"]

Grid = tuple[int, int]  # (rows, columns)
Pixels = tuple[float, float]  # height and width of one patch, in input pixels


def pixel_distances(grid: Grid, patch: Pixels, queries: slice | None = None, *, device: torch.device | str = "cpu") -> Tensor:
    """(queries, patches): pixels between the centres of patches; a slice keeps it small.

    The distances from one patch are a window of one table of all steps down and across.
    """
    rows, columns = grid
    down = torch.arange(1 - rows, rows, dtype=torch.float64, device=device) * patch[0]
    across = torch.arange(1 - columns, columns, dtype=torch.float64, device=device) * patch[1]
    windows = torch.hypot(down[:, None], across[None]).unfold(0, rows, 1).unfold(1, columns, 1)
    index = torch.arange(rows * columns, device=device)[queries or slice(None)]
    return windows[rows - 1 - index // columns, columns - 1 - index % columns].flatten(1)


def uniform_distance(grid: Grid, patch: Pixels, *, prefix_tokens: int = 0) -> float:
    """The distance of a head that attends to everything equally: the reference line.

    With `prefix_tokens`, those tokens take their equal share and drop out, as in the paper's
    code: a 14 x 14 grid of 16 pixels gives 116.49 alone and 115.90 with one class token.
    """
    rows, columns = torch.arange(grid[0], dtype=torch.float64), torch.arange(grid[1], dtype=torch.float64)
    pairs = lambda steps: torch.where(steps == 0, 1, 2) * (len(steps) - steps)  # ordered pairs so many steps apart
    far = torch.hypot(rows[:, None] * patch[0], columns[None] * patch[1])
    patches = grid[0] * grid[1]
    return float((pairs(rows)[:, None] * pairs(columns)[None] * far).sum()) / (patches * (patches + prefix_tokens))


class DistanceMeter:
    """Adds up attention rows as they come, so that no N x N matrix is ever needed.

    `add` takes a chunk of softmax rows (images, heads, queries, tokens) and which tokens the
    queries are; `result` is (images, heads) in pixels once every patch has been a query.
    """

    def __init__(self, grid: Grid, patch: Pixels, *, prefix_tokens: int, renormalise: bool = False) -> None:
        self.grid, self.patch = grid, patch
        self.prefix, self.renormalise = prefix_tokens, renormalise
        self.total: Tensor | None = None

    def add(self, attention: Tensor, queries: slice) -> None:
        skip = max(self.prefix - queries.start, 0)  # rows of prefix tokens at the start of this chunk
        if queries.start + skip >= queries.stop:
            return
        rows = attention[:, :, skip:, self.prefix :]
        patches = slice(queries.start + skip - self.prefix, queries.stop - self.prefix)
        pixels = pixel_distances(self.grid, self.patch, patches, device=rows.device).to(rows.dtype)
        far = torch.einsum("bhqk,qk->bhq", rows, pixels)
        if self.renormalise:
            far = far / rows.sum(-1)
        total = far.double().sum(-1)
        self.total = total if self.total is None else self.total + total

    def result(self) -> Tensor:
        assert self.total is not None, "no attention rows were added"
        return self.total / (self.grid[0] * self.grid[1])


def attention_distance(attention: Tensor, grid: Grid, patch: Pixels, *, prefix_tokens: int = 1, renormalise: bool = False) -> Tensor:
    """(layers, images, heads, tokens, tokens) of attention -> (layers, heads) in pixels, mean over images."""
    layers = []
    for layer in torch.as_tensor(attention):
        meter = DistanceMeter(grid, patch, prefix_tokens=prefix_tokens, renormalise=renormalise)
        meter.add(layer, slice(0, layer.shape[-1]))
        layers.append(meter.result().mean(0))
    return torch.stack(layers)
