"""The report as one HTML file: pictures and numbers inside it, nothing fetched, nothing sent.

The page is `page.html` with `page.css` and `page.js` put in, and one JSON text with all the data.
Names of files and classes are data there, never markup; the page's own policy forbids the network.
Maps go in as 8-bit numbers with their peak, and the page draws them; so one image with all its
layers and heads is a few kilobytes.
"""

from __future__ import annotations

import base64
import io
import json
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from vitrail.inspect import words
from vitrail.inspect.figures import filter_sheet, laid_over, raw_sheet, reduced
from vitrail.inspect.sheet import enlarged

if TYPE_CHECKING:
    from vitrail.inspect.report import Report

__all__ = ["page", "payload"]

MOST_CELLS = 32  # a larger grid is averaged down to this many rows and columns, for the page only
THUMB = 40


def page(report: Report) -> str:
    """The whole document."""
    part = lambda name: files("vitrail.inspect").joinpath(name).read_text("utf-8")
    data = json.dumps(payload(report), separators=(",", ":"), allow_nan=False)
    data = data.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
    return part("page.html").replace("/*STYLE*/", part("page.css")).replace("/*DATA*/", data).replace("/*SCRIPT*/", part("page.js"))


def payload(report: Report) -> dict[str, Any]:
    """Everything the page draws, as JSON values."""
    return {
        "name": report.name,
        "facts": facts(report),
        "notes": report.notes,
        "filters": filter_data(report),
        "positions": [position_data(found) for found in report.positions],
        "attention": attention_data(report),
        "pictures": picture_data(report),
        "set": set_data(report),
        "mistakes": mistake_data(report),
    }


def facts(report: Report) -> list[tuple[str, str]]:
    """What stands under the title."""
    model = report.model
    known = [
        ("input", f"{model['image_size'][0]} x {model['image_size'][1]} pixels, {model['channels']} channels"),
        ("grid", f"{model['grid'][0]} x {model['grid'][1]}"),
        ("parameters", f"{model['parameters']:,}"),
        ("images looked at", f"{len(report.images.ids)} of {report.pictures.source.name}"),
    ]
    if "depth" in model:
        known.insert(0, ("shape", f"{model['depth']} layers, {model['heads']} heads, width {model['width']}"))
        known.insert(3, ("read by", READ_BY[model["pool"]] + (" and a distillation token" if model.get("distilled") else "")))
    return known


READ_BY = {
    "token": "the class token",
    "gap": "the mean of the patches",
    "map": "an attention pool",
    "token+gap": "the class token and the mean of the patches",
    "unpooled": "each patch for itself; maps are of their mean",
}


# ---- pictures and numbers as text ----


def jpeg(pixels: np.ndarray) -> str:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "JPEG", quality=85)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()


