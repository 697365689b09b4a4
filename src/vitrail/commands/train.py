"""`vitrail train RECIPE key=value …`: run a recipe; the same command goes on where it was stopped."""

from __future__ import annotations

from typing import Any

import click

from vitrail.cli import emit


@click.command("train")
@click.argument("recipe", required=False)
@click.argument("assignments", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--out", default=None, type=click.Path(), help="Directory of the run (default: runs/RECIPE).")
@click.option("--device", default=None, help="cpu, cuda, cuda:1 (default: the best there is).")
@click.option("--override", is_flag=True, help="Resume although the recipe differs from the one the run was started with.")
@click.option("--accept-dataset-change", is_flag=True, help="Resume although the training images differ.")
@click.option("--fresh", is_flag=True, help="Refuse a directory that already holds a run, instead of resuming it.")
@click.option("--strict", is_flag=True, help="A damaged checkpoint is an error (5), not a reason to take the one before.")
@click.option("--list", "listing", is_flag=True, help="Name every packaged recipe, with the figure it is held against.")
@click.option("--show", is_flag=True, help="Print the recipe with its overrides as TOML, and do nothing.")
@click.option("--quiet", is_flag=True, help="No progress line.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    recipe: str | None,
    assignments: tuple[str, ...],
    out: str | None,
    listing: bool,
    show: bool,
    fresh: bool,
    quiet: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Run a recipe: pre-train, fine-tune or ablate.

    RECIPE is a packaged name ("fashion-quick", "table-4:cifar10") or a TOML file. KEY=VALUE
    changes one of its keys (data.train=photos/ optim.lr=3e-4). Stopped by SIGTERM, Ctrl-C or a
    kill, the same command resumes. Several devices: torchrun --nproc-per-node 4 -m vitrail train …
    """
    from vitrail.config import list_recipes, load_recipe, to_toml
    from vitrail.errors import UsageError

    if listing:
        rows = [{"recipe": name, **figures(load_recipe(name))} for name in list_recipes()]
        emit(rows, as_json, "\n".join(f"{row['recipe']:48s} {row['expected']}" for row in rows))
        return
    if recipe is None:
        raise UsageError("Which recipe?", hint="vitrail train fashion-quick, or vitrail train --list")
    chosen = load_recipe(recipe, assignments)
    if show:
        click.echo(to_toml(chosen), nl=False)
        return
    from vitrail.runtime.distributed import is_main
    from vitrail.train.loop import train

    where = out or f"runs/{(chosen.name or recipe).replace('/', '-').replace(':', '-')}"
    result = train(chosen, where, resume=not fresh, progress=not quiet, **options)
    if is_main():
        emit(result, as_json)


def figures(recipe: Any) -> dict[str, str]:
    """What a recipe is held against, in a line."""
    return {"expected": "; ".join(f"{f.metric}: {f.value:g} ({f.kind}, {f.source})" for f in recipe.expected)}
