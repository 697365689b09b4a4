"""Pictures of a measurement, drawn with Pillow alone: the confusion table and the reliability diagram."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from vitrail.data.names import shown
from vitrail.evaluate.metrics import BINS

__all__ = ["confusion_chart", "reliability_chart"]

PAPER, INK, FAINT, LINE = (255, 255, 255), (29, 29, 34), (120, 120, 130), (222, 222, 230)
BLUE, ORANGE = (0, 114, 178), (213, 94, 0)
NAMED = 60  # classes whose names fit beside the table
COUNTED = 25  # classes whose cells are wide enough for a number
LARGEST = 2000  # pixels of the table's side


def confusion_chart(table: np.ndarray, classes: Sequence[str], title: str = "") -> np.ndarray:
    """uint8 (H, W, 3): rows are true classes, columns what the model said, shaded by the share of the row.

    Right answers are blue, wrong ones orange and three times as strong, so that few of them are seen.
    """
    count = len(classes)
    cell = max(1, min(44 if count <= COUNTED else 18, LARGEST // count))
    font, small = _font(14 if cell >= 14 else 12), _font(11)
    names = [shown(name, 28) for name in classes] if count <= NAMED else []
    side = max((_width(font, name) for name in names), default=0) + 16 if names else 40
    top = side + 34
    sheet = Image.new("RGB", (max(side + count * cell + 16, 460), top + count * cell + 28), PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((10, 8), title or "what is taken for what", fill=INK, font=font)
    sheet.paste(_shaded(table, cell), (side, top))
    for k, name in enumerate(names):
        middle = top + k * cell + cell // 2
        pen.text((side - 6, middle), name, fill=INK, font=font, anchor="rm")
        _upright(sheet, name, font, (side + k * cell + cell // 2, top - 6))
    if cell >= 24:
        _numbers(pen, table, cell, side, top, small)
    said = "" if names else f"{count:,} classes in the order of confusion.csv. "
    pen.text(
        (10, top + count * cell + 8),
        f"{said}Rows: what it is; columns: what was said; darker: a larger share of the row.",
        fill=FAINT,
        font=small,
    )
    return np.asarray(sheet)


def _shaded(table: np.ndarray, cell: int) -> Image.Image:
    share = table / np.maximum(1, table.sum(1, keepdims=True))
    right = np.eye(len(table), dtype=bool)
    strength = np.where(right, share, np.minimum(1.0, 3 * share))[..., None]
    colour = np.where(right[..., None], np.array(BLUE), np.array(ORANGE))
    pixels = np.rint(255 + strength * (colour - 255.0)).astype(np.uint8)
    image = Image.fromarray(pixels).resize((len(table) * cell, len(table) * cell), Image.Resampling.NEAREST)
    if cell >= 8:
        pen = ImageDraw.Draw(image)
        for k in range(len(table) + 1):
            at = min(k * cell, image.width - 1)
            pen.line((at, 0, at, image.height), fill=LINE)
            pen.line((0, at, image.width, at), fill=LINE)
    return image


def _numbers(pen: Any, table: np.ndarray, cell: int, side: int, top: int, font: Any) -> None:
    share = table / np.maximum(1, table.sum(1, keepdims=True))
    for i, k in zip(*np.nonzero(table)):
        dark = share[i, k] > (0.55 if i == k else 0.25)
        where = (side + k * cell + cell // 2, top + i * cell + cell // 2)
        pen.text(where, str(table[i, k]), fill=PAPER if dark else INK, font=font, anchor="mm")


def reliability_chart(bins: np.ndarray, ece: float, scaled: tuple[np.ndarray, float, float] | None = None, title: str = "") -> np.ndarray:
    """uint8 (H, W, 3): accuracy in each bin of confidence against the diagonal, and how many images each bin holds.

    bins: `Counts.bins`; scaled: the same after a temperature, its ECE and the temperature.
    """
    side, left, top, below = 420, 64, 84, 90
    sheet = Image.new("RGB", (left + side + 24, top + side + below + 62), PAPER)
    pen, font, small = ImageDraw.Draw(sheet), _font(14), _font(12)
    pen.text((10, 8), title or "reliability: how often it is right when it says how sure it is", fill=INK, font=font)
    pen.text((10, 30), f"ECE {100 * ece:.2f} points", fill=BLUE, font=font)
    if scaled:
        pen.text((170, 30), f"ECE {100 * scaled[1]:.2f} points at temperature {scaled[2]:.3f}", fill=ORANGE, font=font)
    at = lambda x, y: (left + round(x * side), top + side - round(y * side))
    for tick in np.linspace(0, 1, 6):
        pen.line((at(0, tick), at(1, tick)), fill=LINE)
        pen.text((left - 8, at(0, tick)[1]), f"{100 * tick:.0f} %", fill=FAINT, font=small, anchor="rm")
        pen.text((at(tick, 0)[0], top + side + below + 12), f"{100 * tick:.0f} %", fill=FAINT, font=small, anchor="mt")
    images = bins[:, 0].sum()
    for k, (n, _, right) in enumerate(bins):
        if not n:
            continue
        x0, x1 = left + round(k / BINS * side) + 1, left + round((k + 1) / BINS * side) - 1
        pen.rectangle((x0, at(0, right / n)[1], x1, top + side), fill=(150, 199, 226), outline=BLUE)
        pen.rectangle((x0, top + side + below - round(n / bins[:, 0].max() * (below - 28)), x1, top + side + below), fill=FAINT)
    pen.line((at(0, 0), at(1, 1)), fill=FAINT, width=2)
    if scaled:
        points = [at(c / n, r / n) for n, c, r in scaled[0] if n]
        pen.line(points, fill=ORANGE, width=2)
        for x, y in points:
            pen.ellipse((x - 3, y - 3, x + 3, y + 3), fill=ORANGE)
    pen.text((left, top - 8), "right", fill=FAINT, font=small, anchor="lb")
    pen.text((left + 2, top + side + 6), f"the {images:,.0f} images, fullest bin {bins[:, 0].max():,.0f}", fill=FAINT, font=small)
    pen.text((left + side, top + side + below + 34), "confidence of the first guess", fill=FAINT, font=small, anchor="rt")
    return np.asarray(sheet)


def _font(size: int) -> Any:
    """Pillow's own outline font where it was built with FreeType, else its bitmap font."""
    return ImageFont.load_default(size)


def _width(font: Any, text: str) -> int:
    return int(font.getlength(_drawable(text)))


def _drawable(text: str) -> str:
    return text.encode("latin-1", "replace").decode("latin-1")


def _upright(sheet: Image.Image, text: str, font: Any, foot: tuple[int, int]) -> None:
    """A name written upwards, ending at `foot`."""
    label = Image.new("RGB", (_width(font, text) + 4, 20), PAPER)
    ImageDraw.Draw(label).text((2, 10), _drawable(text), fill=INK, font=font, anchor="lm")
    turned = label.rotate(90, expand=True)
    sheet.paste(turned, (foot[0] - turned.width // 2, foot[1] - turned.height))
