"""Do maps mean something? What becomes of the answer when the patches that a map marks are taken away.

Patches are replaced by the mean colour of their image, in the order of a map from the most marked, from
the least marked, and in orders drawn at random. What is measured is the probability of the class that the
whole image was given: the area under its curve is small where it falls fast. If a map means something,
that area is smaller than for random orders, and in the reverse order larger.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from vitrail.evaluate.intervals import Interval, bootstrap
from vitrail.evaluate.score import evaluating
from vitrail.inspect.attention import in_batches, transformer
from vitrail.inspect.maps import attention_rollout, class_attention, gradient_rollout, logits_of
from vitrail.kernels import draws

__all__ = ["STEPS", "Deletion", "curve", "deletion", "maps_of"]

STEPS = (0.0, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
RANDOM = 3  # random orders an image


@dataclass(frozen=True)
class Deletion:
    """One order of taking patches away: the mean curve over STEPS, and its area against that of random orders.

    area          mean over images, with its interval; less is faster
    minus_random  the difference to random orders, paired by image; None for the random orders themselves
    faster        the part of images where this order was faster than the random ones
    """

    curve: list[float]
    area: Interval
    minus_random: Interval | None = None
    faster: float | None = None


def maps_of(model: Any, images: Tensor) -> dict[str, Tensor]:
    """The maps that are put to the test, name -> (B, N)."""
    return {
        "rollout": attention_rollout(model, images).flatten(1),
        "gradient": gradient_rollout(model, images).flatten(1),
        "last layer": class_attention(model, images)[:, -1].mean(1).flatten(1),
    }


def deletion(model: Any, images: Tensor, *, maps: dict[str, Tensor] | None = None, seed: int = 0) -> dict[str, Deletion]:
    """Every order by name, for normalised images (B, C, H, W): "random", "rollout", "rollout, least first", …"""
    model = transformer(model)
    orders = orders_of(maps or maps_of(model, images), seed)
    curves = {name: curve(model, images, order) for name, order in orders.items()}
    random = torch.stack([curves.pop(f"random {number}") for number in range(RANDOM)]).mean(0)
    found = {"random": summary(random)}
    return found | {name: summary(values, random) for name, values in curves.items()}


def orders_of(maps: dict[str, Tensor], seed: int) -> dict[str, Tensor]:
    """Name -> the patches in the order they go (B, N); random orders depend on the seed and the image's number."""
    found = {}
    for name, values in maps.items():
        found[name] = values.argsort(1, descending=True)
        found[f"{name}, least first"] = values.argsort(1)
    images, count = next(iter(maps.values())).shape
    for number in range(RANDOM):
        keys = draws.sample_keys(draws.key(seed, "deletion", number), torch.arange(images))
        found[f"random {number}"] = draws.uniform(keys, count).argsort(1)
    return found


def curve(model: Any, images: Tensor, order: Tensor, *, batch_size: int = 32) -> Tensor:
    """(B, steps): probability of the class of the whole image when each part of the patches is gone."""
    rows, columns = model.config.grid
    cell = (images.shape[2] // rows, images.shape[3] // columns)
    parts, first = [], 0
    with evaluating(model):
        for batch in in_batches(model, images, batch_size):
            rank = order[first : first + len(batch)].argsort(1).to(batch.device)
            first += len(batch)
            ground = batch.mean((2, 3), keepdim=True)
            answers = []
            for part in STEPS:
                gone = (rank < round(part * rank.shape[1])).view(-1, 1, rows, columns)
                gone = gone.repeat_interleave(cell[0], 2).repeat_interleave(cell[1], 3)
                answers.append(logits_of(model, model.tokens(torch.where(gone, ground, batch))).softmax(1))
            said = answers[0].argmax(1, keepdim=True)
            parts.append(torch.cat([answer.gather(1, said) for answer in answers], 1).cpu())
    return torch.cat(parts)


def summary(curves: Tensor, random: Tensor | None = None) -> Deletion:
    area = lambda values: torch.trapezoid(values.double(), torch.tensor(STEPS, dtype=torch.float64), dim=1).numpy()
    mean_of = lambda values: bootstrap(lambda rows: float(values[rows].mean()), len(values))
    areas, mean = area(curves), [round(value, 4) for value in curves.mean(0).tolist()]
    if random is None:
        return Deletion(mean, mean_of(areas))
    gap = areas - area(random)
    return Deletion(mean, mean_of(areas), mean_of(gap), float(np.mean(gap < 0)))
