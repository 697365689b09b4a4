"""`vitrail probe`: a linear classifier on frozen features."""

from __future__ import annotations

from typing import Any

import click

from vitrail.cli import emit
from vitrail.errors import UsageError


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
@click.option("--image-size", type=int, default=None, help="Pixels; positions are interpolated (default: as trained).")
@click.option("--batch-size", type=int, default=None)
@click.option("--precision", type=click.Choice(["auto", "fp32", "tf32", "bf16", "fp16", "fp64"]), default="auto", show_default=True)
@click.option("--device", default=None, help="cpu, cuda, mps (default: the best there is).")
@click.option("--workers", type=int, default=None, help="Decoding processes (default: by the machine).")
@click.option("--cache", default=None, type=click.Path(file_okay=False), help="Folder for features (default: Vitrail's cache).")
@click.option("--no-cache", is_flag=True, help="Keep features in memory only.")
@click.option("--allow", multiple=True, help="A kind of data problem to accept (see vitrail data check).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(weights: str, data: str, l2: str | None, cache: str | None, no_cache: bool, as_json: bool, **options: Any) -> None:
    """Linear-probe accuracy of WEIGHTS: the regulariser is chosen on held-out images, the test images choose nothing."""
    from vitrail.evaluate.probe import probe

    try:
        strengths = [float(one) for one in l2.replace(" ", "").split(",") if one] if l2 else None
    except ValueError:
        raise UsageError(f"--l2 {l2!r} is no list of numbers.", hint="--l2 10,1,0.1") from None
    emit(probe(weights, data, l2=strengths, cache=False if no_cache else cache or True, **options), as_json)
