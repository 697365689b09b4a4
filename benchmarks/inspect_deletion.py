"""Do maps mean something? A deletion test on any model and data, and a pointing test where the object's place is known.

    python benchmarks/inspect_deletion.py WEIGHTS DATA [--split test] [--images 200]
    python benchmarks/inspect_deletion.py WEIGHTS 'builtin:shapes?size=64&classes=8' --pointing

Deletion: see `vitrail.inspect.deletion`. Pointing (data `builtin:shapes`): a shape on a plain ground, so
its pixels are known from the colours. A hit is a map whose strongest patch lies on the shape, at least half
covered by it. "chance" is the part of all patches that would be a hit, and "middle of the image" is the
guess of someone who did not look. Intervals are 95 %, over images.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitrail.evaluate.intervals import Interval, bootstrap
from vitrail.inspect.deletion import Deletion, deletion, maps_of
from vitrail.inspect.pictures import open_pictures
from vitrail.inspect.report import preprocess_of


def pointing(model: Any, views: Tensor) -> dict[str, Interval]:
    """How often the strongest patch of a map lies on the shape."""
    rows, columns = model.config.grid
    on = torch.stack([covered(view, rows, columns) for view in views]).flatten(1)
    hits = {name: on.gather(1, values.argmax(1, keepdim=True))[:, 0] for name, values in maps_of(model, views).items()}
    hits |= {"middle of the image": on[:, (rows // 2) * columns + columns // 2], "chance": on.mean(1)}
    return {name: mean_of(values.numpy()) for name, values in hits.items()}


def mean_of(values: np.ndarray) -> Interval:
    return bootstrap(lambda rows: float(values[rows].mean()), len(values))


def covered(view: Tensor, rows: int, columns: int) -> Tensor:
    """(rows, columns), 1 where a patch is at least half covered by the shape. The ground is the median of the border."""
    border = torch.cat([view[:, 0], view[:, -1], view[:, :, 0], view[:, :, -1]], 1)
    ground = border.median(1).values
    shape = ((view - ground[:, None, None]).abs().amax(0) > 0.35).float()  # the noise of the ground stays below 0.2
    share = F.adaptive_avg_pool2d(shape[None], (rows, columns))[0]
    return (share >= min(0.5, float(share.max()))).float()  # a thin shape: its most covered patch


def told(order: dict[str, Deletion], points: dict[str, Interval] | None, images: int) -> str:
    lines = [f"deletion, {images} images: area under the probability of the class, less is faster; and against random orders"]
    for name, row in order.items():
        gap = row.minus_random
        against = f"{gap.value:+.3f} [{gap.low:+.3f}, {gap.high:+.3f}]  faster on {row.faster:.0%}" if gap else ""
        lines.append(f"  {name:24} {row.area.value:.3f}  {against}")
    if points:
        lines += [f"pointing, {images} images: the strongest patch lies on the shape"]
        lines += [f"  {name:24} {100 * hit.value:5.1f} % [{100 * hit.low:.1f}, {100 * hit.high:.1f}]" for name, hit in points.items()]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights")
    parser.add_argument("data")
    parser.add_argument("--split", default=None)
    parser.add_argument("--images", type=int, default=200)
    parser.add_argument("--pointing", action="store_true", help="the data is builtin:shapes")
    parser.add_argument("--device", default=None)
    parser.add_argument("--json", default=None, help="also write the numbers to this file")
    given = parser.parse_args()
    from vitrail.runtime.device import pick_device
    from vitrail.weights.load import load_model

    model = load_model(given.weights).to(pick_device(given.device))
    pictures = open_pictures(given.data, preprocess_of(model), split=given.split, count=given.images)
    views = torch.cat([batch for _, batch in pictures.batches(64)])
    orders = deletion(model, views)
    points = pointing(model, views) if given.pointing else None
    print(told(orders, points, len(views)))
    if given.json:
        numbers = {"images": len(views), "deletion": {name: dataclasses.asdict(row) for name, row in orders.items()}}
        if points:
            numbers["pointing"] = {name: dataclasses.asdict(hit) for name, hit in points.items()}
        Path(given.json).write_text(json.dumps(numbers, indent=1, default=lambda value: np.asarray(value).tolist()))


if __name__ == "__main__":
    main()
