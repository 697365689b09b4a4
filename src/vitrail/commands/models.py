"""`vitrail models`: the catalogue, or one model in full. Nothing is built, so it answers at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from vitrail.cli import emit

if TYPE_CHECKING:
    from vitrail.model.catalogue import Catalogue, Description

FAMILIES = {"vit": "ViT, hybrids", "axial": "axial ViT", "bit": "BiT ResNets"}


@click.command("models")
@click.argument("name", required=False)
@click.option("--image-size", default=None, type=click.IntRange(1), help="With NAME: side of the image in pixels (also NAME@384).")
@click.option("--classes", default=1000, show_default=True, type=click.IntRange(0), help="With NAME: outputs of the head.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def command(name: str | None, image_size: int | None, classes: int, as_json: bool) -> None:
    """Every model by name with its parameters, tokens and cost; with NAME, that model part by part."""
    from vitrail.model.catalogue import catalogue, describe

    if name is None:
        emit(models := catalogue(), as_json, None if as_json else catalogue_text(models))
    else:
        emit(model := describe(name, image_size=image_size, classes=classes), as_json, None if as_json else description_text(model))


def catalogue_text(models: Catalogue) -> str:
    table = new_table(("model", "parameters", "tokens", "GMACs at 224", "at 384"))
    family, cut = None, False
    for entry in models.models:
        if entry.family != family:
            family = entry.family
            table.add_section()
            table.add_row(f"[bold]{FAMILIES[family]}[/bold]")
        cut = cut or entry.large_size != 384
        star = "" if entry.large_size == 384 else "*"
        table.add_row(
            entry.name, f"{entry.parameters:,}", str(entry.tokens), f"{entry.gmacs_224:.2f}", f"{entry.gmacs_384:.2f}{star or ' '}"
        )
    notes = "1000 classes, tokens at 224. A GMAC is 2 GFLOPs. Any other patch or image size by name: B/28, L/16@512, S/16x32@224x448."
    if cut:
        notes += "\n* at the next smaller size that the patches divide (378)."
    return rendered(table) + notes


def description_text(model: Description) -> str:
    table = new_table((model.name, "parameters", "GMACs"))
    for part, parameters, macs in model.parts:
        table.add_row(part, f"{parameters:,}", f"{macs / 1e9:.3f}")
    table.add_section()
    table.add_row("all", f"{model.parameters:,}", f"{model.macs / 1e9:.3f}")
    rows, columns = model.config["image_size"]
    return rendered(table) + f"{model.tokens} tokens from {rows} x {columns} pixels. Its configuration: vitrail models {model.name} --json"


def new_table(columns: tuple[str, ...]) -> Any:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD)
    for number, column in enumerate(columns):
        table.add_column(column, justify="left" if number == 0 else "right", no_wrap=True)
    return table


def rendered(table: Any) -> str:
    """A table as text: with colours on a terminal, plain in a pipe."""
    from rich.console import Console

    console = Console()
    with console.capture() as capture:
        console.print(table)
    return capture.get()
