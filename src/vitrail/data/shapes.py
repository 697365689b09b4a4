"""`builtin:shapes`: coloured shapes drawn on demand, for tests and demonstrations that need a size of their own.

    builtin:shapes?n=1000&test=200&size=64&classes=8&seed=0
    builtin:shapes?size=48x64        height x width
    builtin:shapes?multilabel=1      one to three shapes an image, and a label for each

Image i is a function of (seed, split, i): position, size, turn, colours and noise. Up to 8
classes are shapes of any colour; beyond that a class is a shape of one of 8 colours. Labels
go round (i modulo classes), so any long enough part is balanced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from vitrail.data.names import Names
from vitrail.data.source import Listing, Record
from vitrail.errors import UsageError, nearest
from vitrail.kernels import draws

__all__ = ["COLOURS", "SHAPES", "Shapes", "open_shapes"]

SHAPES = ("circle", "square", "triangle", "cross", "ring", "diamond", "star", "bar")
COLOURS = {
    "red": (214, 40, 40), "green": (56, 160, 62), "blue": (36, 84, 200), "yellow": (240, 200, 30),
    "purple": (140, 60, 170), "cyan": (40, 190, 200), "orange": (245, 130, 30), "white": (245, 245, 245),
}  # fmt: skip
DEFAULTS = {"n": "1000", "test": "", "size": "32", "classes": "4", "seed": "0", "multilabel": "0"}


@dataclass(eq=False)
class Shapes(Listing):
    """Nothing is stored but how to draw."""

    size: tuple[int, int] = (32, 32)
    seed: int = 0

    def read(self, i: int) -> Record:
        label = self.label(i)
        shapes = label if isinstance(label, tuple) else (label,)
        words = draws.key(self.seed, f"shapes {self.split}")
        return Record(draw(self.size, shapes, len(self.classes), draws.Stream(words, i)), label, self.id(i))

    def sizes(self) -> np.ndarray:
        return np.full(len(self), self.seed * 2**32 + self.size[0] * 2**16 + self.size[1])


def open_shapes(name: str, query: dict[str, str], split: str) -> Shapes:
    for key in query:
        if key not in DEFAULTS:
            raise UsageError(f"{name}: unknown option {key!r}{nearest(key, DEFAULTS)}.")
    options = {**DEFAULTS, **query}
    n = _whole(name, options, "n", 1, 2**31)
    count = n if split == "train" else _whole(name, {**options, "test": options["test"] or str(max(1, n // 5))}, "test", 1, 2**31)
    classes = _class_names(_whole(name, options, "classes", 1, len(SHAPES) * len(COLOURS)))
    seed = _whole(name, options, "seed", 0, 2**31)
    several = options["multilabel"] in ("1", "true", "yes")
    first = np.arange(count, dtype=np.int64) % len(classes)
    labels: Any = _several(first, len(classes), seed, split) if several else first
    ids = Names(f"{split}/{i:07d}" for i in range(count))
    return Shapes(name, split, classes, labels, ids, several, size=_size(name, options["size"]), seed=seed)


def _whole(name: str, options: dict[str, str], key: str, low: int, high: int) -> int:
    text = options[key].replace("_", "")
    if not text.isdigit() or not low <= int(text) <= high:
        raise UsageError(f"{name}: {key}={options[key]!r} has to be a whole number from {low:,} to {high:,}.")
    return int(text)


def _size(name: str, text: str) -> tuple[int, int]:
    parts = text.lower().split("x")
    if len(parts) > 2 or not all(part.isdigit() and 4 <= int(part) <= 4096 for part in parts):
        raise UsageError(f"{name}: size={text!r} has to be one number or HEIGHTxWIDTH, 4 to 4096.")
    return int(parts[0]), int(parts[-1])


def _class_names(count: int) -> tuple[str, ...]:
    if count <= len(SHAPES):
        return SHAPES[:count]
    return tuple(f"{colour} {shape}" for colour in COLOURS for shape in SHAPES)[:count]


def _several(first: np.ndarray, classes: int, seed: int, split: str) -> list[tuple[int, ...]]:
    """One to three different classes an image, the first going round so that none is missing."""
    lanes = draws.uniform_numpy(draws.key(seed, f"shapes labels {split}"), np.arange(len(first)), 3)
    more = (lanes[:, :2] * classes).astype(np.int64)
    count = (lanes[:, 2] * 3).astype(np.int64)
    return [tuple(sorted({int(k), *map(int, extra[:c])})) for k, extra, c in zip(first, more, count)]


# ---------------------------------------------------------------- drawing


def draw(size: tuple[int, int], labels: tuple[int, ...], classes: int, stream: draws.Stream) -> np.ndarray:
    """uint8 (height, width, 3): noise on a plain ground, and one shape a label."""
    height, width = size
    looks = [_look(label, classes, stream) for label in labels]
    grounds = np.array([[stream.uniform(0, 150) for _ in range(3)] for _ in range(4)])
    colours = np.array([colour for _, colour in looks], np.float64)
    contrast = np.abs(grounds[:, None] - colours).sum(-1).min(-1)
    noise = draws.bits_numpy((stream.bits(), stream.bits()), np.arange(height * width), 3)
    image = ((noise >> np.uint32(24)).astype(np.float64).reshape(height, width, 3) - 127.5) * 0.15
    image += grounds[contrast.argmax()]  # the one against which every shape can be seen
    for shape, colour in looks:
        cover = _cover(size, shape, len(labels), stream)[..., None]
        image = image * (1 - cover) + np.asarray(colour, np.float64) * cover
    return np.clip(np.rint(image), 0, 255).astype(np.uint8)


def _look(label: int, classes: int, stream: draws.Stream) -> tuple[str, Any]:
    colours = list(COLOURS.values())
    if classes <= len(SHAPES):
        return SHAPES[label], colours[stream.integer(len(colours))]
    return SHAPES[label % len(SHAPES)], colours[label // len(SHAPES)]


def _cover(size: tuple[int, int], shape: str, company: int, stream: draws.Stream) -> np.ndarray:
    """How much of each pixel the shape covers, from its signed distance in pixels."""
    height, width = size
    short = min(height, width)
    radius = short * stream.uniform(0.2, 0.38) / (1 if company == 1 else 1.6)
    y0 = stream.uniform(radius * 0.8, height - radius * 0.8)
    x0 = stream.uniform(radius * 0.8, width - radius * 0.8)
    turn = stream.uniform(-0.35, 0.35)  # radians; a square stays a square and no diamond
    y = (np.arange(height)[:, None] + 0.5 - y0) / radius
    x = (np.arange(width)[None, :] + 0.5 - x0) / radius
    u, v = x * np.cos(turn) + y * np.sin(turn), y * np.cos(turn) - x * np.sin(turn)
    return np.clip(0.5 - _distance(shape, u, v) * radius, 0, 1)


def _distance(shape: str, u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """Signed distance (negative inside), or a bound of it, of a shape of radius 1."""
    a, b = np.abs(u), np.abs(v)
    if shape == "circle":
        return np.hypot(u, v) - 0.9
    if shape == "square":
        return np.maximum(a, b) - 0.8
    if shape == "triangle":
        return np.maximum(a * 0.866 + v * 0.5, -v) - 0.5
    if shape == "cross":
        return np.minimum(np.maximum(a - 0.95, b - 0.3), np.maximum(a - 0.3, b - 0.95))
    if shape == "ring":
        return np.abs(np.hypot(u, v) - 0.7) - 0.22
    if shape == "diamond":
        return (a + b - 1.0) * 0.7071
    if shape == "star":
        angle = np.mod(np.arctan2(u, -v), 2 * np.pi / 5) - np.pi / 5
        return np.hypot(u, v) * np.cos(angle) * 0.55 - 0.45 + 0.42 * (np.abs(angle) - 0.2)
    return np.maximum(a - 0.95, b - 0.28)  # bar
