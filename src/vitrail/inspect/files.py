"""A report as files: report.html, one PNG a figure, the numbers as csv and json."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from PIL import Image

from vitrail.errors import ResourceError
from vitrail.inspect.figures import figures
from vitrail.inspect.filters import Filters
from vitrail.inspect.page import page

if TYPE_CHECKING:
    from vitrail.inspect.report import Report

__all__ = ["write"]


def write(report: Report, folder: Path) -> Path:
    """Everything, into a folder that is made if need be."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, pixels in figures(report).items():
            Image.fromarray(pixels).save(folder / f"{name}.png")
        if report.attention is not None:
            write_csv(folder / "attention.csv", report.attention.rows())
        write_csv(folder / "filters.csv", explained_rows(report.filters))
        write_csv(folder / "images.csv", image_rows(report))
        np.savez_compressed(folder / "maps.npz", **arrays(report))  # type: ignore[arg-type]
        report.path = folder
        (folder / "report.json").write_text(json.dumps(report.to_dict(), indent=1), "utf-8")
        (folder / "report.html").write_text(page(report), "utf-8")
    except OSError as error:
        raise ResourceError(f"{folder}: the report cannot be written ({error.strerror or error}).", hint="choose another --out") from None
    return folder


# ---- numbers ----


def write_csv(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    rows = list(rows)
    with path.open("w", newline="", encoding="utf-8") as stream:
        table = csv.DictWriter(stream, list(rows[0]) if rows else [])
        table.writeheader()
        table.writerows(rows)


def explained_rows(found: Filters) -> list[dict[str, float | int]]:
    total = found.explained.cumsum(0)
    return [
        {"component": number + 1, "explained": float(part), "cumulative": float(total[number])}
        for number, part in enumerate(found.explained)
    ]


def image_rows(report: Report) -> list[dict[str, Any]]:
    """One row an image: its place on the map, its nearest other, what it is and what the model says."""
    images, rows = report.images, []
    for place, name in enumerate(images.ids):
        row: dict[str, Any] = {"id": name}
        if images.labels is not None and images.classes:
            row["truth"] = images.classes[int(images.labels[place])]
        if images.logits is not None:
            output = int(images.logits[place].argmax())
            row |= {"said": report.outputs[output], "confidence": float(images.logits[place].softmax(0)[output])}
        if images.flat is not None:
            row |= {"x": float(images.flat[place, 0]), "y": float(images.flat[place, 1])}
        if images.near.shape[1]:
            row |= {"nearest": images.ids[int(images.near[place, 0])], "cosine": float(images.alike[place, 0])}
        rows.append(row)
    return rows


def arrays(report: Report) -> dict[str, np.ndarray]:
    """The maps of the images shown, the statistics, the similarities: what the figures are made of."""
    shown, found = report.shown, {"colours": report.shown.colours, "features": report.images.features}
    found |= {name: value for name in ("rollout", "gradient", "heads") if (value := getattr(shown, name)) is not None}
    if report.attention is not None:
        found |= {"distance": report.attention.distance, "entropy": report.attention.entropy}
    found |= {f"positions_layer{p.layer + 1}": p.similarity for p in report.positions}
    found |= {"components": report.filters.components}
    return {name: value.numpy().astype(np.float32) for name, value in found.items()}
