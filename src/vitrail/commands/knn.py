"""`vitrail knn`: nearest neighbours in frozen features."""

from __future__ import annotations

from typing import Any

import click

from vitrail.cli import emit
from vitrail.commands.measuring import kept, measuring, numbers


@click.command("knn")
@click.argument("weights")
@click.option("--data", required=True, help="Labelled images: a folder, csv, parquet, tar, hf://…, tfds:…, vtab:…, builtin:….")
@click.option("--k", "counts", default="10,20,100,200", show_default=True, help="Neighbours that vote.")
@click.option("--temperature", default=0.07, show_default=True, help="A vote weighs exp(cosine / temperature).")
@click.option("--train-split", default=None, help="The neighbours (default: train).")
@click.option("--test-split", default=None, help="What is measured (default: test, else val).")
@click.option(
    "--view", type=click.Choice(["eval", "paper"]), default="eval", show_default=True, help="As the weights want, or squash and crop."
)
@measuring
def command(weights: str, data: str, counts: str, cache: str | None, no_cache: bool, as_json: bool, **options: Any) -> None:
    """Nearest-neighbour accuracy of WEIGHTS, weighted as DINO weighs votes. Nothing is trained."""
    from vitrail.evaluate.knn import knn

    emit(knn(weights, data, k=numbers("--k", counts, int), cache=kept(cache, no_cache), progress=True, **options), as_json)
