"""A model's card as a README: what it is, what it was measured to do, what it costs, where it ends.

Everything in it comes from the card, the configuration and the weights; where the card is
silent the README says that nobody said, instead of leaving the section out.
"""

from __future__ import annotations

import io
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vitrail.model.cost import cost_of
from vitrail.runtime.disk import write_atomic
from vitrail.weights.card import Card, card_of

__all__ = ["Readme", "render", "write_readme"]

UNSAID = "The card does not say."
LIMITS = (
    "It names one of the classes below for any image at all, also for an image of something else.",
    "Probabilities are those of its training data's classes and frequencies; measure them on yours (`vitrail eval`).",
    "Its mistakes are not spread evenly over people, places and cameras. Where that matters, measure each group.",
)


@dataclass
class Readme:
    path: Path
    figures: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        return {"path": str(self.path), "figures": list(self.figures)}

    def __str__(self) -> str:
        return f"{self.path}" + (f" with {', '.join(self.figures)}" if self.figures else "")


def write_readme(model: nn.Module, path: Path, *, figures: bool = True, library: str = "vitrail") -> Readme:
    """README.md (or the named file) with its pictures beside it."""
    target = path / "README.md" if path.is_dir() or not path.suffix else path
    target.parent.mkdir(parents=True, exist_ok=True)
    drawn = pictures(model) if figures else {}
    for name, data in drawn.items():
        write_atomic(target.parent / name, data)
    write_atomic(target, render(card_of(model), tuple(drawn), library=library).encode())
    return Readme(target, tuple(drawn))


def render(card: Card, figures: Iterable[str] = (), *, library: str = "vitrail") -> str:
    parts = [front_matter(card, library), f"# {card.name or 'A Vision Transformer'}", summary(card)]
    for name in figures:
        parts.append(f"![{CAPTIONS.get(name, name)}]({name})\n\n*{CAPTIONS.get(name, name)}*")
    parts += [
        "## Use",
        usage(card),
        "## What it was trained on",
        card.data or UNSAID,
        "## What was measured",
        metrics_table(card.metrics),
        "## What it costs",
        cost_table(card),
        "## Limits",
        "\n".join(f"- {line}" for line in [*LIMITS, *own_limits(card)]),
        "## How it was made",
        making(card),
        "## Preparing an image",
        code(dict(card.transform().to_dict()), "json"),
        "## Classes",
        class_list(card),
    ]
    return "\n\n".join(parts) + "\n"


def front_matter(card: Card, library: str) -> str:
    """What a hub reads: plain values, each quoted as JSON, which YAML takes."""
    lines = ["---"]
    if card.license:
        lines.append(f"license: {json.dumps(card.license)}")
    lines += [
        f"library_name: {library}",
        "pipeline_tag: image-classification",
        "tags:",
        "- vision-transformer",
        "- image-classification",
        "---",
    ]
    return "\n".join(lines)


def summary(card: Card) -> str:
    config = card.config
    rows, columns = config.image_size
    kind = {"vit": "Vision Transformer", "bit": "BiT ResNet", "axial": "Axial Vision Transformer"}.get(
        str(card.model.get("family", "vit")), "model"
    )
    if getattr(config, "stem", None):
        kind = "hybrid of a ResNet and a Vision Transformer"
    return f"A {kind} for {config.classes:,} classes at {rows} x {columns} pixels. License of the weights: {card.license or 'not said'}."


def usage(card: Card) -> str:
    lines = [
        "vitrail predict . photos/        # classes with probabilities",
        "vitrail serve .                  # over HTTP, with a page to try it",
    ]
    return code("\n".join(lines), "sh")


def metrics_table(metrics: Mapping[str, Any]) -> str:
    """One row a number; numbers inside groups are named group.number."""
    rows = list(flat(metrics))
    if not rows:
        return UNSAID + " Measure it: `vitrail eval . YOUR-IMAGES`."
    return "\n".join(["| measure | value |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])


def flat(table: Mapping[str, Any], prefix: str = "") -> Iterable[tuple[str, str]]:
    for name, value in table.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{prefix}{name}.")
        elif isinstance(value, float):
            yield f"{prefix}{name}", f"{value:.4g}"
        else:
            yield f"{prefix}{name}", ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def cost_table(card: Card) -> str:
    cost = cost_of(card.config)
    rows = [
        ("parameters", f"{cost.parameters:,}"),
        ("multiply-accumulates an image", f"{cost.macs / 1e9:.2f} billion" if cost.macs >= 1e8 else f"{cost.macs / 1e6:.2f} million"),
        ("tokens", f"{cost.tokens:,}"),
        ("weights in float32", f"{4 * cost.parameters / 1e6:.1f} MB"),
    ]
    return "\n".join(["| | |", "| --- | --- |", *(f"| {name} | {value} |" for name, value in rows)])


def own_limits(card: Card) -> list[str]:
    rows, columns = card.config.image_size
    lines = [f"It sees {rows} x {columns} pixels: what is smaller than a few of them after resizing is not there for it."]
    return lines + [f"{note}." if not note.endswith(".") else note for note in card.notes]


def making(card: Card) -> str:
    lines = [f"- origin of the weights: {card.origin}"]
    lines += [f"- from: {parent}" for parent in card.parents]
    lines += [f"- {name}: {value}" for name, value in card.numerics.items()]
    text = "\n".join(lines)
    if card.recipe:
        text += "\n\n" + code(dict(card.recipe), "json")
    return text


def class_list(card: Card) -> str:
    if not card.classes:
        return UNSAID
    listed = "\n".join(f"{number}. {name}" for number, name in enumerate(card.classes))
    return f"<details><summary>{len(card.classes):,} names, counted from 0</summary>\n\n{listed}\n\n</details>"


def code(body: Any, language: str) -> str:
    text = body if isinstance(body, str) else json.dumps(body, indent=1, default=str)
    return f"```{language}\n{text}\n```"


# ---------------------------------------------------------------- figures

CAPTIONS = {
    "filters.png": "Principal components of the first layer's filters.",
    "positions.png": "Similarity of each patch's position embedding to all others.",
}


def pictures(model: nn.Module) -> dict[str, bytes]:
    """The two figures that need no images, where the model has what they show."""
    from vitrail.inspect.figures import filter_sheet, position_sheet
    from vitrail.inspect.filters import filters
    from vitrail.inspect.positions import position_similarity

    drawn = {"filters.png": png_of(filter_sheet(filters(model)))}
    if getattr(model.config, "position", None) in ("learned", "learned2d", "sincos2d"):
        drawn["positions.png"] = png_of(position_sheet(position_similarity(model)))
    return drawn


def png_of(image: Any) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    Image.fromarray(np.asarray(image, np.uint8)).save(out, "PNG", optimize=True)
    return out.getvalue()
