"""`vitrail sweep RECIPE key=a,b,c`: choose on held-out training images, then train the choice on all of them."""

from __future__ import annotations

import click

from vitrail.cli import emit
from vitrail.errors import UsageError


@click.command("sweep")
@click.argument("recipe", required=False)
@click.argument("assignments", nargs=-1, metavar="[KEY=VALUE[,VALUE]...]...")
@click.option("--model", default=None, help="Weights to fine-tune, as `vitrail finetune` would, instead of a recipe.")
@click.option("--data", default=None, help="With --model: the labelled images.")
@click.option("--minutes", type=float, default=None, help="With --model: at most this long a run (default: 10 without a GPU).")
@click.option("--steps", type=int, default=None, help="With --model: updates a run.")
@click.option("--out", default=None, type=click.Path(), help="Directory of the sweep (default: runs/sweep-RECIPE).")
@click.option("--dev-percent", type=float, default=None, help="Part of the training images to choose by (default: the recipe's).")
@click.option("--seeds", type=int, default=None, help="Final runs on all training images; 0: only choose (default: the recipe's).")
@click.option("--keep", is_flag=True, help="Keep the weights and checkpoints of every point.")
@click.option("--device", default=None, help="cpu, cuda, cuda:1 (default: the best there is).")
@click.option("--quiet", is_flag=True, help="No progress line.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    recipe: str | None, assignments: tuple[str, ...], model: str | None, data: str | None, minutes: float | None, steps: int | None,
    out: str | None, dev_percent: float | None, seeds: int | None, keep: bool, device: str | None, quiet: bool, as_json: bool,
) -> None:  # fmt: skip
    """Try every point of a grid, each with part of the training images held out; train the best on all of them.

    RECIPE as in `vitrail train`. A KEY with several values is an axis of the grid; without one
    the recipe's own grid is used (the rows of Table 4 have the paper's). Example:

    vitrail sweep table-4:pets model.weights=B16.npz data.train=pets/ optim.lr=0.003,0.01,0.03

    vitrail sweep --model B16.npz --data photos/        tries Table 4's rates on your own images

    The same command goes on where it was stopped; a longer grid or more --seeds adds to it.
    """
    from vitrail.runtime.distributed import is_main
    from vitrail.train.grid import read_grid
    from vitrail.train.sweep import sweep

    if model is not None or data is not None:
        assignments = (recipe, *assignments) if recipe is not None else assignments
        recipe = None
    fixed, grid = read_grid(assignments)
    if recipe is not None:
        from vitrail.config import load_recipe

        chosen = load_recipe(recipe, fixed)
    elif model is not None and data is not None:
        from vitrail.train.finetune import plan_for
        from vitrail.train.proposal import Wishes

        chosen = plan_for(model, data, Wishes(minutes=minutes, steps=steps), fixed, device)
    else:
        raise UsageError("What should be swept?", hint="vitrail sweep RECIPE optim.lr=0.01,0.03, or vitrail sweep --model W --data photos/")
    where = out or f"runs/sweep-{(chosen.name or recipe or 'recipe').replace('/', '-').replace(':', '-')}"
    result = sweep(
        chosen, where, grid=grid, dev_percent=dev_percent, seeds=seeds, keep=keep, device=device, progress=not quiet,
        say=None if as_json or quiet else lambda line: click.echo(line, err=True),
    )  # fmt: skip
    if is_main():
        emit(result, as_json)
