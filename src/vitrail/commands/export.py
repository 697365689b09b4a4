"""`vitrail export`: ONNX or torch.export, verified against the model before the file gets its name."""

from __future__ import annotations

from typing import Any

import click

from vitrail.cli import emit


@click.command("export")
@click.argument("weights")
@click.argument("path")
@click.option("--to", default=None, help="onnx or torch-export (default: by the ending, .onnx or .pt2).")
@click.option("--dtype", default="fp32", show_default=True, help="fp32; fp16 or int8 (ONNX, with --data).")
@click.option("--preprocess", is_flag=True, help="Take decoded uint8 images (N, H, W, 3); resize and scale inside.")
@click.option("--fixed-size", is_flag=True, help="The model's own image size only.")
@click.option("--data", default=None, help="Labelled images for fp16 and int8: calibration and the accuracy gate.")
@click.option("--split", default=None, help="The split of --data.")
@click.option("--images", default=512, show_default=True, type=click.IntRange(2), help="Images of --data that are used.")
@click.option("--bound", default=1.0, show_default=True, help="Points of top-1 that fp16 and int8 may lose.")
@click.option("--tolerance", default=2e-5, show_default=True, help="Allowed difference, as a part of the largest logit.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(weights: str, path: str, as_json: bool, **options: Any) -> None:
    """Write WEIGHTS to PATH as ONNX or a torch.export program.

    Batch, height and width are dynamic where the model allows it; class names and preprocessing
    are in the metadata. The file is compared with the model at five sizes and three batches, and
    does not appear if one logit disagrees.
    """
    from vitrail.ship.export import export

    emit(export(weights, path, **options), as_json)
