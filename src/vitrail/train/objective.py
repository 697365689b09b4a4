"""What a model is trained to do: images and targets in, one loss a sample out.

    softmax          -sum_c y_c log softmax(z)_c                                (fine-tuning, paper 3.2)
    sigmoid          -sum_c y_c log s(z_c) + (1 - y_c) log s(-z_c), summed      (pre-training, ImageNet-21k and JFT)
    bce              the same divided by the number of classes                  (DeiT-III)
    distillation     a share of the loss comes from a teacher                   (`distill.py`)
    masked_patches   colours of corrupted patches (appendix B.1.2)              (`masked.py`)
    mae              pixels of hidden patches                                   (`mae.py`)

An objective is a module around the model, so that DDP, FSDP and torch.compile see one forward:
`prepare` (no gradient, never compiled) turns a batch into targets, `forward` gives (B,) losses
in float32. Every loss is a mean over samples of something that depends on one sample, so
micro-batches and ranks add up to the large batch. Logits are computed in float32 whatever the
precision of the blocks: with the paper's head bias of -10, bfloat16 would leave them two digits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import ObjectiveSpec
from vitrail.runtime.device import Precision

__all__ = ["LOSSES", "Objective", "Supervised", "balanced_weights", "bce", "one_hot", "sigmoid", "softmax"]


# ---------------------------------------------------------------- losses, one number a sample


def softmax(logits_BK: Tensor, targets_BK: Tensor) -> Tensor:
    return -(targets_BK * F.log_softmax(logits_BK, dim=-1)).sum(-1)


def sigmoid(logits_BK: Tensor, targets_BK: Tensor) -> Tensor:
    return -(targets_BK * F.logsigmoid(logits_BK) + (1.0 - targets_BK) * F.logsigmoid(-logits_BK)).sum(-1)


def bce(logits_BK: Tensor, targets_BK: Tensor) -> Tensor:
    return sigmoid(logits_BK, targets_BK) / logits_BK.shape[-1]


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {"softmax": softmax, "sigmoid": sigmoid, "bce": bce}


def one_hot(targets: Tensor, classes: int, dtype: torch.dtype = torch.float32) -> Tensor:
    """Class numbers -> rows with a one; probabilities and multi-hot rows stay as they are."""
    if targets.is_floating_point():
        return targets.to(dtype)
    return F.one_hot(targets, classes).to(dtype)


def balanced_weights(labels: Any, classes: int) -> Tensor:
    """n / (K n_c) for each class: every class weighs the same in the sum over the data; 0 where it has no image."""
    flat = [k for label in labels for k in label] if isinstance(labels, list) else labels
    counts = torch.bincount(torch.as_tensor(flat, dtype=torch.int64), minlength=classes).to(torch.float64)
    weights = torch.where(counts > 0, counts.sum() / (classes * counts.clamp_min(1)), 0.0)
    return weights.to(torch.float32)


# ---------------------------------------------------------------- objectives


class Objective(nn.Module):
    """A model and its loss. Subclasses fill in `prepare` and `forward`."""

    model: Any  # a VisionTransformer, or whatever has its methods
    shift: Tensor
    spread: Tensor

    def __init__(self, model: nn.Module, precision: Precision, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        self.precision = precision
        for name, values in (("shift", mean), ("spread", std)):  # of pixels in 0 .. 255, as `Preprocess.normalise`
            self.register_buffer(name, (255 * torch.tensor(values)).view(-1, 1, 1), persistent=False)

    def normalise(self, images: Tensor) -> Tensor:
        return (images.to(self.precision.weights) - self.shift) / self.spread

    def prepare(self, images: Tensor, targets: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        """Augmented images (0 .. 255), their targets and the slots they fill -> what `forward` compares with."""
        raise NotImplementedError

    def forward(self, images: Tensor, key: Tensor | None, *prepared: Tensor) -> Tensor:
        """Images in 0 .. 255 -> (B,) losses."""
        raise NotImplementedError

    def predict(self, images: Tensor) -> Tensor:
        """Normalised images -> logits, for measuring: by way of the objective, so that shards are gathered."""
        raise NotImplementedError

    def named(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Every parameter under its public name: the model's as the model calls them, then the objective's own."""
        for name, parameter in self.named_parameters():
            yield name.removeprefix("model."), parameter

    def extras(self) -> dict[str, Tensor]:
        """What the objective learns beside the model (a decoder, a mask token), for checkpoints."""
        return {name: value for name, value in self.state_dict().items() if not name.startswith("model.")}


class Supervised(Objective):
    """Labels to predict."""

    def __init__(
        self,
        model: nn.Module,
        spec: ObjectiveSpec,
        precision: Precision,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        classes: int,
        weights: Tensor | None = None,
    ) -> None:
        super().__init__(model, precision, mean, std)
        self.spec, self.classes = spec, classes
        self.loss = LOSSES[spec.loss]
        self.class_weights: Tensor | None
        self.register_buffer("class_weights", weights, persistent=False)

    def prepare(self, images: Tensor, targets: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        return (one_hot(targets, self.classes, self.precision.weights),)

    def forward(self, images: Tensor, key: Tensor | None, *prepared: Tensor) -> Tensor:
        return self.label_loss(self.logits(self.normalise(images), key), prepared[0])

    def predict(self, images: Tensor) -> Tensor:
        return self.logits(images, None)

    def logits(self, images: Tensor, key: Tensor | None) -> Tensor:
        """The blocks in the run's precision, the head in that of the weights."""
        if getattr(self.model, "head_dist", None) is not None:
            first, second = self.two_heads(images, key)
            return (first + second) / 2
        with self.precision.autocast(images.device):
            features = self.model.features(images, key)
        with self.precision.full(images.device):
            return self.model.head(features.to(self.precision.weights))

    def two_heads(self, images: Tensor, key: Tensor | None) -> tuple[Tensor, Tensor]:
        """Logits of the class head and of the distillation head."""
        with self.precision.autocast(images.device):
            tokens = self.model.tokens(images, key)
        with self.precision.full(images.device):
            return self.model.two_heads(tokens.to(self.precision.weights))

    def label_loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        if self.spec.binarise:
            targets = (targets > 0).to(targets.dtype)
        wanted = smooth(targets, self.spec.label_smoothing)
        losses = self.loss(logits, wanted)
        if self.class_weights is not None:
            losses = losses * (targets * self.class_weights).sum(-1)
        return losses


def smooth(targets_BK: Tensor, amount: float) -> Tensor:
    return targets_BK if amount == 0.0 else targets_BK * (1.0 - amount) + amount / targets_BK.shape[-1]
