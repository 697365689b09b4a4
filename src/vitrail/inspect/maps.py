"""Where a model looks: rollout, raw maps of every head, gradient-weighted rollout, and overlays.

Every map answers from where *the head of the model* draws what it reads. `reading` says how much
it reads of each token after the last block: all of the class token, the mean of the patches
(GAP), what the probe of a MAP head attends to, and so on. A map is that reading carried back
through the attention, on the grid of patches. So there is one definition for all models, and for
the paper's it is the class row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitrail.errors import UsageError, nearest
from vitrail.evaluate.score import evaluating
from vitrail.inspect.attention import Layer, in_batches, layers_of, transformer, watching
from vitrail.inspect.overlay import overlay
from vitrail.inspect.rollout import Fusion, rollout_vector
from vitrail.model.pool import AttentionPool
from vitrail.model.vit import Block, VisionTransformer

__all__ = ["attention_rollout", "class_attention", "gradient_rollout", "logits_of", "overlay", "reading", "rollout_whole"]

KEEP_BYTES = 256 << 20  # up to here the inputs of all layers are kept; past it some are computed again
FORMS = ("matrix", "kept", "recomputed")

Of = int | tuple[int, int] | None


# ---- what is followed back ----


def reading(model: VisionTransformer, tokens_BTD: Tensor) -> Tensor:
    """How much the head reads of each token (B, T), from `model.tokens(x)`; a row sums to one.

    token: the class token. distilled: class and distillation token, half each. gap: the patches
    alike. token+gap: half of each. map: the probe's attention, mean over heads. unpooled, and
    models without a head: as gap.
    """
    config, (batch, count, _) = model.config, tokens_BTD.shape
    read = tokens_BTD.new_zeros(batch, count, dtype=torch.promote_types(tokens_BTD.dtype, torch.float32))
    first = 0 if config.pool_prefix else config.prefix
    if model.map is not None:
        read[:, first:] = probe_attention(model.map, tokens_BTD[:, first:]).mean(1)
        return read
    shares = {"token": (1.0, 0.0), "token+gap": (0.5, 0.5)}
    on_class, on_patches = shares.get(config.pool, (0.0, 1.0))
    read[:, first:] += on_patches / (count - first)
    classes = 2 if config.distilled else 1
    if on_class:
        read[:, :classes] += on_class / classes
    return read


def probe_attention(pool: AttentionPool, y_BTD: Tensor) -> Tensor:
    """The weights of a MAP head (B, H, T)."""
    q = pool.q(pool.probe).unflatten(2, (pool.heads, -1)).transpose(1, 2)
    k = pool.kv(y_BTD).unflatten(2, (2, pool.heads, -1))[:, :, 0].transpose(1, 2)
    logits = (q * q.shape[-1] ** -0.5) @ k.transpose(2, 3)
    return logits[:, :, 0].to(torch.promote_types(logits.dtype, torch.float32)).softmax(-1)


def start_of(model: VisionTransformer, tokens_BTD: Tensor, of: Of) -> Tensor:
    """(B, T): what the head reads, or one token, or the patch at (row, column)."""
    if of is None:
        return reading(model, tokens_BTD)
    rows, columns = model.config.grid
    if isinstance(of, tuple):
        if not (0 <= of[0] < rows and 0 <= of[1] < columns):
            raise UsageError(f"patch {of} of a grid of {rows} x {columns}.", hint="(row, column), counted from 0")
        of = model.config.prefix + of[0] * columns + of[1]
    if not 0 <= of < tokens_BTD.shape[1]:
        raise UsageError(f"token {of} of a sequence of {tokens_BTD.shape[1]}.")
    start = tokens_BTD.new_zeros(tokens_BTD.shape[:2], dtype=torch.promote_types(tokens_BTD.dtype, torch.float32))
    start[:, of] = 1
    return start


def on_grid(model: VisionTransformer, per_token: Tensor) -> Tensor:
    """(…, T) -> (…, rows, columns): the patches; what is left of the prefix tokens drops out."""
    return per_token[..., model.config.prefix :].unflatten(-1, model.config.grid)


# ---- rollout ----


def attention_rollout(
    model: nn.Module,
    images: Tensor,
    *,
    of: Of = None,
    fusion: Fusion | None = None,
    form: str | None = None,
    batch_size: int = 8,
) -> Tensor:
    """Attention rollout on the grid (B, rows, columns): shares of the input patches, at most one in sum.

    of: whose row: None is what the head reads (the class token in the paper), a token's number, or a patch (row, column).
    form: "matrix" (two head-averaged N x N matrices, from the first layer up), "kept" or "recomputed"
        (vectors, from the last layer down, over inputs of layers that are kept or computed again). The
        same numbers; None takes whichever needs less memory.
    """
    model = transformer(model)
    layers = layers_of(model)
    if form is not None and form not in FORMS:
        raise UsageError(f"rollout has no form {form!r}{nearest(form, FORMS)}.")
    maps = []
    with evaluating(model):
        for batch in in_batches(model, images, batch_size):
            chosen = form or cheapest_form(len(layers), batch.shape[0], model.config.tokens, model.config.width)
            if chosen == "matrix":
                product, tokens = matrix_from_first(model, layers, batch, fusion or Fusion())
                row = rollout_vector(start_of(model, tokens, of).to(product), [product])
            else:
                tokens, inputs = inputs_from_last(model, layers, batch, 1 if chosen == "kept" else segment(len(layers)))
                row = vector_from_last(start_of(model, tokens, of), inputs, fusion or Fusion())
            maps.append(on_grid(model, row).cpu())
    return torch.cat(maps)


def rollout_whole(model: nn.Module, images: Tensor, *, fusion: Fusion | None = None) -> Tensor:
    """R_L, from which token to which (B, T, T); row 0 of a model with a class token is its map."""
    model = transformer(model)
    layers = layers_of(model)
    with evaluating(model):
        batch = next(in_batches(model, images, max(1, images.shape[0])))
        return matrix_from_first(model, layers, batch, fusion or Fusion())[0]


def cheapest_form(layers: int, images: int, tokens: int, width: int) -> str:
    """The form that holds the fewest numbers for one row: two matrices, all inputs, or about 2 sqrt(layers) of them."""
    kept = layers * tokens * width
    step = segment(layers)
    vectors = kept if 4 * images * kept <= KEEP_BYTES else (-(-layers // step) + step) * tokens * width
    if 2 * tokens * tokens <= vectors:
        return "matrix"
    return "kept" if vectors == kept else "recomputed"


def segment(layers: int) -> int:
    """Every so many blocks an input is kept, where the others are computed again."""
    return max(1, round(layers**0.5))


def mixed_rows(layer: Layer, x: Tensor, fusion: Fusion) -> Iterator[tuple[slice, Tensor]]:
    """Â of one layer in chunks of rows; all at once where a row needs the others (`Fusion.by_row`)."""
    if fusion.by_row:
        for part, rows in layer.rows(x):
            yield part, fusion.finish(fusion.over_heads(rows), part.start)
    else:
        fused = torch.cat([fusion.over_heads(rows) for _, rows in layer.rows(x)], 1)
        yield slice(0, fused.shape[1]), fusion.finish(fused)


def matrix_from_first(model: VisionTransformer, layers: list[Layer], batch: Tensor, fusion: Fusion) -> tuple[Tensor, Tensor]:
    """(R_L, tokens after the last block): R <- Â R as the model runs; two matrices at a time."""
    held: list[Tensor] = []

    def see(_number: int, layer: Layer, x: Tensor) -> None:
        if not held:
            precision = torch.promote_types(x.dtype, torch.float32)
            held.append(torch.eye(x.shape[1], dtype=precision, device=x.device).expand(x.shape[0], -1, -1))
        before = layer.lines(held[0])
        after = torch.empty_like(before, memory_format=torch.contiguous_format)
        for part, mixed in mixed_rows(layer, x, fusion):
            after[:, part] = mixed @ before
        held[0] = layer.whole(after, x.shape[0])

    with watching(layers, see):
        tokens = model.tokens(batch)
    return held[0], tokens


def vector_from_last(row: Tensor, inputs: Iterator[tuple[Layer, Tensor]], fusion: Fusion) -> Tensor:
    """v' R_L = ((v' Â_L) Â_{L-1}) …: one vector an image, over the inputs of the layers in reverse."""
    for layer, x in inputs:
        row = pulled(layer, row, mixed_rows(layer, x, fusion))
    return row


def pulled(layer: Layer, row_BT: Tensor, chunks: Iterator[tuple[slice, Tensor]]) -> Tensor:
    """row' M, for a matrix M of one layer that comes in chunks of its rows."""
    lines = layer.lines(row_BT[..., None])[..., 0]
    out = torch.zeros_like(lines)
    for part, rows in chunks:
        out += torch.einsum("bq,bqk->bk", lines[:, part], rows.to(lines))
    return layer.whole(out[..., None], row_BT.shape[0])[..., 0]


