"""Where a model is wrong and sure of it, and what it looked at when it was."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.errors import UsageError
from vitrail.evaluate.score import evaluating
from vitrail.inspect.attention import in_batches, transformer
from vitrail.inspect.maps import gradient_rollout, logits_of

__all__ = ["Mistake", "explain", "mistakes", "most_confident"]


@dataclass(frozen=True)
class Mistake:
    """
    place       which of the images
    truth, said          classes of the data
    confidence           the probability given to what was said
    outputs              (output of the model for `said`, best output for `truth`)
    said_map, truth_map  what speaks for each of the two: gradient-weighted rollout (rows, columns); None before `explain`
    """

    place: int
    truth: int
    said: int
    confidence: float
    outputs: tuple[int, int]
    said_map: Tensor | None = None
    truth_map: Tensor | None = None


def most_confident(logits: Tensor, labels: Any, *, owner: np.ndarray | None = None, count: int = 8) -> list[Mistake]:
    """The mistakes with the highest probability of the wrong class, most confident first.

    logits (N, M), labels (N) class numbers. owner (M): which class each output stands for, -1 for none
    (`vitrail.evaluate.classes`); None: output k is class k.
    """
    labels = torch.as_tensor(np.asarray(labels)).long()
    owners = torch.arange(logits.shape[1]) if owner is None else torch.as_tensor(owner)
    if len(labels) != len(logits):
        raise UsageError(f"{len(logits)} rows of logits but {len(labels)} labels.")
    probabilities = logits.double().masked_fill(owners < 0, -torch.inf).softmax(1)
    confidence, output = probabilities.max(1)
    said = owners[output]
    wrong = (said != labels).nonzero()[:, 0]
    found = []
    for place in wrong[confidence[wrong].argsort(descending=True, stable=True)][:count].tolist():
        right = probabilities[place].masked_fill(owners != labels[place], -1).argmax()
        outputs = (int(output[place]), int(right))
        found.append(Mistake(place, int(labels[place]), int(said[place]), float(confidence[place]), outputs))
    return found


def explain(model: nn.Module, views: Tensor, found: list[Mistake]) -> list[Mistake]:
    """The same mistakes with their maps; `views` (len(found), C, H, W) are their images as the model sees them."""
    if not found:
        return []
    said = gradient_rollout(model, views, torch.tensor([mistake.outputs[0] for mistake in found]))
    truth = gradient_rollout(model, views, torch.tensor([mistake.outputs[1] for mistake in found]))
    return [Mistake(m.place, m.truth, m.said, m.confidence, m.outputs, said_map=a, truth_map=b) for m, a, b in zip(found, said, truth)]


def mistakes(
    model: nn.Module, images: Tensor, labels: Any, *, owner: np.ndarray | None = None, count: int = 8, batch_size: int = 8
) -> list[Mistake]:
    """The most confident mistakes among normalised images (N, C, H, W), with their maps."""
    model = transformer(model)
    with evaluating(model):
        logits = torch.cat([logits_of(model, model.tokens(batch)).cpu() for batch in in_batches(model, images, batch_size)])
    found = most_confident(logits, labels, owner=owner, count=count)
    return explain(model, images[[mistake.place for mistake in found]], found)
