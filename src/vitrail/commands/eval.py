"""`vitrail eval`: a model's accuracy on a data set, with everything needed to believe it."""

from __future__ import annotations

from pathlib import Path

import click

from vitrail.cli import emit


@click.command("eval")
@click.argument("weights")
@click.option("--data", required=True, help="Labelled images: a folder, csv, parquet, tar, hf://…, builtin:….")
@click.option("--split", default=None, help="Which part (default: test, else val); an expression like 'train[90%:]' works too.")
@click.option(
    "--class-map", type=click.Path(exists=True, dir_okay=False), default=None, help="JSON: class of the data -> output(s) of the model."
)
@click.option("--batch-size", type=int, default=None)
@click.option("--precision", type=click.Choice(["auto", "fp32", "tf32", "bf16", "fp16", "fp64"]), default="auto", show_default=True)
@click.option("--device", default=None, help="cpu, cuda, mps (default: the best there is).")
@click.option("--workers", type=int, default=None, help="Decoding processes (default: by the machine).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(weights: str, data: str, split: str | None, class_map: str | None, as_json: bool, **options: object) -> None:
    """Measure WEIGHTS on labelled images."""
    from vitrail.evaluate.classes import read_map
    from vitrail.evaluate.classify import evaluate

    table = read_map(Path(class_map)) if class_map else None
    emit(evaluate(weights, data, split=split, class_map=table, **options), as_json)  # type: ignore[arg-type]
