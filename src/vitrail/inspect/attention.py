"""Attention weights of a running model, a chunk of rows at a time; its fused attention stays on.

A fused kernel never writes the N x N weights down. Here the model runs as it always does, a
hook notes what each attention is given, and softmax(q k^T / sqrt(d)) is computed again from that,
for as many query rows at once as `CHUNK_BYTES` allow. What is wanted of the weights (a mean, a
product, a picture) is taken from each chunk before the next one. Nothing ever has the size
layers x heads x N x N.

Shape letters: B images, T tokens, H heads, D width, q query rows; a line is what one softmax runs
over: the whole sequence, or a row or a column of the grid (axial models).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.evaluate.score import evaluating
from vitrail.inspect.distance import DistanceMeter, uniform_distance
from vitrail.inspect.entropy import EntropyMeter
from vitrail.model.axial import AxialAttention
from vitrail.model.vit import Attention, Block, VisionTransformer

__all__ = ["CHUNK_BYTES", "AttentionStatistics", "Layer", "attention_statistics", "attention_weights", "layers_of", "watching"]

CHUNK_BYTES = 64 << 20  # of softmax rows in work at once, with their copies
COPIES = 16  # bytes a weight costs while a chunk is in work: logits, softmax, and two more for what is taken from it

Grid = tuple[int, int]


@dataclass(frozen=True)
class Layer:
    """One attention of a model, and the block it belongs to."""

    name: str  # "1", "2", …; in an axial model "1 rows", "1 columns", …
    block: Block

    @property
    def attention(self) -> Attention:
        return self.block.attention

    @property
    def axis(self) -> str | None:
        """None: every token attends to every token. "rows", "columns": along the lines of the grid."""
        return self.attention.axis if isinstance(self.attention, AxialAttention) else None

    def lines(self, x_BTD: Tensor) -> Tensor:
        """(B, T, *) -> (B * lines, tokens of a line, *)."""
        return self.attention.apart(x_BTD) if isinstance(self.attention, AxialAttention) else x_BTD

    def whole(self, lines: Tensor, batch: int) -> Tensor:
        """The inverse of `lines`."""
        return self.attention.together(lines, batch) if isinstance(self.attention, AxialAttention) else lines

    def rows(self, x_BTD: Tensor, *, at_once: int | None = None, stop: int | None = None) -> Iterator[tuple[slice, Tensor]]:
        """The softmax in chunks of query rows: (which rows, (B * lines, H, q, tokens of a line)), float32 at least."""
        q, k = self.attention.qk(self.lines(x_BTD))
        yield from softmax_rows(self.attention, q, k, at_once, stop)


def softmax_rows(attention: Attention, q: Tensor, k: Tensor, at_once: int | None, stop: int | None) -> Iterator[tuple[slice, Tensor]]:
    """Chunks of softmax(q k^T), from a `qk` pair."""
    count, heads, tokens, _ = q.shape
    step = at_once or max(1, CHUNK_BYTES // (COPIES * count * heads * tokens))
    for start in range(0, tokens if stop is None else stop, step):
        part = slice(start, min(start + step, tokens if stop is None else stop))
        logits = attention.logits(q, k, part.start, part.stop)
        yield part, (logits if logits.dtype == torch.float64 else logits.float()).softmax(-1)


def transformer(model: nn.Module) -> VisionTransformer:
    """The model, refused in one sentence if it has no attention over patches."""
    if isinstance(model, VisionTransformer):
        return model
    raise UsageError(
        f"a {type(model).__name__} has no self-attention over patches, so there are no maps and no distances to show.",
        hint="its first convolution and its features can be inspected: filters(model), token_colours(model, images)",
    )


def layers_of(model: VisionTransformer) -> list[Layer]:
    """Every attention of the encoder in the order they run."""
    layers = []
    for number, layer in enumerate(model.blocks, 1):
        for block in (module for module in layer.modules() if isinstance(module, Block)):
            axis = f" {block.attention.axis}" if isinstance(block.attention, AxialAttention) else ""
            layers.append(Layer(f"{number}{axis}", block))
    return layers


@contextmanager
def watching(layers: Iterable[Layer], see: Callable[[int, Layer, Tensor], None]) -> Iterator[None]:
    """While open, see(number, layer, x) is called with what each attention is given: normalised, positions added."""

    def hook(number: int, layer: Layer) -> Callable[[nn.Module, tuple], None]:
        return lambda _module, given: see(number, layer, given[0])

    handles = [layer.attention.register_forward_pre_hook(hook(number, layer)) for number, layer in enumerate(layers)]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def in_batches(model: nn.Module, images: Tensor | Iterable[Tensor], size: int) -> Iterator[Tensor]:
    """(B, C, H, W), or several of them, in pieces of at most `size` on the model's device and in its type."""
    if isinstance(images, Tensor):
        images = [images if images.ndim == 4 else images[None]]
    like = next(model.parameters())
    for batch in images:
        for piece in batch.split(size):
            yield piece.to(like)


