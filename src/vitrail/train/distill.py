"""Distillation: part of the loss is what a teacher says of the same augmented image.

    hard   cross-entropy with the teacher's decision                                      (DeiT)
    soft   T^2 KL(teacher / T || student / T)

Several teachers speak as one: with the mean of their probabilities. A student with two heads
(`distilled`) learns labels with one and the teacher with the other; a student with one head
learns both with it. A teacher is anything that `load_model` reads, sees the pixels in its own
range and size, and takes no part in checkpoints.
"""

from __future__ import annotations

import math
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

    def __init__(self, model: nn.Module, preprocess: Preprocess, precision: Precision, name: str = "the teacher") -> None:
        self.model = model.eval().requires_grad_(False)
        self.preprocess, self.precision, self.name = preprocess, precision, name

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
        teachers: Sequence[Teacher],
        classes: int,
        weights: Tensor | None = None,
    ) -> None:
        super().__init__(model, spec, precision, mean, std, classes=classes, weights=weights)
        for teacher in teachers:
            theirs: Any = teacher.model.config
            if theirs.classes != classes:
                raise UsageError(f"The teacher {teacher.name} knows {theirs.classes} classes, the data has {classes}.")
        self.teachers = tuple(teachers)  # a tuple of no modules: they are no part of this one

    def compile_teachers(self) -> None:
        for teacher in self.teachers:
            teacher.model.compile()

    def prepare(self, images: Tensor, targets: Tensor, position: Tensor) -> tuple[Tensor, ...]:
        return *super().prepare(images, targets, position), self.said(images)

    def said(self, images: Tensor) -> Tensor:
        """(B, K) logarithms of what the teachers' softened probabilities are on average."""
        each = [F.log_softmax(teacher(images) / self.spec.distill_temperature, dim=-1) for teacher in self.teachers]
        return each[0] if len(each) == 1 else torch.stack(each).logsumexp(0) - math.log(len(each))

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
        ours = F.log_softmax(logits / warm, dim=-1)
        return (said.exp() * (said - ours)).sum(-1) * warm * warm
