"""`vitrail push`: a model to the hub, in the format that transformers or timm open."""

from __future__ import annotations

from typing import Any

import click

from vitrail.cli import emit


@click.command("push")
@click.argument("weights")
@click.argument("repository")
@click.option("--format", default="transformers", show_default=True, help="transformers, timm or vitrail.")
@click.option("--public", is_flag=True, help="Make a new repository public; it is private otherwise.")
@click.option("--message", default="Upload with vitrail", show_default=True, help="Message of the commit.")
@click.option("--folder", default=None, type=click.Path(), help="Keep the files in this folder too.")
@click.option("--dry-run", is_flag=True, help="Write and check the files, send nothing.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(weights: str, repository: str, public: bool, as_json: bool, **options: Any) -> None:
    """Upload WEIGHTS to the hub as REPOSITORY (OWNER/NAME), with a README from its card.

    The files are read back and compared before anything is sent.
    """
    from vitrail.ship.push import push

    emit(push(weights, repository, private=not public, **options), as_json)