@dataclass(frozen=True)
class AttentionStatistics:
    """Means over images and patch queries, one number a head: tensors (layers, heads), float64.

    distance   mean attention distance in pixels of the model's input (Figures 7 right and 11)
    entropy    of the rows, in bits; 2 ** entropy reads as "about so many tokens"
    prefix     the part of their attention that patches give to the class token and the registers
    uniform    (layers): the distance if every token had the same weight, the class token and the registers included
    """

    layers: tuple[str, ...]
    distance: Tensor
    entropy: Tensor
    prefix: Tensor
    uniform: Tensor
    images: int

    def rows(self) -> list[dict[str, float | int | str]]:
        """One row a head, for a table."""
        return [
            {
                "layer": name,
                "head": head + 1,
                "distance_px": float(self.distance[layer, head]),
                "uniform_px": float(self.uniform[layer]),
                "entropy_bits": float(self.entropy[layer, head]),
                "prefix_share": float(self.prefix[layer, head]),
            }
            for layer, name in enumerate(self.layers)
            for head in range(self.distance.shape[1])
        ]


class PrefixMeter:
    """The part of the attention of patch queries that goes to prefix tokens, added up chunk by chunk."""

    def __init__(self, prefix: int) -> None:
        self.prefix, self.queries = prefix, 0
        self.total: Tensor | float = 0.0

    def add(self, attention: Tensor, queries: slice) -> None:
        rows = attention[:, :, max(self.prefix - queries.start, 0) :, : self.prefix]
        self.total = self.total + rows.double().sum((2, 3))
        self.queries += rows.shape[2]

    def result(self) -> Tensor:
        assert isinstance(self.total, Tensor), "no attention rows were added"
        return self.total / self.queries


def line_grid(layer: Layer, grid: Grid) -> Grid:
    """The grid that one line of a layer covers."""
    return {"rows": (1, grid[1]), "columns": (grid[0], 1)}.get(layer.axis or "", grid)


@torch.no_grad()
def attention_statistics(
    model: nn.Module,
    images: Tensor | Iterable[Tensor],
    *,
    renormalise: bool = False,
    batch_size: int = 8,
    rows_at_once: int | None = None,
) -> AttentionStatistics:
    """Attention distance, entropy and the share of the prefix tokens, for every head of every layer.

    images: normalised input (B, C, H, W), or an iterable of such batches.
    renormalise: see `vitrail.inspect.distance`; False is how the paper's authors did it.
    """
    model = transformer(model)
    layers = layers_of(model)
    grid, prefix = model.config.grid, model.config.prefix
    patch = (model.config.image_size[0] / grid[0], model.config.image_size[1] / grid[1])
    sums: list[Tensor | float] = [0.0] * len(layers)

    def see(number: int, layer: Layer, x: Tensor) -> None:
        distance = DistanceMeter(line_grid(layer, grid), patch, prefix_tokens=prefix, renormalise=renormalise)
        meters = (distance, EntropyMeter(), PrefixMeter(prefix))
        for part, attention in layer.rows(x, at_once=rows_at_once):
            for meter in meters:
                meter.add(attention, part)
        figures = torch.stack([meter.result() for meter in meters])  # (3, B * lines, H)
        lines = figures.shape[1] // x.shape[0]
        sums[number] = sums[number] + figures.sum(1).cpu() / lines

    count = 0
    with evaluating(model), watching(layers, see):
        for batch in in_batches(model, images, batch_size):
            model.tokens(batch)
            count += batch.shape[0]
    if not count:
        raise UsageError("attention statistics need at least one image.")
    means = torch.stack([torch.as_tensor(total) for total in sums], 1) / count  # (3, layers, H)
    uniform = [uniform_distance(line_grid(layer, grid), patch, prefix_tokens=prefix) for layer in layers]
    names = tuple(layer.name for layer in layers)
    return AttentionStatistics(names, means[0], means[1], means[2], torch.tensor(uniform, dtype=torch.float64), count)


@torch.no_grad()
def attention_weights(model: nn.Module, images: Tensor, layer: int) -> Tensor:
    """All weights of one layer, counted from 0 (negative: from the last): (B, H, T, T); axial: (B, lines, H, line, line).

    The whole matrix of one layer is held; for statistics and maps of large inputs use the functions that do not.
    """
    model = transformer(model)
    layers = layers_of(model)
    if not -len(layers) <= layer < len(layers):
        raise UsageError(f"layer {layer} of a model with {len(layers)} layers of attention.", hint=f"0 to {len(layers) - 1}")
    found: list[Tensor] = []
    chosen = layers[layer]
    see = lambda _number, site, x: found.append(torch.cat([rows for _, rows in site.rows(x)], 2))
    with evaluating(model), watching([chosen], see):
        for batch in in_batches(model, images, images.shape[0]):
            model.tokens(batch)
    return found[0] if chosen.axis is None else found[0].unflatten(0, (images.shape[0], -1))