def inputs_from_last(
    model: VisionTransformer, layers: list[Layer], batch: Tensor, step: int
) -> tuple[Tensor, Iterator[tuple[Layer, Tensor]]]:
    """Tokens after the last block, and what each attention was given, the last layer first.

    step 1 keeps all of it; with a larger step the input of every step-th block is kept, and the
    blocks in between run a second time, one segment at a time.
    """
    kept: list[Tensor] = []
    if step == 1:
        with watching(layers, keep(kept)):
            tokens = model.tokens(batch)
        return tokens, popping(layers, kept)
    with block_inputs(layers[::step], kept):
        tokens = model.tokens(batch)
    return tokens, again(layers, kept, step)


def keep(into: list[Tensor]) -> Callable[[int, Layer, Tensor], None]:
    """For `watching`: collect what the attentions are given."""
    return lambda _number, _layer, x: into.append(x)


def popping(layers: list[Layer], kept: list[Tensor]) -> Iterator[tuple[Layer, Tensor]]:
    """From the last; each is let go once it is used."""
    for layer in reversed(layers):
        yield layer, kept.pop()


def again(layers: list[Layer], kept: list[Tensor], step: int) -> Iterator[tuple[Layer, Tensor]]:
    """Run each segment of blocks from its kept input, the last segment first."""
    for start in reversed(range(0, len(layers), step)):
        part, z = layers[start : start + step], kept.pop()
        given: list[Tensor] = []
        with watching(part, keep(given)):
            for layer in part:
                z = layer.block(z)
        yield from popping(part, given)


