"""`vitrail eval`: a model's accuracy on a data set, with everything needed to believe it."""

from __future__ import annotations

from typing import Any

import click

from vitrail.cli import emit
from vitrail.commands.measuring import kept, measuring

PROTOCOLS = ["imagenet-v2", "imagenet-a", "imagenet-r", "imagenet-sketch", "imagenet-c", "imagenette"]


@click.command("eval")
@click.argument("weights")
@click.option("--data", required=True, help="Labelled images: a folder, csv, parquet, tar, hf://…, tfds:…, builtin:….")
@click.option("--split", default=None, help="Which part (default: test, else val); an expression like 'train[90%:]' works too.")
@click.option("--out", default=None, type=click.Path(file_okay=False), help="Folder for tables and pictures: per class, confusion, …")
@click.option("--protocol", type=click.Choice(PROTOCOLS), default=None, help="Score a set of ImageNet's family by its convention.")
@click.option(
    "--class-map", type=click.Path(exists=True, dir_okay=False), default=None, help="JSON: class of the data -> output(s) of the model."
)
@click.option(
    "--restrict/--any-answer",
    default=None,
    help="Allow only answers among the data's classes, or count others as wrong (default: restrict; with --class-map: any answer).",
)
@click.option("--real", type=click.Path(exists=True, dir_okay=False), default=None, help="ImageNet ReaL: the file real.json.")
@click.option(
    "--views", type=click.Choice(["none", "flip", "five", "ten"]), default="none", show_default=True, help="Test-time augmentation."
)
@click.option("--calibrate", default=None, metavar="SPLIT", help="Fit a temperature on these other images: val, 'test[:50%]'.")
@click.option("--bootstrap", default=1000, show_default=True, type=click.IntRange(0), help="Draws for intervals; 0: none.")
@click.option("--speed", is_flag=True, help="Measure throughput and latency of the model alone as well.")
@measuring
def command(
    weights: str, data: str, protocol: str | None, out: str | None, cache: str | None, no_cache: bool, as_json: bool, **options: Any
) -> None:
    """Measure WEIGHTS on labelled images.

    Answers are kept, so an interrupted run goes on and a second one asks nothing again. Under
    torchrun the ranks share the images.
    """
    if protocol == "imagenet-c":
        from vitrail.evaluate.corruption import corruption, refuse_other_options

        refuse_other_options(options)
        emit(corruption(weights, data, out=out, cache=kept(cache, no_cache), progress=True, **options), as_json)
        return
    from vitrail.evaluate.classify import evaluate

    emit(evaluate(weights, data, protocol=protocol, out=out, cache=kept(cache, no_cache), progress=True, **options), as_json)
