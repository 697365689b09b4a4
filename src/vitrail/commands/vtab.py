"""`vitrail vtab`: 19 tasks with the official splits."""

from __future__ import annotations

from typing import Any

import click

from vitrail.cli import emit
from vitrail.commands.measuring import kept, measuring, numbers
from vitrail.errors import UsageError


@click.command("vtab")
@click.argument("weights")
@click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--root", default=None, type=click.Path(), help="The folder of TFDS (default: TFDS_DATA_DIR, else ~/tensorflow_datasets).")
@click.option("--tasks", default=None, help="Only these, cifar100,dtd (default: all whose data are here).")
@click.option("--from", "elsewhere", multiple=True, metavar="TASK=ADDRESS", help="Another copy of a task's data (not the official split).")
@click.option("--ids", multiple=True, metavar="TASK=FILE", help="JSON lists of the official images of that copy: train800, val200, test.")
@click.option("--linear", is_flag=True, help="A linear classifier on frozen features instead of fine-tuning.")
@click.option("--method", type=click.Choice(["ridge", "lbfgs"]), default="ridge", show_default=True, help="With --linear: which.")
@click.option("--dev", is_flag=True, help="Train on train800, measure on val200: to choose a setting without the test images.")
@click.option("--seeds", default="0", show_default=True, help="A fine-tuning of every task each (the paper: three).")
@click.option("--out", default=None, type=click.Path(file_okay=False), help="Directory of the runs (default: runs/vtab-WEIGHTS).")
@click.option("--keep", is_flag=True, help="Keep the weights and checkpoints of every task.")
@click.option("--quiet", is_flag=True, help="No progress line.")
@measuring
def command(
    weights: str, overrides: tuple[str, ...], tasks: str | None, elsewhere: tuple[str, ...], ids: tuple[str, ...], linear: bool,
    seeds: str, quiet: bool, cache: str | None, no_cache: bool, as_json: bool, **options: Any,
) -> None:  # fmt: skip
    """VTAB-1k of WEIGHTS: every task fine-tuned on its 1,000 images as in Table 4, measured on its whole test split.

    Data are folders that TFDS prepared; TensorFlow is not needed. The same command goes on where
    it was stopped. KEY=VALUE changes the recipe of all tasks (train.steps=500). --batch-size,
    --workers and the cache are of --linear.
    """
    from vitrail.train.vtab import vtab

    asking = {name: options.pop(name) for name in ("batch_size", "precision", "workers", "allow")}
    asking.pop("allow")
    if linear:
        options |= {**asking, "cache": kept(cache, no_cache)}
    elif asking["batch_size"] or asking["workers"] is not None or asking["precision"] != "auto":
        raise UsageError("fine-tuning takes its options from the recipe.", hint="train.batch_size=256 data.workers=4 train.precision=bf16")
    result = vtab(
        weights, overrides=overrides, tasks=tasks.split(",") if tasks else (), elsewhere=pairs("--from", elsewhere),
        ids=pairs("--ids", ids), linear=linear, seeds=numbers("--seeds", seeds, int), progress=not quiet,
        say=None if quiet else lambda text: click.echo(text, err=True), **options,
    )  # fmt: skip
    emit(result, as_json)


def pairs(option: str, texts: tuple[str, ...]) -> dict[str, str]:
    """'cifar100=hf://datasets/cifar100' -> {"cifar100": …}."""
    found = {}
    for text in texts:
        task, sign, value = text.partition("=")
        if not sign or not task or not value:
            raise UsageError(f"{option} {text!r} does not say which task.", hint=f"{option} cifar100=ADDRESS")
        found[task] = value
    return found
