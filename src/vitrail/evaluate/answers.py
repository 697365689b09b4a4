"""What a model says about images, reduced to a few numbers an image before it leaves the device.

    logits (B, M) ──owner──> guesses (B, depth), confidence (B,), loss (B,)

`owner` says which of the data's classes each of the model's M outputs stands for, -1 for
none (see `evaluate.classes`). `restrict` silences the outputs that stand for none, as
ImageNet-A and -R are scored; without it such an answer is a wrong one, as in ObjectNet.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.errors import NumericsError

__all__ = ["Answers", "answer"]

DEPTH = 5


@dataclass(frozen=True, eq=False)
class Answers:
    """Rows of images, as tensors on the device (`answer`) or numpy arrays (`host`)."""

    index: np.ndarray  # (N,) int64, the image's number in the source
    labels: np.ndarray  # (N,) int64, or (N, K) float32 multi-hot
    guesses: np.ndarray  # (N, depth) int64 classes of the data, best first, -1: none of them
    confidence: np.ndarray  # (N,) float32, probability of the first guess
    loss: np.ndarray  # (N,) float32: -log p(true class), or the mean over classes of binary cross-entropies
    finite: np.ndarray  # (N,) bool: all logits were numbers
    scores: np.ndarray | None = None  # (N, K) float32 logits by class of the data, where asked for

    FIELDS = ("index", "labels", "guesses", "confidence", "loss", "finite", "scores")

    def __len__(self) -> int:
        return len(self.index)

    def rows(self, chosen: np.ndarray) -> Answers:
        return Answers(*(None if v is None else v[chosen] for v in self.columns()))  # type: ignore[arg-type]

    def columns(self) -> tuple[np.ndarray | None, ...]:
        return tuple(getattr(self, name) for name in self.FIELDS)

    def arrays(self) -> dict[str, np.ndarray]:
        """For storing; `Answers(**arrays)` reads it back."""
        return {name: value for name, value in zip(self.FIELDS, self.columns()) if value is not None}

    @classmethod
    def join(cls, parts: Iterable[Answers]) -> Answers:
        columns = zip(*(part.columns() for part in parts))
        return cls(*(None if c[0] is None else np.concatenate(c) for c in columns))  # type: ignore[arg-type]

    def refuse_nonfinite(self, name: Callable[[int], str] = str) -> None:
        """name: of the image with a number."""
        if not self.finite.all():
            bad = self.index[~self.finite]
            raise NumericsError(
                f"the logits of {len(bad)} of {len(self)} images are not numbers (NaN or Inf), first image {name(int(bad[0]))}.",
                hint="try --precision fp32; if it stays, the weights are damaged or diverged in training",
            )


def answer(
    logits: Tensor,
    labels: Tensor,
    index: Tensor,
    classes: int,
    *,
    owner: Tensor | None = None,
    restrict: bool = False,
    keep_scores: bool = False,
) -> tuple[Tensor | None, ...]:
    """The columns of `Answers` for one batch, still on the device (so that nothing waits for it)."""
    logits = logits.double() if logits.dtype == torch.float64 else logits.float()
    finite = torch.isfinite(logits).all(dim=1)
    if owner is not None and restrict:
        logits = logits.masked_fill(owner < 0, -torch.inf)
    log_p = F.log_softmax(logits, dim=1)
    best, guesses = log_p.topk(min(DEPTH, classes, logits.shape[1]), dim=1)
    if owner is not None:
        guesses = owner[guesses]
    if labels.dim() == 1:
        loss = _loss_of(log_p, labels, owner)
        confidence = best[:, 0].exp()
    else:
        ours = _by_class(logits, owner, classes)
        loss = F.binary_cross_entropy_with_logits(ours, labels.to(ours.dtype), reduction="none").mean(dim=1)
        confidence = torch.sigmoid(logits.gather(1, logits.argmax(dim=1, keepdim=True))[:, 0])
    scores = _by_class(logits, owner, classes).float() if keep_scores else None
    return index, labels, guesses, confidence.float(), loss.float(), finite, scores


def _loss_of(log_p: Tensor, labels: Tensor, owner: Tensor | None) -> Tensor:
    """-log of the probability of all outputs that stand for the label."""
    if owner is None:
        return -log_p.gather(1, labels[:, None].clamp(min=0))[:, 0]
    return -log_p.masked_fill(owner[None] != labels[:, None], -torch.inf).logsumexp(dim=1)


def _by_class(logits: Tensor, owner: Tensor | None, classes: int) -> Tensor:
    """(B, M) by output -> (B, K) by class of the data: the highest of its outputs."""
    if owner is None:
        return logits
    out = logits.new_full((logits.shape[0], classes), -torch.inf)
    known = owner >= 0
    return out.scatter_reduce_(1, owner[known].expand(logits.shape[0], -1), logits[:, known], "amax")
