"""Pictures in rows and columns, and one small chart, drawn with Pillow alone: the PNG files of a report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

__all__ = ["captioned", "enlarged", "scatter", "sheet"]

PAPER, INK, FAINT, DOT, LINE = (255, 255, 255), (30, 30, 34), (205, 205, 210), (0, 114, 178), (213, 94, 0)


def enlarged(pixels: Any, height: int) -> np.ndarray:
    """uint8 (rows, columns, 3) -> about that high, every pixel a whole square."""
    pixels = np.asarray(pixels, np.uint8)
    times = max(1, round(height / pixels.shape[0]))
    return pixels.repeat(times, 0).repeat(times, 1)


def sheet(pictures: Sequence[np.ndarray], columns: int, *, gap: int = 4) -> np.ndarray:
    """uint8 pictures (height, width, 3), row by row on white; each stands in a cell of the largest one's size."""
    rows = -(-len(pictures) // columns)
    height, width = max(p.shape[0] for p in pictures), max(p.shape[1] for p in pictures)
    page = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, 3), 255, np.uint8)
    for number, picture in enumerate(pictures):
        top, left = gap + (number // columns) * (height + gap), gap + (number % columns) * (width + gap)
        page[top : top + picture.shape[0], left : left + picture.shape[1]] = picture
    return page


def captioned(picture: np.ndarray, text: str, *, size: int = 13) -> np.ndarray:
    """A picture with one line of text under it, cut to fit."""
    font = ImageFont.load_default(size)
    page = Image.new("RGB", (picture.shape[1], picture.shape[0] + size + 6), PAPER)
    page.paste(Image.fromarray(picture), (0, 0))
    while text and font.getlength(text) > page.width - 4:
        text = text[:-2].rstrip("…") + "…" if len(text) > 2 else ""
    ImageDraw.Draw(page).text((2, picture.shape[0] + 2), text, INK, font)
    return np.asarray(page)


def scatter(
    columns: Sequence[Sequence[float]], names: Sequence[str], *, title: str, across: str, up: str, lines: Sequence[float] | None = None
) -> np.ndarray:
    """Dots over named columns (one column a layer, one dot a head), with a reference line a column; uint8 RGB."""
    width, height, left, bottom, top = max(560, 90 + 34 * len(columns)), 380, 62, 50, 34
    twice = 2  # drawn at twice the size and reduced, for smooth edges
    page = Image.new("RGB", (width * twice, height * twice), PAPER)
    draw = ImageDraw.Draw(page)
    font, small = ImageFont.load_default(15 * twice), ImageFont.load_default(12 * twice)
    finite = [value for column in [*columns, lines or []] for value in column if math.isfinite(value)]
    step, ceiling = ticks(max(finite, default=1.0))
    x = lambda number: (left + (number + 0.5) * (width - left - 14) / len(columns)) * twice
    y = lambda value: (height - bottom - value / ceiling * (height - bottom - top)) * twice
    draw.text((left * twice, 8 * twice), title, INK, font)
    for tick in range(round(ceiling / step) + 1):
        draw.line([(left * twice, y(tick * step)), ((width - 14) * twice, y(tick * step))], FAINT, twice)
        draw.text(((left - 8) * twice, y(tick * step)), f"{tick * step:g}", INK, small, anchor="rm")
    if lines is not None:
        for number, value in enumerate(lines):
            half = (width - left - 14) / len(columns) / 2 * twice
            draw.line([(x(number) - half, y(value)), (x(number) + half, y(value))], LINE, 2 * twice)
    shown = max(1, -(-len(columns) // 24))
    for number, column in enumerate(columns):
        if number % shown == 0:
            draw.text((x(number), (height - bottom + 8) * twice), names[number], INK, small, anchor="mt")
        for value in column:
            dot = 3.2 * twice
            draw.ellipse([x(number) - dot, y(value) - dot, x(number) + dot, y(value) + dot], DOT)
    draw.text(((left + width) / 2 * twice, (height - 8) * twice), across, INK, small, anchor="mb")
    side = Image.new("RGB", (round(small.getlength(up)) + 4, 20 * twice), PAPER)
    ImageDraw.Draw(side).text((2, 2), up, INK, small)
    turned = side.rotate(90, expand=True)
    page.paste(turned, (4 * twice, max(0, (height * twice - turned.height) // 2)))
    return np.asarray(page.resize((width, height), Image.Resampling.LANCZOS))


def ticks(largest: float) -> tuple[float, float]:
    """A round step and the round number above the largest value."""
    rough = max(largest, 1e-9) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 2.5, 5, 10) if factor * power >= rough * 0.999)
    return step, step * math.ceil(largest / step - 1e-9) if largest > 0 else step
