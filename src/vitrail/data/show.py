"""`vitrail data show`: a contact sheet, images as they are and as training sees them.

Each image is followed by its training views of the first epochs: the same crop, the same
augmentation and the same draws that a run with this seed and recipe would make of a sample
at that position of the stream.
"""

from __future__ import annotations

import math
import os
from collections.abc import Collection
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.data import decode
from vitrail.data.augment import Augment
from vitrail.data.batch import Batch
from vitrail.data.crop import TrainView
from vitrail.data.encode import encode_jpeg, encode_png
from vitrail.data.names import shown
from vitrail.data.resize import resize
from vitrail.data.source import Source, list_splits, open_source
from vitrail.data.split import shuffled
from vitrail.errors import DecodeError, ResourceError, UsageError
from vitrail.kernels import draws
from vitrail.runtime.disk import write_atomic

__all__ = ["Sheet", "show"]

GAP, LINE = 6, 16
PAPER, INK, ALARM = (255, 255, 255), (40, 40, 40), (200, 30, 30)


@dataclass
class Sheet:
    path: str
    images: int
    views: int  # augmented ones beside each image
    unreadable: list[str]
    width: int
    height: int

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)

    def __str__(self) -> str:
        lines = [f"{self.path}: {self.images} images, {self.views} views of each, {self.width}x{self.height}"]
        return "\n".join(lines + [f"  unreadable: {one}" for one in self.unreadable])


def show(
    where: Any,
    out: str | os.PathLike[str] = "sheet.png",
    *,
    split: str | None = None,
    count: int = 32,
    cell: int = 128,
    seed: int = 0,
    view: TrainView | None = None,
    augment: Any = None,
    mean: tuple[float, ...] = (0.5, 0.5, 0.5),
    std: tuple[float, ...] = (0.5, 0.5, 0.5),
    views: int = 3,
    allow: Collection[str] = (),
    **options: Any,
) -> Sheet:
    """Write a contact sheet (PNG, or JPEG by its name) of `count` images of `where`, every class in turn.

    view, augment, mean, std: a recipe's training crop, its augment section and its pixel range
    (default: Inception crops of 224 pixels, nothing else); views: how many augmented versions
    to show, 0 for none.
    """
    _check_name(Path(out))
    if split is None and isinstance(where, str | os.PathLike):
        split = next(iter(list_splits(where, image=options.get("image"), label=options.get("label"))), None)
    source = open_source(where, split, allow=allow, **options)
    places = shuffled(source.labels, seed)[:count]
    view = view or TrainView()
    raw: list[np.ndarray | None] = []
    unreadable = []
    for i in places:
        try:
            raw.append(_read(source, int(i)))
        except DecodeError as error:
            raw.append(None)
            unreadable.append(shown(error.message))
    changed = None
    if augment is not None:
        group, classes = math.gcd(len(places), 8), max(1, len(source.classes))
        changed = Augment(augment, seed=seed, classes=classes, group=group, mean=mean, std=std)
    seen = [_augmented(source, places, raw, view, changed, seed, k) for k in range(views)]
    sheet = _compose(source, places, raw, seen, cell)
    _save(Path(out), sheet)
    return Sheet(str(out), len(places), views, unreadable, sheet.shape[1], sheet.shape[0])


def _check_name(path: Path) -> None:
    if path.suffix.lower() not in (".png", ".jpg", ".jpeg"):
        raise UsageError(f"{shown(str(path))}: a contact sheet is a .png or a .jpg.", hint=f"--out {shown(path.stem) or 'sheet'}.png")


def _save(path: Path, sheet: np.ndarray) -> None:
    data = encode_png(sheet) if path.suffix.lower() == ".png" else encode_jpeg(sheet)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, data)
    except OSError as error:
        raise ResourceError(f"{shown(str(path))} cannot be written: {error.strerror}.", hint="choose another --out") from None


def _read(source: Source, i: int) -> np.ndarray:
    data, _, name = source.read(i)
    return decode.pixels(data, where=name)


