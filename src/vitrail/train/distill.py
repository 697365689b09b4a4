"""Distillation: part of the loss is what a teacher says of the same augmented image.

    hard   cross-entropy with the teacher's decision                                      (DeiT)
    soft   T^2 KL(teacher / T || student / T)

A student with two heads (`distilled`) learns labels with one and the teacher with the other;
a student with one head learns both with it. The teacher is anything that `load_model` reads,
sees the pixels in its own range and size, and takes no part in checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.config import ObjectiveSpec
from vitrail.data.transform import Preprocess
from vitrail.errors import UsageError
from vitrail.runtime.device import Precision
from vitrail.train.objective import Supervised

__all__ = ["Distilled", "Teacher"]


class Teacher:
    """A frozen model and the pixels it wants."""

    def __init__(self, model: nn.Module, preprocess: Preprocess, precision: Precision) -> None:
        self.model = model.eval().requires_grad_(False)
        self.preprocess, self.precision = preprocess, precision

    @torch.no_grad()
    def __call__(self, images: Tensor) -> Tensor:
        """Augmented images in 0 .. 255 -> logits, in the weights' precision."""
        images = images.to(torch.float32)
        size = tuple(self.preprocess.image_size)
        if tuple(images.shape[2:]) != size:
            images = F.interpolate(images, size=size, mode="bilinear", antialias=True)
        with self.precision.autocast(images.device):
            logits = self.model(self.preprocess.normalise(images).to(self.precision.weights))
        return logits.to(self.precision.weights)


class Distilled(Supervised):
    """Labels, and a teacher."""

    def __init__(
        self,
        model: nn.Module,
        spec: ObjectiveSpec,
        precision: Precision,
        mean: Sequence[float],
        std: Sequence[float],
        *,
        teacher: Teacher,
        classes: int,
        weights: Tensor | None = None,
    ) -> None:
        super().__init__(model, spec, precision, mean, std, classes=classes, weights=weights)
        theirs: Any = teacher.model.config
        if theirs.classes != classes:
            raise UsageError(f"The teacher {spec.teacher} knows {theirs.classes} classes, the data has {classes}.")
        self.teacher = (teacher,)  # in a tuple: it is no part of this module

    def prepare(self, images: Tensor, targets: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        return *super().prepare(images, targets, position), self.teacher[0](images)

    def forward(self, images: Tensor, key: Tensor | None, *prepared: Tensor) -> Tensor:
        targets, said = prepared
        normal = self.normalise(images)
        if getattr(self.model, "head_dist", None) is not None:
            first, second = self.two_heads(normal, key)
        else:
            first = second = self.logits(normal, key)
        share = self.spec.distill_weight
        return (1.0 - share) * self.label_loss(first, targets) + share * self.teacher_loss(second, said)

    def teacher_loss(self, logits: Tensor, said: Tensor) -> Tensor:
        if self.spec.distill == "hard":
            return F.cross_entropy(logits, said.argmax(-1), reduction="none")
        warm = self.spec.distill_temperature
        ours, theirs = F.log_softmax(logits / warm, dim=-1), F.log_softmax(said / warm, dim=-1)
        return (theirs.exp() * (theirs - ours)).sum(-1) * warm * warm
