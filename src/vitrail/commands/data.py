"""`vitrail data check|overlap|pack|show`."""

from __future__ import annotations

from typing import Any

import click

from vitrail.cli import emit

_OPENING = (
    click.option("--split", default=None, help="A split or a part of one: train, 'train[:10%]' (check: default all)."),
    click.option("--follow-links", is_flag=True, help="Follow links that lead out of the folder."),
    click.option("--image", default=None, help="Column (tables, parquet) or member (tar) that holds the image."),
    click.option("--label", default=None, help="Column or member that holds the label."),
)


def opening(function: Any) -> Any:
    """The options every verb here opens its source with."""
    for option in reversed(_OPENING):
        function = option(function)
    return function


@click.group("data")
def command() -> None:
    """Check, compare, pack or show a data set.

    SRC is a folder, a csv, tsv or jsonl file, parquet files, tar shards ('s-{000..127}.tar'),
    hf://datasets/OWNER/NAME, s3:// and other stores, builtin:fashion or builtin:shapes.
    """


@command.command("check")
@click.argument("src")
@opening
@click.option("--near/--no-near", default=True, show_default=True, help="Look for pictures that look alike.")
@click.option("--no-labels", is_flag=True, help="Images without classes.")
@click.option("--allow", multiple=True, help="A fault to report without exit 3: leaked, label-conflict, corrupt, duplicate-id, …")
@click.option("--workers", default=None, type=click.IntRange(1), help="Decoding threads (default: one a core).")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def check_command(src: str, as_json: bool, no_labels: bool, **options: Any) -> int:
    """Read every image once and count what is wrong; exit 3 if anything is.

    Formats, corrupt files, names that lie, label problems, duplicates (bytes and looks) within
    and across splits, one picture with two labels, class balance, sizes.
    """
    from vitrail.data.check import check

    report = check(src, labelled=not no_labels, **options)
    emit(report, as_json)
    return report.exit_code


@command.command("overlap")
@click.argument("src")
@click.option("--against", multiple=True, required=True, metavar="DATA", help="Evaluation data; may be given several times.")
@click.option("--split", default=None, help="Of SRC (default: train).")
@click.option("--against-split", default=None, help="Of the evaluation data (default: every split but train).")
@click.option("--out", default=None, type=click.Path(dir_okay=False), help="A csv of the images to leave out: SRC?exclude=FILE.")
@click.option("--near/--no-near", default=True, show_default=True, help="Look for pictures that look alike.")
@click.option("--allow", multiple=True, help="A kind of data problem to accept (see data check).")
@click.option("--workers", default=None, type=click.IntRange(1), help="Decoding threads (default: one a core).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def overlap_command(src: str, against: tuple[str, ...], as_json: bool, **options: Any) -> None:
    """Find training images of SRC that are also in evaluation data, to the byte or to the eye.

    The paper removed them from its pre-training sets. --out writes a list that an address takes:
    data.train='photos/?exclude=copies.csv'.
    """
    from vitrail.data.overlap import overlap

    emit(overlap(src, against, **options), as_json)


@command.command("pack")
@click.argument("src")
@click.argument("dst", type=click.Path())
@opening
@click.option("--to", type=click.Choice(["parquet", "tar"]), default="parquet", show_default=True, help="Kind of shard.")
@click.option("--resize", default=None, type=click.IntRange(8), help="Pixels of the shorter side; smaller images stay as they are.")
@click.option("--quality", default=92, show_default=True, type=click.IntRange(1, 100), help="JPEG quality of what is resized.")
@click.option("--shard-mb", default=256, show_default=True, type=click.IntRange(1), help="Megabytes of a shard.")
@click.option("--seed", default=0, show_default=True, help="Of the order; --no-shuffle keeps the source's.")
@click.option("--shuffle/--no-shuffle", default=True, show_default=True, help="Mix the classes, so that every shard has all.")
@click.option("--allow", multiple=True, help="A kind of data problem to accept (see data check).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def pack_command(src: str, dst: str, as_json: bool, **options: Any) -> None:
    """Write SRC as shards that read fast in any order; run again to go on after a kill.

    Every split, or the one given. Each shard is read back and compared before it gets its name.
    """
    from vitrail.data.pack import pack

    emit(pack(src, dst, **options), as_json)


@command.command("show")
@click.argument("src")
@opening
@click.option("--out", default="sheet.png", show_default=True, type=click.Path(dir_okay=False), help="The PNG (or JPEG) to write.")
@click.option("--count", default=32, show_default=True, type=click.IntRange(1, 1024), help="Images shown.")
@click.option("--cell", default=128, show_default=True, type=click.IntRange(16, 1024), help="Pixels of one picture.")
@click.option("--seed", default=0, show_default=True, help="Of the choice and of every augmentation.")
@click.option("--recipe", default=None, help="Show images as this recipe augments them (default: crop and flip).")
@click.option("--size", default=None, type=click.IntRange(8, 2048), help="Pixels of the training crop (default: the recipe's, else 224).")
@click.option("--views", default=3, show_default=True, type=click.IntRange(0, 16), help="Augmented views of each image; 0: none.")
@click.option("--allow", multiple=True, help="A kind of data problem to accept (see data check).")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def show_command(src: str, as_json: bool, recipe: str | None, size: int | None, **options: Any) -> None:
    """Write a contact sheet: images with their labels, as they are and as training sees them."""
    from vitrail.config import Recipe, load_recipe
    from vitrail.data.crop import TrainView
    from vitrail.data.show import show

    spec = load_recipe(recipe) if recipe else Recipe()
    view = TrainView.of(spec.data, size or image_size(spec))
    emit(show(src, view=view, augment=spec.augment, mean=spec.data.mean, std=spec.data.std, **options), as_json)


def image_size(recipe: Any) -> tuple[int, int]:
    """(rows, columns) that a recipe trains at; 224 where its weights alone know."""
    from vitrail.model.names import config_for

    if recipe.model.image_size is None and not recipe.model.name:
        return 224, 224
    rows, columns = config_for(recipe.model.name, image_size=recipe.model.image_size).image_size
    return rows, columns
