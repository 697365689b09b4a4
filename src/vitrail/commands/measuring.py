"""The options that every verb has which asks a model about many images."""

from __future__ import annotations

from typing import Any

import click

from vitrail.errors import UsageError

PRECISIONS = ["auto", "fp32", "tf32", "bf16", "fp16", "fp64"]

_OPTIONS = (
    click.option("--image-size", type=click.IntRange(1), default=None, help="Pixels; positions are interpolated (default: as trained)."),
    click.option("--batch-size", type=click.IntRange(1), default=None, help="Images at once (default: 256 on a GPU, else 32)."),
    click.option("--precision", type=click.Choice(PRECISIONS), default="auto", show_default=True, help="auto: bf16 on a GPU, else fp32."),
    click.option("--device", default=None, help="cpu, cuda, mps (default: the best there is)."),
    click.option("--workers", type=click.IntRange(0), default=None, help="Decoding processes (default: by the machine)."),
    click.option("--cache", default=None, type=click.Path(file_okay=False), help="Folder for what is kept (default: Vitrail's cache)."),
    click.option("--no-cache", is_flag=True, help="Keep nothing: ask every image again."),
    click.option("--allow", multiple=True, help="A kind of data problem to accept (see vitrail data check)."),
    click.option("--json", "as_json", is_flag=True, help="Print the result as JSON."),
)


def measuring(function: Any) -> Any:
    """Add them; `kept` turns the two about the cache into one."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function


def kept(cache: str | None, no_cache: bool) -> str | bool:
    return False if no_cache else cache or True


def numbers(option: str, text: str, kind: Any) -> list[Any]:
    """'1,5,10' -> [1, 5, 10]."""
    try:
        found = [kind(one) for one in text.replace(" ", "").split(",") if one]
    except ValueError:
        found = []
    if not found:
        raise UsageError(f"{option} {text!r} is no list of numbers.", hint=f"{option} 1,5,10")
    return found
