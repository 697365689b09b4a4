"""`vitrail bench`: how fast models are here, beside the other systems where asked."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from vitrail.cli import emit

WORK = {"infer": ("infer",), "train": ("train",), "both": ("infer", "train")}


@click.command("bench")
@click.argument("models", nargs=-1)
@click.option("--work", type=click.Choice(list(WORK)), default=None, help="Default: infer; with --peers both.")
@click.option("--image-size", "image_sizes", type=click.IntRange(1), multiple=True, help="Side in pixels; may be given several times.")
@click.option("--batch-size", "batch_sizes", type=click.IntRange(1), multiple=True, help="Images at once; may be given several times.")
@click.option("--precision", "precisions", type=click.Choice(["fp32", "tf32", "bf16", "fp16", "fp8"]), multiple=True, help="Of our models.")
@click.option("--mode", "modes", multiple=True, help="eager, compile, max-autotune, graph, compile+graph, … (default: the likely best).")
@click.option("--peers", is_flag=True, help="timm, transformers, torchvision and vit-pytorch too, where installed.")
@click.option("--peer", "named", multiple=True, help="This peer only; may be given several times.")
@click.option("--only-peers", is_flag=True, help="Leave Vitrail itself out.")
@click.option("--sweep", is_flag=True, help="Find the best batch size and, on a GPU, the largest that fits (figure 12).")
@click.option("--exact-gelu", is_flag=True, help="GELU as the peers compute it, also without peers in this run.")
@click.option("--fast", is_flag=True, help="Also the CPU runtimes that predict --fast chooses from.")
@click.option("--shared", is_flag=True, help="Count this process's own processor time: for a CPU others use too (with --threads 1).")
@click.option("--device", default=None, help="cpu, cuda, mps (default: the best there is).")
@click.option("--threads", type=click.IntRange(1), default=None, help="CPU threads (default: as torch chooses).")
@click.option("--seconds", "budget_s", type=click.FloatRange(0, min_open=True), default=None, help="Timed passes a case, in seconds.")
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), default=None, help="Write the tables to this Markdown file too.")
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")
def command(
    models: tuple[str, ...], work: str | None, peers: bool, named: tuple[str, ...], only_peers: bool, threads: int | None,
    out: Path | None, as_json: bool, **options: object,
) -> None:  # fmt: skip
    """Time MODELS (default: two usual ones) on images that lie in memory.

    Medians with their spread, beside the rate of a large matrix product of this machine.
    """
    import torch

    from vitrail.study.bench import bench
    from vitrail.study.bench_report import as_markdown

    if threads:
        torch.set_num_threads(threads)
    chosen = WORK[work or ("both" if peers or named else "infer")]
    result = bench(models, work=chosen, peers=named or peers, ours=not only_peers, progress=True, **options)  # type: ignore[arg-type]
    if out is not None:
        write(out, as_markdown(result, said_again()))
    emit(result, as_json)


def said_again() -> str:
    """The command, for the page that records it."""
    import sys

    return shlex.join(["vitrail", *sys.argv[1:]])


def write(path: Path, text: str) -> None:
    from vitrail.errors import ResourceError

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise ResourceError(f"{path}: cannot be written ({error.strerror}).", hint="choose another --out") from None
