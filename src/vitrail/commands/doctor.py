"""`vitrail doctor`: what this machine can do, and whether weights and images fit."""

from __future__ import annotations

import click

from vitrail.cli import emit


@click.command("doctor")
@click.option("--model", default=None, help="Weights to look at: a path or a name.")
@click.option("--data", default=None, help="Images to look at, and to try the weights on.")
@click.option("--device", default=None, help="cpu, cuda, mps (default: the best there is).")
@click.option("--json", "as_json", is_flag=True, help="Print the findings as JSON.")
def command(model: str | None, data: str | None, device: str | None, as_json: bool) -> int:
    """Say what this machine can do; with --model and --data, whether they fit each other.

    Exit code 3 when something is wrong.
    """
    from vitrail.study.doctor import doctor

    diagnosis = doctor(model, data, device=device)
    emit(diagnosis, as_json)
    return 3 if diagnosis.problems else 0
