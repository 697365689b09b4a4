"""`vitrail predict`: what is in images, folders, patterns, URLs, lists or any data source."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import click

from vitrail.cli import emit
from vitrail.errors import UsageError


@click.command("predict")
@click.argument("weights")
@click.argument("images", nargs=-1)
@click.option("--split", default=None, help="Open a folder as a data set, and take this split of it.")
@click.option("--top", default=5, show_default=True, type=click.IntRange(1), help="Classes an image.")
@click.option("--embed", is_flag=True, help="Features (what the head reads) instead of classes.")
@click.option("--out", default=None, type=click.Path(), help="A file ending in .jsonl, .csv or .parquet; resumes where it stopped.")
@click.option("--format", "format_", default=None, help="table, json (one object a line), csv or parquet.")
@click.option("--overwrite", is_flag=True, help="Replace --out, and forget what was half done.")
@click.option("--batch-size", default=32, show_default=True, type=click.IntRange(1), help="Images in one forward pass.")
@click.option("--threads", default=None, type=click.IntRange(1), help="Threads that read and decode (default: all cores, at most 8).")
@click.option("--device", default=None, help="cpu, cuda, mps (default: the best there is).")
@click.option("--fast", is_flag=True, help="The fastest CPU runtime that keeps its bound (extra 'export').")
@click.option("--ray", "on_ray", is_flag=True, help="Answer on a Ray cluster (extra 'ray'): RAY_ADDRESS, or this machine; needs --out.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON document.")
def command(
    weights: str,
    images: tuple[str, ...],
    out: str | None,
    format_: str | None,
    on_ray: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Name what is in images.

    WEIGHTS is a file, a folder or a name. IMAGES are images, folders, 'patterns/*.png', URLs,
    list.txt, - (a list on standard input), or any data source. With one argument only, it is
    the images, and the model in the box answers. Under torchrun each rank writes its share.
    """
    weights, images = _sort_out(weights, images)
    what = list(images) if len(images) > 1 else images[0]
    if on_ray:
        from vitrail.ship.cluster import predict_on_ray

        if out is None:
            raise UsageError("--ray writes a file: where to?", hint="--out answers.parquet, where every node of the cluster sees it")
        if options.pop("fast"):
            raise UsageError("--fast is chosen for one machine, and --ray answers on many.", hint="leave one of them out")
        result = predict_on_ray(weights, what, out, format=format_, **options)
        emit(result, as_json)
        if not as_json:
            _name_skipped(result)
        return
    from vitrail.ship.predict import predict

    if out is None and not as_json:
        printer = _Printer(format_ or "table", options["embed"])
        result = predict(weights, what, each=printer, **options)
        printer.finish(result)
        return
    result = predict(weights, what, out=out, format=format_, **options)
    emit(result, as_json)
    if not as_json:
        _name_skipped(result)


def _sort_out(weights: str, images: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    if images:
        return weights, images
    if _is_weights(weights):
        raise UsageError(f"which images should {weights} answer?", hint=f"vitrail predict {weights} photos/")
    from vitrail.weights.hub import default_model

    chosen = default_model()
    click.echo(f"vitrail predict: no weights given, {chosen} answers", err=True)
    return chosen, (weights,)


def _is_weights(text: str) -> bool:
    """Is the one argument a model rather than images?"""
    from vitrail.weights.hub import builtin_names
    from vitrail.weights.load import NAMES, SUFFIXES

    scheme, _, rest = text.partition(":")
    if scheme in ("timm", "gs", "hf") and rest.startswith("//"):
        return not rest.startswith("//datasets/")
    if scheme == "builtin":
        return rest in builtin_names()
    path = Path(text).expanduser()
    return path.suffix in SUFFIXES or any((path / name).is_file() for name in NAMES)


class _Printer:
    """Rows to standard output as they come."""

    def __init__(self, format_: str, embed: bool) -> None:
        from vitrail.errors import nearest

        if format_ not in ("table", "json", "csv"):
            if format_ == "parquet":
                raise UsageError("parquet is a file: where to?", hint="--out answers.parquet")
            raise UsageError(f"no such format {format_!r}{nearest(format_, ('table', 'json', 'csv', 'parquet'))}.")
        self.format, self.embed, self.count = format_, embed, 0

    def __call__(self, row: Any) -> None:
        from vitrail.ship.tables import Layout

        if self.format == "table":
            click.echo(_line(row))
        else:
            width = len(row.features) if self.embed else len(row.classes)
            layout = Layout(self.format, width, self.embed, row.label is not None)
            if self.count == 0:
                sys.stdout.write(layout.header().decode())
            sys.stdout.write(layout.encode([row]).decode())
        self.count += 1

    def finish(self, result: Any) -> None:
        sys.stdout.flush()
        click.echo(str(result), err=True)
        _name_skipped(result)


def _line(row: Any) -> str:
    from vitrail.data.names import shown

    name = shown(row.image, 60)
    if row.features is not None:
        return f"{name}  {' '.join(f'{v:.4g}' for v in row.features[:8])}{' …' if len(row.features) > 8 else ''}"
    label = f"  [{row.label}]" if row.label is not None else ""
    return f"{name}{label}  " + "   ".join(f"{c['class']} {100 * c['probability']:.1f} %" for c in row.classes)


def _name_skipped(result: Any) -> None:
    for bad in result.bad:
        click.echo(f"skipped {bad['message']}", err=True)
    if result.skipped > len(result.bad):
        where = f"; all are in {result.path}.skipped.jsonl" if result.path else ""
        click.echo(f"… {result.skipped - len(result.bad):,} more{where}", err=True)
