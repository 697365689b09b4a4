"""`vitrail knn`: nearest neighbours in frozen features."""

from __future__ import annotations

from typing import Any

import click

from vitrail.cli import emit
from vitrail.errors import UsageError


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
@click.option("--image-size", type=int, default=None, help="Pixels; positions are interpolated (default: as trained).")
@click.option("--batch-size", type=int, default=None)
@click.option("--precision", type=click.Choice(["auto", "fp32", "tf32", "bf16", "fp16", "fp64"]), default="auto", show_default=True)
@click.option("--device", default=None, help="cpu, cuda, mps (default: the best there is).")
@click.option("--workers", type=int, default=None, help="Decoding processes (default: by the machine).")
@click.option("--cache", default=None, type=click.Path(file_okay=False), help="Folder for features (default: Vitrail's cache).")
@click.option("--no-cache", is_flag=True, help="Keep features in memory only.")
@click.option("--allow", multiple=True, help="A kind of data problem to accept (see vitrail data check).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(weights: str, data: str, counts: str, cache: str | None, no_cache: bool, as_json: bool, **options: Any) -> None:
    """Nearest-neighbour accuracy of WEIGHTS, weighted as DINO weighs votes. Nothing is trained."""
    from vitrail.evaluate.knn import knn

    try:
        k = [int(one) for one in counts.replace(" ", "").split(",") if one]
    except ValueError:
        raise UsageError(f"--k {counts!r} is no list of numbers.", hint="--k 10,20") from None
    emit(knn(weights, data, k=k, cache=False if no_cache else cache or True, **options), as_json)
