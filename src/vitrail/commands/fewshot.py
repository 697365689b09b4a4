"""`vitrail fewshot`: the paper's few-shot linear accuracy on frozen features."""

from __future__ import annotations

from typing import Any

import click

from vitrail.cli import emit
from vitrail.commands.measuring import kept, measuring, numbers


@click.command("fewshot")
@click.argument("weights")
@click.option("--data", required=True, help="Labelled images: a folder, csv, parquet, tar, hf://…, tfds:…, vtab:…, builtin:….")
@click.option("--shots", default="1,5,10,25", show_default=True, help="Training images a class.")
@click.option("--seeds", default="0,1,2", show_default=True, help="Each draws other training images.")
@click.option("--l2", default="1024", show_default=True, help="Regularisers (the paper's code: 1024); more of them cost little.")
@click.option("--train-split", default=None, help="Where training images are drawn (default: train).")
@click.option("--test-split", default=None, help="What is measured (default: test, else val).")
@click.option(
    "--view", type=click.Choice(["paper", "eval"]), default="paper", show_default=True, help="Squash and crop, or as the weights want."
)
@measuring
def command(
    weights: str, data: str, shots: str, seeds: str, l2: str, cache: str | None, no_cache: bool, as_json: bool, **options: Any
) -> None:
    """Few-shot accuracy of WEIGHTS: closed-form least squares on what the head reads.

    Features are kept, so a second call with other shots, seeds or l2 takes moments. Under
    torchrun the ranks share the work.
    """
    from vitrail.evaluate.fewshot import fewshot

    result = fewshot(
        weights, data, shots=numbers("--shots", shots, int), seeds=numbers("--seeds", seeds, int), l2=numbers("--l2", l2, float),
        cache=kept(cache, no_cache), progress=True, **options,
    )  # fmt: skip
    emit(result, as_json)