def png(pixels: np.ndarray) -> str:
    out = io.BytesIO()
    Image.fromarray(pixels).save(out, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()


def packed(maps: Tensor) -> dict[str, Any]:
    """(…, rows, columns) -> bytes of each map in parts of its own peak, and the peaks."""
    flat = maps.detach().double().flatten(0, -3) if maps.ndim > 2 else maps.detach().double()[None]
    peaks = flat.flatten(1).amax(1).clamp_min(0)
    parts = flat.clamp_min(0) / torch.where(peaks > 0, peaks, 1)[:, None, None]
    text = base64.b64encode((parts * 255).round().to(torch.uint8).numpy().tobytes()).decode()
    return {"bytes": text, "peaks": [float(f"{peak:.4g}") for peak in peaks]}


def coarse(maps: Tensor) -> Tensor:
    """At most MOST_CELLS rows and columns; cells are averaged."""
    rows, columns = maps.shape[-2:]
    if max(rows, columns) <= MOST_CELLS:
        return maps
    size = (min(rows, MOST_CELLS), min(columns, MOST_CELLS))
    return F.adaptive_avg_pool2d(maps.flatten(0, -3)[:, None], size)[:, 0].unflatten(0, maps.shape[:-2])


# ---- the parts ----


def filter_data(report: Report) -> dict[str, Any]:
    return {
        "layer": report.filters.layer,
        "hybrid": report.filters.layer != "patch embedding",
        "components": png(filter_sheet(report.filters)),
        "raw": png(raw_sheet(report.filters)),
        "explained": [float(f"{part:.4g}") for part in report.filters.explained[:64]],
        "says": words.about_filters(report.filters),
    }


def position_data(found: Any) -> dict[str, Any]:
    return {
        "kind": found.kind,
        "layer": found.layer + 1,
        "tables": found.tables,
        "grid": list(found.grid),
        "queries": [list(query) for query in found.queries],
        "bytes": base64.b64encode(((found.similarity + 1) * 127.5).round().clamp(0, 255).to(torch.uint8).numpy().tobytes()).decode(),
        "says": words.about_positions(found),
    }


def attention_data(report: Report) -> dict[str, Any] | None:
    found = report.attention
    if found is None:
        return None
    rounded = lambda values: [[float(f"{value:.5g}") for value in row] for row in values.tolist()]
    return {
        "layers": list(found.layers),
        "distance": rounded(found.distance),
        "entropy": rounded(found.entropy),
        "prefix": rounded(found.prefix * 100) if found.prefix.max() > 0 else None,
        "uniform": [float(f"{value:.5g}") for value in found.uniform],
        "says": [words.about_attention(found), words.about_entropy(found)],
    }


def picture_data(report: Report) -> list[dict[str, Any]]:
    shown, entries = report.shown, []
    for number, (place, picture) in enumerate(zip(shown.places, shown.pictures)):
        small = reduced(picture.original)
        down, across = small.shape[0] / picture.original.shape[0], small.shape[1] / picture.original.shape[1]
        top, left, bottom, right = picture.box
        entry: dict[str, Any] = {
            "id": picture.id,
            "place": place,
            "grid": report.model["grid"],
            "image": jpeg(small),
            "size": list(small.shape[:2]),
            "box": [round(top * down, 1), round(left * across, 1), round(bottom * down, 1), round(right * across, 1)],
            "colours": png(enlarged(np.rint(shown.colours[number].numpy() * 255), 224)),
            **told(report, place),
        }
        for name in ("rollout", "gradient", "heads"):
            maps = getattr(shown, name)
            if maps is not None:
                maps = coarse(maps[number] if name == "heads" else maps[number][None])
                entry[name] = {**packed(maps), "grid": list(maps.shape[-2:])}
        if shown.from_patch is not None:
            maps = shown.from_patch[number]  # (layers, heads, N, N): one map a layer, a head and a patch
            entry["from_patch"] = {**packed(maps.unflatten(-1, tuple(report.model["grid"]))), "heads": maps.shape[1]}
        entries.append(entry)
    return entries


def told(report: Report, place: int) -> dict[str, Any]:
    """What an image is and what the model says, where either is known."""
    images = report.images
    entry: dict[str, Any] = {}
    if images.labels is not None and images.classes:
        entry["truth"] = images.classes[int(images.labels[place])]
    if images.logits is not None:
        chances, outputs = images.logits[place].softmax(0).topk(min(3, images.logits.shape[1]))
        entry["said"] = [[report.outputs[int(k)], round(float(p), 4)] for p, k in zip(chances, outputs)]
    return entry


def set_data(report: Report) -> dict[str, Any]:
    images = report.images
    entry: dict[str, Any] = {
        "ids": images.ids,
        "thumbs": [jpeg(thumb(report.pictures.read(place).original)) for place in range(len(images.ids))],
        "near": images.near.tolist(),
        "alike": [[round(value, 3) for value in row] for row in images.alike.tolist()],
        "method": images.method,
        "classes": list(images.classes),
        "labels": images.labels.tolist() if images.labels is not None else None,
    }
    if images.flat is not None:
        span = images.flat.amax(0) - images.flat.amin(0)
        unit = (images.flat - images.flat.amin(0)) / span.clamp_min(1e-12)
        entry["flat"] = [[round(x, 4), round(y, 4)] for x, y in unit.tolist()]
    return entry


def thumb(pixels: np.ndarray) -> np.ndarray:
    """The middle square, small."""
    side = min(pixels.shape[:2])
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    middle = Image.fromarray(np.ascontiguousarray(pixels[top : top + side, left : left + side]))
    return np.asarray(middle.resize((THUMB, THUMB), Image.Resampling.LANCZOS if side > THUMB else Image.Resampling.NEAREST))


def mistake_data(report: Report) -> dict[str, Any] | None:
    if report.wrong is None:
        return None
    worst = []
    for mistake in report.mistakes:
        picture = report.pictures.read(mistake.place)
        entry: dict[str, Any] = {
            "id": picture.id,
            "truth": report.images.classes[mistake.truth],
            "said": report.images.classes[mistake.said],
            "confidence": round(mistake.confidence, 4),
            "image": jpeg(reduced(picture.original, 224)),
        }
        if mistake.said_map is not None and mistake.truth_map is not None:
            entry["for_said"] = jpeg(laid_over(picture, mistake.said_map, side=224))
            entry["for_truth"] = jpeg(laid_over(picture, mistake.truth_map, side=224))
        worst.append(entry)
    return {"wrong": report.wrong[0], "of": report.wrong[1], "worst": worst}
