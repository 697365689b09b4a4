"""`vitrail probe`: a linear classifier on frozen features."""

from __future__ import annotations

from typing import Any

import click

from vitrail.cli import emit
from vitrail.commands.measuring import kept, measuring, numbers


@click.command("probe")
@click.argument("weights")
@click.option("--data", required=True, help="Labelled images: a folder, csv, parquet, tar, hf://…, tfds:…, vtab:…, builtin:….")
@click.option(
    "--method", type=click.Choice(["lbfgs", "ridge"]), default="lbfgs", show_default=True, help="Logistic regression, or closed form."
)
@click.option("--l2", default=None, help="Regularisers to choose from, 10,1,0.1 (default: a grid).")
@click.option("--train-split", default=None, help="Training images (default: train).")
@click.option("--dev-split", default=None, help="Images that choose the regulariser (default: a tenth of the training images).")
@click.option("--test-split", default=None, help="What is measured (default: test, else val).")
@click.option(
    "--view", type=click.Choice(["eval", "paper"]), default="eval", show_default=True, help="As the weights want, or squash and crop."
)
@click.option("--seed", default=0, show_default=True, help="Of the held-out tenth.")
@measuring
def command(weights: str, data: str, l2: str | None, cache: str | None, no_cache: bool, as_json: bool, **options: Any) -> None:
    """Linear-probe accuracy of WEIGHTS: the regulariser is chosen on held-out images, the test images choose nothing."""
    from vitrail.evaluate.probe import probe

    strengths = numbers("--l2", l2, float) if l2 else None
    emit(probe(weights, data, l2=strengths, cache=kept(cache, no_cache), progress=True, **options), as_json)
