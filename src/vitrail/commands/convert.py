"""`vitrail convert SRC DST --to FORMAT`."""

from __future__ import annotations

from typing import Any

import click

from vitrail.cli import emit


def size_of(text: str | None, option: str = "--image-size") -> int | tuple[int, int] | None:
    """ "384" or "384x256" (rows x columns)."""
    if text is None:
        return None
    parts = text.lower().split("x")
    if not all(part.isdigit() for part in parts) or len(parts) > 2:
        raise click.BadParameter(f"{text!r} is no size; write 384 or 384x256.", param_hint=option)
    return int(parts[0]) if len(parts) == 1 else (int(parts[0]), int(parts[1]))


@click.command("convert")
@click.argument("source")
@click.argument("destination")
@click.option("--to", required=True, help="npz, timm, hf, torchvision, vitrail.")
@click.option("--style", default=None, help="Generation of names, where the format has several: linen, prelinen, scan.")
@click.option("--heads", default=None, type=int, help="Attention heads, where the file cannot say.")
@click.option("--eps", default=None, type=float, help="Epsilon of the LayerNorms.")
@click.option("--activation", default=None, help="gelu, gelu_tanh, quick_gelu.")
@click.option("--pool", default=None, help="token, gap, map, unpooled.")
@click.option("--pool-pad", default=None, help="BiT: zero or inf around the root's max-pool.")
@click.option("--position-resample", default=None, help="How positions go to another grid.")
@click.option("--image-size", default=None, help="Pixels, 384 or 384x256; positions are resampled to it.")
@click.option("--patch-size", default=None, help="Pixels, 16 or 16x32; the patch projection by its pseudo-inverse (FlexiViT).")
@click.option("--channels", default=None, type=click.IntRange(1), help="Input channels: the first kernel's are repeated or added up.")
@click.option("--classes", default=None, type=int, help="A new zero head with so many classes; 0: none.")
@click.option("--new-head", is_flag=True, help="A new zero head with as many classes as the file has.")
@click.option("--overwrite", is_flag=True, help="Replace what is there.")
@click.option("--offline", is_flag=True, help="Never touch the network.")
@click.option("--sha256", default=None, help="The source must have this hash.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
def command(source: str, destination: str, to: str, image_size: str | None, patch_size: str | None, as_json: bool, **options: Any) -> None:
    """Write weights in another system's format, checked: the file appears only if it reads back as the same model.

    SOURCE is a file, a folder or a URI (hf://, timm://, gs://, https://); DESTINATION a file or a folder.
    """
    from vitrail.weights.convert import convert

    sizes: dict[str, Any] = {"image_size": size_of(image_size), "patch_size": size_of(patch_size, "--patch-size")}
    emit(convert(source, destination, to=to, **sizes, **options), as_json)