def _augmented(
    source: Source, places: np.ndarray, raw: list[np.ndarray | None], view: TrainView, augment: Augment | None, seed: int, epoch: int
) -> np.ndarray:
    """uint8 (N, rows, columns, 3): every image as it would come at this position of the stream."""
    positions = np.arange(len(places), dtype=np.int64) + epoch * len(places)
    words = draws.key(seed, "crop")
    blank = np.full((*view.image_size, 3), 128, np.uint8)
    cut = [blank if image is None else view.pixels(image, draws.Stream(words, int(p))) for image, p in zip(raw, positions)]
    images = torch.from_numpy(np.stack(cut)).permute(0, 3, 1, 2).contiguous()
    if augment is None:
        return np.stack(cut)
    labels = source.labels
    wanted: Any = torch.as_tensor(labels[places]) if isinstance(labels, np.ndarray) else _hot(labels, places, len(source.classes))
    index = torch.as_tensor(places)
    batch = Batch(images, wanted, index, torch.from_numpy(positions), torch.ones(len(places), dtype=torch.bool), positions)
    made, _ = augment(batch)
    return made.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).numpy() if made.is_floating_point() else _nhwc(made)


def _nhwc(images: torch.Tensor) -> np.ndarray:
    return images.permute(0, 2, 3, 1).numpy()


def _hot(labels: list[tuple[int, ...]], places: np.ndarray, classes: int) -> torch.Tensor:
    hot = torch.zeros(len(places), classes)
    for row, i in enumerate(places):
        hot[row, list(labels[int(i)])] = 1
    return hot


# ---------------------------------------------------------------- drawing


def _compose(source: Source, places: np.ndarray, raw: list[np.ndarray | None], seen: list[np.ndarray], cell: int) -> np.ndarray:
    """Blocks of [image, view, view, …] with a caption, in rows about twice as wide as high."""
    from PIL import Image, ImageDraw

    block = (1 + len(seen)) * cell + GAP
    across = max(1, round(math.sqrt(2 * len(places) * (cell + LINE + GAP) / block)))
    down = -(-len(places) // across)
    sheet = Image.new("RGB", (across * block + GAP, down * (cell + LINE + GAP) + GAP), PAPER)
    pen = ImageDraw.Draw(sheet)
    for n, i in enumerate(places):
        x, y = GAP + n % across * block, GAP + n // across * (cell + LINE + GAP)
        image = raw[n]
        if image is None:
            pen.rectangle((x, y, x + cell - 1, y + cell - 1), outline=ALARM)
        for k, picture in enumerate([image, *(views[n] for views in seen)]):
            if picture is not None and image is not None:
                small = _fit(picture, cell)
                left, top = (cell - small.shape[1]) // 2, (cell - small.shape[0]) // 2
                sheet.paste(Image.fromarray(small), (x + k * cell + left, y + top))
        _write(pen, (x, y + cell + 1), _caption(source, int(i), image), block - GAP, INK if image is not None else ALARM)
    return np.asarray(sheet)


def _fit(image: np.ndarray, cell: int) -> np.ndarray:
    """The whole image inside a square cell; small ones are enlarged without smoothing."""
    height, width = image.shape[:2]
    scale = (cell - 2) / max(height, width)
    size = max(1, int(height * scale)), max(1, int(width * scale))
    return resize(image, size, "nearest") if scale > 1 else resize(image, size, "bilinear", antialias=True)


def _caption(source: Source, i: int, image: np.ndarray | None) -> str:
    label = source.labels[i]
    names = [source.classes[k] for k in (label if isinstance(label, tuple) else (int(label),)) if k >= 0]
    size = "unreadable" if image is None else f"{image.shape[1]}x{image.shape[0]}"
    return f"{shown(', '.join(names), 40) or 'no label'}  {size}"


def _write(pen: Any, at: tuple[int, int], text: str, width: int, colour: tuple[int, int, int]) -> None:
    """One line, cut to the width; what the font cannot draw becomes a question mark."""
    text = text.encode("latin-1", "replace").decode("latin-1")
    while len(text) > 4 and pen.textlength(text) > width:
        text = text[:-4] + "..."
    pen.text(at, text, fill=colour)
