"""Features to look at: patch tokens as colours, nearest neighbours, a 2-D map of a data set."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import UsageError, nearest
from vitrail.evaluate.score import evaluating
from vitrail.inspect.attention import in_batches
from vitrail.kernels import draws

__all__ = ["embedding_map", "neighbours", "token_colours", "tsne"]

METHODS = ("pca", "tsne")


def token_colours(model: Any, images: Tensor, *, batch_size: int = 8) -> Tensor:
    """The first three principal components of all patch tokens of these images as RGB in 0 … 1: (B, rows, columns, 3).

    Components are shared by the images, so equal colours mean alike tokens. Each is stretched
    between its 1st and 99th percentile; a sign makes the largest entry positive.
    """
    prefix = getattr(model.config, "prefix", 0)
    with evaluating(model):
        tokens = torch.cat([model.tokens(batch)[:, prefix:].cpu() for batch in in_batches(model, images, batch_size)])
    flat = tokens.flatten(0, 1).double()
    scores = projected(flat, 3)
    low, high = scores.quantile(0.01, 0), scores.quantile(0.99, 0)
    unit = ((scores - low) / (high - low).clamp_min(1e-12)).clamp(0, 1)
    return F.pad(unit, (0, 3 - unit.shape[1]), value=0.5).view(tokens.shape[0], *model.config.grid, 3)


def projected(x_ND: Tensor, count: int) -> Tensor:
    """Coordinates on the first principal components (N, count); the largest loading of each is positive."""
    centred = x_ND - x_ND.mean(0)
    _, axes = torch.linalg.eigh(centred.T @ centred)
    axes = axes.flip(1)[:, :count]
    largest = axes.gather(0, axes.abs().argmax(0, keepdim=True))
    return centred @ (axes * torch.where(largest < 0, -1.0, 1.0))


def neighbours(queries: Tensor, features: Tensor, *, k: int = 8, leave_out: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """The k most alike by cosine: (their numbers (Q, k), the cosines (Q, k)).

    leave_out: one number a query that must not be found, the query's own place in the set.
    """
    alike = F.normalize(queries.double(), dim=1) @ F.normalize(features.double(), dim=1).T
    if leave_out is not None:
        alike.scatter_(1, leave_out[:, None], -math.inf)
    found = alike.topk(min(k, features.shape[0] - (leave_out is not None)), dim=1)
    return found.indices, found.values


def embedding_map(features: Tensor, *, method: str = "tsne", seed: int = 0) -> Tensor:
    """Two numbers an image (N, 2), to draw a data set as a map. "pca" keeps large distances, "tsne" small ones."""
    if method not in METHODS:
        raise UsageError(f"no map is called {method!r}{nearest(method, METHODS)}.")
    x = features.double()
    if x.shape[0] < 3:
        raise UsageError(f"a map of {x.shape[0]} images shows nothing.", hint="give at least three")
    flat = projected(x, 2)
    flat = F.pad(flat, (0, 2 - flat.shape[1]))
    return flat if method == "pca" else tsne(x, start=flat, seed=seed)


def tsne(x_ND: Tensor, *, start: Tensor, perplexity: float = 30.0, steps: int = 500, seed: int = 0) -> Tensor:
    """t-SNE (van der Maaten and Hinton 2008), exact, N x N: for up to a few thousand points.

    It starts from `start` (N, 2), scaled small, with a trace of noise drawn from `seed` so that equal
    points can part. The first 100 steps exaggerate the attractions twelvefold.
    """
    count = x_ND.shape[0]
    p = joint_probabilities(x_ND, min(perplexity, (count - 1) / 3))
    words = draws.key(seed, "tsne")
    noise = draws.uniform(draws.sample_keys(words, torch.arange(count)), 2).double() - 0.5
    y = start / start.std(0).clamp_min(1e-12) * 1e-2 + noise * 1e-4
    velocity, gain = torch.zeros_like(y), torch.ones_like(y)
    rate = max(count / 12.0, 50.0)
    for step in range(steps):
        near = 1 / (1 + torch.cdist(y, y).square())
        near.fill_diagonal_(0)
        pull = (p * (12 if step < 100 else 1) - near / near.sum()) * near
        slope = 4 * (pull.sum(1, keepdim=True) * y - pull @ y)
        gain = torch.where(slope.sign() == velocity.sign(), gain * 0.8, gain + 0.2).clamp_min(0.01)
        velocity = velocity * (0.5 if step < 100 else 0.8) - rate * gain * slope
        y = y + velocity
        y = y - y.mean(0)
    return y


def joint_probabilities(x_ND: Tensor, perplexity: float) -> Tensor:
    """P of t-SNE: Gaussian neighbourhoods whose widths give every point the same perplexity, made symmetric."""
    far = torch.cdist(x_ND, x_ND).square()
    far = far / far.mean().clamp_min(1e-300)
    low, high = torch.full((len(x_ND), 1), 1e-10), torch.full((len(x_ND), 1), 1e10)
    low, high = low.to(far), high.to(far)
    for _ in range(60):  # bisection on the logarithm of the precision
        middle = (low * high).sqrt()
        logits = -far * middle
        logits.fill_diagonal_(-math.inf)
        p = logits.softmax(1)
        too_wide = torch.special.entr(p).sum(1, keepdim=True) > math.log(perplexity)
        low, high = torch.where(too_wide, middle, low), torch.where(too_wide, high, middle)
    return (p + p.T) / (2 * len(x_ND))
