"""How data sets of ImageNet's family are scored, by name.

imagenet-v2       folders 0 … 999; all 1000 classes may be answered
imagenet-a, -r    200 of the classes; only these may be answered
imagenet-sketch   all 1000 classes
imagenet-c        15 corruptions at 5 severities, folders noise/gaussian_noise/1/n01440764; see `corruption`
imagenette        10 of the classes; only these may be answered
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from vitrail.errors import DataError, UsageError, nearest
from vitrail.evaluate.imagenet import owner_by_number

__all__ = ["PROTOCOLS", "Protocol", "find_protocol"]


@dataclass(frozen=True)
class Protocol:
    """One convention; `classes` and `images` are those of the whole published set (0: several are published)."""

    name: str
    classes: int
    images: int
    restrict: bool  # only the classes of the data may be answered
    numbered: bool = False  # folders named by the class's number

    def owner(self, outputs: Sequence[str], count: int, classes: Sequence[str], data: str) -> np.ndarray | None:
        """Which class each output stands for, where the names alone do not say it."""
        if len(classes) != self.classes:
            raise DataError(f"{data} has {len(classes)} classes, and {self.name} has {self.classes}.", hint="copy the whole set")
        return owner_by_number(outputs, count, classes, data) if self.numbered else None

    def note(self, images: int) -> tuple[str, ...]:
        """What a result on another number of images has to say."""
        if self.images in (0, images):
            return ()
        return (f"{self.name} has {self.images:,} images, and {images:,} are here: not comparable with published figures",)


PROTOCOLS = {
    one.name: one
    for one in (
        Protocol("imagenet-v2", 1000, 10_000, restrict=False, numbered=True),
        Protocol("imagenet-a", 200, 7_500, restrict=True),
        Protocol("imagenet-r", 200, 30_000, restrict=True),
        Protocol("imagenet-sketch", 1000, 50_889, restrict=False),
        Protocol("imagenet-c", 1000, 50_000, restrict=False),
        Protocol("imagenette", 10, 0, restrict=True),
    )
}


def find_protocol(name: str) -> Protocol:
    if name not in PROTOCOLS:
        raise UsageError(f"no protocol is called {name!r}{nearest(name, PROTOCOLS)}.")
    return PROTOCOLS[name]
