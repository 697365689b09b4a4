"""`vitrail reproduce NAME`: a table or figure of the paper, its numbers beside one's own, or the same design small."""

from __future__ import annotations

from typing import Any

import click

from vitrail.cli import emit


@click.command("reproduce")
@click.argument("name", required=False)
@click.option("--list", "listed", is_flag=True, help="Every table and figure.")
@click.option("--runs", default=None, type=click.Path(file_okay=False), help="Folder of finished runs: their results are 'ours'.")
@click.option("--compute-only", is_flag=True, help="Only the column of pre-training compute, recomputed (table-6).")
@click.option("--scale", type=click.Choice(["paper", "mini"]), default="paper", show_default=True, help="mini: run the same design small.")
@click.option("--data", default=None, help="mini: labelled images to pre-train on (default: builtin:fashion).")
@click.option("--transfer", default=None, help="mini: other images to transfer to (default: classes of --data that are held back).")
@click.option("--minutes", default=None, type=click.FloatRange(min=0, min_open=True), help="mini: about how long all of it may take.")
@click.option("--seeds", default=None, type=click.IntRange(1, 100), help="mini: runs of each cell (default: 3).")
@click.option("--steps", default=None, type=click.IntRange(1), help="mini: steps of each training run, instead of --minutes.")
@click.option("--size", type=click.Choice(["auto", "cpu", "gpu"]), default=None, help="mini: how large the models are (default: auto).")
@click.option("--out", default=None, type=click.Path(file_okay=False), help="mini: where cells and figures go (default: runs/mini-STUDY).")
@click.option("--device", default=None, help="mini: cpu, cuda, cuda:1 (default: the best there is).")
@click.option("--quiet", is_flag=True, help="mini: no progress lines.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    name: str | None, listed: bool, runs: str | None, compute_only: bool, scale: str, quiet: bool, as_json: bool, **options: Any
) -> int:
    """The paper's tables and figures by name ("table-6", "figure 4").

    Prints target, ours, difference, std, images seen and exaFLOPs, what needs data that is not
    public, and the commands that make "ours". With --scale mini the same design runs on data at
    hand; a cell that is finished is not run again. Exit 4 when --compute-only finds a row that
    misses the paper in a way that is not known.
    """
    from vitrail.errors import UsageError
    from vitrail.study.reproduce import Compute, listing, reproduce

    if listed:
        emit(listing(), as_json)
        return 0
    if name is None:
        raise UsageError("Which table or figure?", hint="vitrail reproduce table-6, or vitrail reproduce --list")
    given = {key: value for key, value in options.items() if value is not None}
    if scale == "mini":
        given["progress"] = not quiet
    result = reproduce(name, scale=scale, compute_only=compute_only, runs=runs, **given)
    emit(result, as_json)
    return 4 if isinstance(result, Compute) and not result.ok else 0
