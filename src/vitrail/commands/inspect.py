"""`vitrail inspect`: look inside a model, and write what is seen as one page, pictures and numbers."""

from __future__ import annotations

import re

import click

from vitrail.cli import emit
from vitrail.commands.convert import size_of


@click.command("inspect")
@click.argument("weights", required=False)
@click.option("--images", default=None, help="A folder, csv, parquet, builtin:NAME, or one image (default: drawn shapes).")
@click.option("--split", default=None, help="Of the images (default: test, else val, else train).")
@click.option("--out", default=None, type=click.Path(file_okay=False), help="Folder for the report (default: inspect-NAME).")
@click.option("--count", default=128, show_default=True, type=click.IntRange(1), help="Images for statistics, features and mistakes.")
@click.option("--show", default=8, show_default=True, type=click.IntRange(1), help="Images that are drawn with their maps.")
@click.option("--tsne/--pca", default=True, show_default=True, help="The map of the images: neighbours, or principal components.")
@click.option("--image-size", default=None, help="Pixels, 384 or 384x256: look at another size; positions are resampled to it.")
@click.option("--device", default=None, help="cpu, cuda, mps (default: the best there is).")
@click.option("--json", "as_json", is_flag=True, help="Print the numbers as JSON.")
def command(
    weights: str | None,
    images: str | None,
    split: str | None,
    out: str | None,
    count: int,
    show: int,
    tsne: bool,
    image_size: str | None,
    device: str | None,
    as_json: bool,
) -> None:
    """Look inside: filters, positions, attention, features and mistakes, as one HTML page.

    WEIGHTS are a file, a folder or a name (default: the model in the box), of any format
    that Vitrail reads. The page needs no network; the figures are beside it as PNGs, the
    numbers as csv and json.
    """
    from vitrail.inspect.report import inspect

    if weights is None:
        from vitrail.weights.hub import default_model

        weights = default_model()
    out = out or f"inspect-{folder_name(weights)}"
    size = size_of(image_size)
    report = inspect(weights, images, out=out, split=split, count=count, show=show, tsne=tsne, image_size=size, device=device)
    emit(report, as_json)


def folder_name(weights: str) -> str:
    """The last part of a path or URI, without its ending, as a name that any system takes."""
    last = re.split(r"[/\\:]", weights.rstrip("/\\"))[-1]
    stem = re.sub(r"\.(safetensors|npz|pth|pt|bin)$", "", last)
    return re.sub(r"[^\w.-]", "-", stem).strip(".-") or "model"