@contextmanager
def block_inputs(layers: list[Layer], into: list[Tensor]) -> Iterator[None]:
    """While open, the inputs of these layers' blocks are collected."""
    handles = [layer.block.register_forward_pre_hook(lambda _module, given: into.append(given[0])) for layer in layers]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


# ---- one layer, one head ----


def class_attention(model: nn.Module, images: Tensor, *, of: Of = None, batch_size: int = 8) -> Tensor:
    """What each head of each layer attends to (B, layers, H, rows, columns): the reading times that head's weights.

    For a class-token model the class row without the prefix tokens, which keep their share: a map sums to less than one.
    """
    model = transformer(model)
    layers = layers_of(model)
    out = []
    with evaluating(model):
        for batch in in_batches(model, images, batch_size):
            late = model.config.pool == "map" and of is None  # what the probe reads is known at the end only
            tokens = model.tokens(batch) if late else batch.new_empty(batch.shape[0], model.config.tokens, 0)
            start = start_of(model, tokens, of)
            out.append(on_grid(model, rows_by_head(model, layers, batch, start)).cpu())
    return torch.cat(out)


def rows_by_head(model: VisionTransformer, layers: list[Layer], batch: Tensor, start_BT: Tensor) -> Tensor:
    """start' A of every layer and head (B, layers, H, T), in one pass."""
    rows: list[Tensor] = []
    with watching(layers, lambda _number, layer, x: rows.append(row_by_head(layer, x, start_BT))):
        model.tokens(batch)
    return torch.stack(rows, 1)


def row_by_head(layer: Layer, x: Tensor, start_BT: Tensor) -> Tensor:
    """start' A of every head: (B, H, T). Only rows up to the last one that counts are computed."""
    lines = layer.lines(start_BT[..., None])[..., 0]
    last = int(lines.any(0).nonzero().max()) + 1
    total: Tensor | float = 0.0
    for part, rows in layer.rows(x, stop=last):
        total = total + torch.einsum("bq,bhqk->bkh", lines[:, part].to(rows), rows)
    assert isinstance(total, Tensor)
    return layer.whole(total, x.shape[0]).transpose(1, 2)


