"""The figures of a report as pixels: what the PNG files hold, and what the page shows as it is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image
from torch import Tensor

from vitrail.inspect.colour import viridis
from vitrail.inspect.filters import Filters, to_unit
from vitrail.inspect.overlay import overlay
from vitrail.inspect.positions import Positions
from vitrail.inspect.sheet import captioned, enlarged, scatter, sheet

if TYPE_CHECKING:
    from vitrail.inspect.report import Report

__all__ = ["figures", "filter_sheet", "laid_over", "position_sheet", "raw_sheet", "reduced"]

RAW_SHOWN = 128
SIDE = 448  # the longer side of a picture


def figures(report: Report) -> dict[str, np.ndarray]:
    """Name -> uint8 RGB, for every figure there is."""
    shown = report.shown
    found = {"filters": filter_sheet(report.filters), "filters_raw": raw_sheet(report.filters)}
    for positions in report.positions:
        found["positions" if len(report.positions) == 1 else f"positions_layer{positions.layer + 1}"] = position_sheet(positions)
    if (stats := report.attention) is not None:
        layout = {"names": stats.layers, "across": "layer"}
        found["attention_distance"] = scatter(
            stats.distance.tolist(), title="Mean attention distance, a dot a head; the bar is uniform attention",
            up="pixels", lines=stats.uniform.tolist(), **layout,  # type: ignore[arg-type]
        )  # fmt: skip
        found["attention_entropy"] = scatter(
            stats.entropy.tolist(), title="Entropy of attention, a dot a head", up="bits", **layout  # type: ignore[arg-type]
        )  # fmt: skip
    found["token_colours"] = beside(report, [enlarged(np.rint(c.numpy() * 255), SIDE // 2) for c in shown.colours])
    for name, maps in (("rollout", shown.rollout), ("gradient", shown.gradient)):
        if maps is not None:
            found[name] = beside(
                report, [laid_over(p, m, style="paper" if name == "rollout" else "heat") for p, m in zip(shown.pictures, maps)]
            )
    if report.mistakes and report.mistakes[0].said_map is not None:
        found["mistakes"] = mistake_sheet(report)
    return found


def reduced(pixels: np.ndarray, side: int = SIDE) -> np.ndarray:
    """At most `side` pixels on the longer side; a small picture is enlarged by whole pixels instead."""
    height, width = pixels.shape[:2]
    if max(height, width) <= side:
        return enlarged(pixels, side * height // max(height, width)) if max(height, width) * 2 <= side else pixels
    size = (max(1, round(width * side / max(height, width))), max(1, round(height * side / max(height, width))))
    return np.asarray(Image.fromarray(pixels).resize(size, Image.Resampling.LANCZOS))


def laid_over(picture: Any, map: Tensor, *, style: str = "heat", side: int = SIDE) -> np.ndarray:
    """A map over the upright original, at the size of a figure."""
    small = reduced(picture.original, side)
    times = small.shape[0] / picture.original.shape[0], small.shape[1] / picture.original.shape[1]
    box = (picture.box[0] * times[0], picture.box[1] * times[1], picture.box[2] * times[0], picture.box[3] * times[1])
    return overlay(small, map.numpy(), box, style=style)


def beside(report: Report, pictures: list[np.ndarray]) -> np.ndarray:
    """Input and result side by side, two such pairs a row: the layout of Figures 6 and 14."""
    cells = []
    for picture, made in zip(report.shown.pictures, pictures):
        cells += [captioned(reduced(picture.original, SIDE // 2), picture.id), captioned(reduced(made, SIDE // 2), "")]
    return sheet(cells, 4)


def filter_pictures(found: Tensor) -> np.ndarray:
    """(count, rows, columns, channels) -> uint8 RGB, each stretched by itself; other than 1 or 3 channels: their mean in grey."""
    colours = found if found.shape[-1] in (1, 3) else found.mean(-1, keepdim=True)
    unit = np.rint(to_unit(colours).numpy() * 255).astype(np.uint8)
    return unit if unit.shape[-1] == 3 else unit.repeat(3, -1)


def filter_sheet(found: Filters) -> np.ndarray:
    return sheet([enlarged(picture, 64) for picture in filter_pictures(found.components)], 7)


def raw_sheet(found: Filters) -> np.ndarray:
    """The strongest filters, strongest first."""
    order = found.raw.flatten(1).norm(dim=1).argsort(descending=True)[:RAW_SHOWN]
    return sheet([enlarged(picture, 48) for picture in filter_pictures(found.raw[order])], 16)


def position_sheet(found: Positions) -> np.ndarray:
    """One tile a query patch, in the patches' own layout."""
    colours = np.rint(viridis((found.similarity.numpy() + 1) / 2)).astype(np.uint8)
    side = max(found.grid[0], min(96, 1400 // len({row for row, _ in found.queries})))
    return sheet([enlarged(tile, side) for tile in colours], len({column for _, column in found.queries}), gap=3)


def mistake_sheet(report: Report) -> np.ndarray:
    cells, names = [], report.images.classes
    for mistake in report.mistakes:
        picture = report.pictures.read(mistake.place)
        assert mistake.said_map is not None and mistake.truth_map is not None
        cells += [
            captioned(reduced(picture.original, SIDE // 2), picture.id),
            captioned(laid_over(picture, mistake.said_map, side=SIDE // 2), f"said {names[mistake.said]} {mistake.confidence:.0%}"),
            captioned(laid_over(picture, mistake.truth_map, side=SIDE // 2), f"is {names[mistake.truth]}"),
        ]
    return sheet(cells, 6)
