"""`vitrail finetune`: weights and labelled pictures in, a model and its accuracy out."""

from __future__ import annotations

from pathlib import Path

import click

from vitrail.cli import emit
from vitrail.errors import UsageError


@click.command("finetune")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--model", default=None, help="Weights: a path or a name (default: the model in the box).")
@click.option(
    "--data", required=True, help="Labelled images: a folder with one sub-folder a class, csv, parquet, tar, hf://…, builtin:fashion."
)
@click.option("--out", type=click.Path(path_type=Path), default=None, help="Where everything goes (default: runs/MODEL-DATA).")
@click.option("--image-size", default=None, help="Pixels: 384, or 384x256 (default: by the weights and the images).")
@click.option("--minutes", type=float, default=None, help="At most this long (default: 10 without a GPU).")
@click.option("--steps", type=int, default=None, help="Updates (default: by the number of images).")
@click.option("--epochs", type=float, default=None, help="Passes over the training images, instead of --steps.")
@click.option("--lr", type=float, default=None, help="Learning rate (default: by the batch size).")
@click.option("--batch-size", type=int, default=None, help="Images an update (default: 512; 32 without a GPU).")
@click.option("--train", "adapt", type=click.Choice(["all", "head", "lora"]), default="all", show_default=True, help="Which weights learn.")
@click.option("--freeze", type=int, default=0, metavar="N", help="Keep the first N blocks as they are.")
@click.option("--lora-rank", type=int, default=8, show_default=True, help="With --train lora.")
@click.option("--balanced", is_flag=True, help="Show every class equally often.")
@click.option("--class-weights", is_flag=True, help="Weigh a class inversely to its frequency.")
@click.option(
    "--early-stop", type=int, default=None, metavar="N", help="Stop after N evaluations without a better one, on a held-out part."
)
@click.option("--seed", type=int, default=0, show_default=True, help="Every random draw follows from it.")
@click.option("--device", default=None, help="cpu, cuda, mps (default: the best there is).")
@click.option("--no-report", is_flag=True, help="Skip report.html.")
@click.option("--fresh", is_flag=True, help="Refuse to go on with an earlier run in --out.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    overrides: tuple[str, ...], model: str | None, data: str, out: Path | None, image_size: str | None, minutes: float | None,
    steps: int | None, epochs: float | None, lr: float | None, batch_size: int | None, adapt: str, freeze: int, lora_rank: int,
    balanced: bool, class_weights: bool, early_stop: int | None, seed: int, device: str | None, no_report: bool, fresh: bool, as_json: bool,
) -> None:  # fmt: skip
    """Fine-tune public weights on your labelled images.

    No other option is needed: the schedule, the resolution and the held-out images follow from
    the data, and the first lines say what was chosen and why. The same command goes on where it
    was stopped. KEY=VALUE sets any key of the recipe, for example optim.name=adamw.
    """
    from vitrail.config import AdaptSpec
    from vitrail.train.finetune import finetune
    from vitrail.train.proposal import Wishes

    wishes = Wishes(
        image_size=_size(image_size), steps=steps, epochs=epochs, minutes=minutes, lr=lr, batch_size=batch_size,
        adapt=AdaptSpec(train=adapt, frozen_blocks=freeze, lora_rank=lora_rank),  # type: ignore[arg-type]
        balanced=balanced, class_weights=class_weights, early_stop=early_stop, seed=seed,
    )  # fmt: skip
    result = finetune(
        model, data, out=out, wishes=wishes, overrides=overrides, device=device, report=not no_report, resume=not fresh,
        progress=not as_json, say=None if as_json else lambda line: click.echo(f"  {line}", err=True),
    )  # fmt: skip
    emit(result, as_json)


def _size(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    rows, _, columns = text.partition("x")
    if not rows.isdigit() or (columns and not columns.isdigit()):
        raise UsageError(f"--image-size {text!r} is no size.", hint="384, or 384x256 (rows x columns)")
    return int(rows), int(columns or rows)