# ---- weighted by the gradient of one class ----


def logits_of(model: VisionTransformer, tokens_BTD: Tensor) -> Tensor:
    """Logits (B, K) from `model.tokens(x)`; unpooled: the mean over the patches."""
    if model.config.classes == 0:
        raise UsageError("this model has no head, so there is no class to explain.", hint="attention_rollout needs none")
    if model.head_dist is not None:
        first, second = model.two_heads(tokens_BTD)
        return (first + second) / 2
    logits = model.head(model.pool(tokens_BTD))
    return logits[:, model.config.prefix :].mean(1) if logits.ndim == 3 else logits


def gradient_rollout(model: nn.Module, images: Tensor, classes: Tensor | None = None, *, batch_size: int = 8) -> Tensor:
    """Rollout where each weight counts as much as it raises one class's logit (B, rows, columns), not below zero.

    Chefer, Gur and Wolf 2021: R <- R + mean_heads((dy/dA * A)^+) R. Only one block's graph exists at a time: inputs of
    the blocks are kept, and from the last block down each runs again for its gradient. classes: (B); None: the best.
    """
    model = transformer(model)
    layers = layers_of(model)
    wanted = None if classes is None else torch.as_tensor(classes).reshape(-1)
    maps, done = [], 0
    with evaluating(model):
        for batch in in_batches(model, images, batch_size):
            part = None if wanted is None else wanted[done : done + batch.shape[0]].to(batch.device)
            maps.append(on_grid(model, gradient_row(model, layers, batch, part)).cpu())
            done += batch.shape[0]
    return torch.cat(maps)


def gradient_row(model: VisionTransformer, layers: list[Layer], batch: Tensor, classes: Tensor | None) -> Tensor:
    """What v' (R_L - I) adds to the tokens of the input (B, T)."""
    kept: list[Tensor] = []
    ends: list[Tensor] = []
    with block_inputs(layers, kept), output_of(layers[-1].block, ends):
        tokens = model.tokens(batch)
    start = row = reading(model, tokens)
    with torch.enable_grad():
        end = ends[0].detach().requires_grad_()
        logits = logits_of(model, model.norm(end))
        chosen = logits.argmax(1) if classes is None else classes
        (slope,) = torch.autograd.grad(logits.gather(1, chosen[:, None]).sum(), end)
    for layer in reversed(layers):
        slope, x, heads_slope = back_through(layer, kept.pop(), slope)
        row = row + pulled(layer, row, helpful_rows(layer, x, heads_slope))
    return row - start


def back_through(layer: Layer, z: Tensor, slope: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One block backwards: (gradient of its input, what its attention was given, gradient of softmax(…) v as (…, H, T, d))."""
    given: list[Tensor] = []
    mixed: list[Tensor] = []
    handle = layer.attention.out.register_forward_pre_hook(lambda _module, inputs: mixed.append(inputs[0]))
    try:
        with torch.enable_grad(), watching([layer], keep(given)):
            z = z.detach().requires_grad_()
            out = layer.block(z)
            before, heads_slope = torch.autograd.grad(out, (z, mixed[0]), slope)
    finally:
        handle.remove()
    return before, given[0].detach(), heads_slope.unflatten(2, (layer.attention.heads, -1)).transpose(1, 2)


def helpful_rows(layer: Layer, x: Tensor, heads_slope: Tensor) -> Iterator[tuple[slice, Tensor]]:
    """mean_heads((dy/dA * A)^+) in chunks of rows; dy/dA = (dy/d(A v)) v'."""
    v = layer.attention.project(layer.lines(x))[2]
    for part, rows in layer.rows(x):
        slopes = (heads_slope[:, :, part] @ v.transpose(2, 3)).to(rows)
        yield part, (slopes * rows).clamp_min(0).mean(1)


@contextmanager
def output_of(block: Block, into: list[Tensor]) -> Iterator[None]:
    """While open, what a block gives is collected."""
    handle = block.register_forward_hook(lambda _module, _given, out: into.append(out))
    try:
        yield
    finally:
        handle.remove()
