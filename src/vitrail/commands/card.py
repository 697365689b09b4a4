"""`vitrail card`: a model's identity card as a README."""

from __future__ import annotations

from pathlib import Path

import click

from vitrail.cli import emit


@click.command("card")
@click.argument("weights")
@click.option("--out", default=None, type=click.Path(), help="A folder or a file; default: print it.")
@click.option("--no-figures", is_flag=True, help="Text only.")
@click.option("--json", "as_json", is_flag=True, help="Print the card itself as JSON.")
def command(weights: str, out: str | None, no_figures: bool, as_json: bool) -> None:
    """Render the card of WEIGHTS as a README: data, metrics, cost, limits, figures."""
    from vitrail.ship.readme import render, write_readme
    from vitrail.weights.card import card_of
    from vitrail.weights.load import load_model

    model = load_model(weights)
    if out is not None:
        emit(write_readme(model, Path(out), figures=not no_figures), as_json)
    else:
        emit(card_of(model), as_json, render(card_of(model)))
