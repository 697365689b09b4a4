"""`vitrail VERB`: a table of verbs, each loaded only when it is called.

`vitrail --help` reads this table and imports neither torch nor any verb. A verb
lives in `vitrail/commands/<verb>.py` as a click command named `command`; it turns
options into one call of a public function and prints that function's result.
"""

from __future__ import annotations

import importlib
import json as jsonlib
import os
import sys
from typing import Any

import click

from vitrail.errors import VitrailError, nearest, refuse_windows

# verb -> (module, one line for --help); order is the order of a user's day
VERBS: dict[str, tuple[str, str]] = {
    "finetune": ("vitrail.commands.finetune", "Fine-tune a pre-trained model on your labelled images."),
    "eval": ("vitrail.commands.eval", "Measure a model: accuracy with its interval, per class, calibration."),
    "predict": ("vitrail.commands.predict", "Name what is in images, folders, lists or any data source."),
    "inspect": ("vitrail.commands.inspect", "Look inside: filters, positions, attention, as one HTML page."),
    "serve": ("vitrail.commands.serve", "Answer over HTTP, with a page to try it."),
    "export": ("vitrail.commands.export", "Write ONNX, torch.export or int8, verified against the model."),
    "train": ("vitrail.commands.train", "Run a recipe: pre-train, fine-tune or ablate; resumes by itself."),
    "sweep": ("vitrail.commands.sweep", "Choose hyper-parameters on a dev split, then train the winner."),
    "fewshot": ("vitrail.commands.fewshot", "The paper's few-shot linear evaluation, in closed form."),
    "knn": ("vitrail.commands.knn", "Nearest-neighbour accuracy on frozen features."),
    "probe": ("vitrail.commands.probe", "Linear probe on frozen features."),
    "vtab": ("vitrail.commands.vtab", "VTAB-1k: 19 tasks with the official splits."),
    "reproduce": ("vitrail.commands.reproduce", "The paper's tables and figures by name."),
    "bench": ("vitrail.commands.bench", "Images per second, latency and memory, beside the peers."),
    "models": ("vitrail.commands.models", "Every model by name: parameters, tokens, cost."),
    "convert": ("vitrail.commands.convert", "Translate weights between formats, with a check that logits agree."),
    "data": ("vitrail.commands.data", "Check, pack or show a data set."),
    "card": ("vitrail.commands.card", "Render a model's card as a README."),
    "push": ("vitrail.commands.push", "Upload a model to the hub in the transformers or timm format."),
    "doctor": ("vitrail.commands.doctor", "What this machine can do, and whether data and weights fit."),
}


class Verbs(click.Group):
    """A group that knows its verbs' names and help without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:
        if name not in VERBS:
            ctx.fail(f"No such verb {name!r}{nearest(name, VERBS)}.")
        refuse_windows()
        return importlib.import_module(VERBS[name][0]).command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, line) for name, (_, line) in VERBS.items()])


def print_version(ctx: click.Context, _param: click.Parameter, asked: bool) -> None:
    if asked:
        from vitrail import __version__

        click.echo(f"vitrail {__version__}")
        ctx.exit()


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--version", is_flag=True, expose_value=False, is_eager=True, callback=print_version, help="Print the version.")
def vitrail() -> None:
    """Vision Transformers as in "An Image is Worth 16x16 Words": train, measure, look inside, ship."""


def emit(result: Any, as_json: bool, text: str | None = None) -> None:
    """Print a verb's result on stdout: JSON when asked, otherwise `text` (or the result's own). Of several ranks, the first prints."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1 and os.environ.get("RANK", "0") != "0":
        return
    if as_json:
        body = result.to_dict() if hasattr(result, "to_dict") else result
        click.echo(jsonlib.dumps(body, indent=1, sort_keys=False, default=str))
    else:
        click.echo(text if text is not None else str(result))


def main(argv: list[str] | None = None) -> int:
    """Run one verb and answer with a documented exit code (see `vitrail.errors`)."""
    arguments = sys.argv[1:] if argv is None else argv
    try:
        result = vitrail.main(args=arguments, prog_name="vitrail", standalone_mode=False)
        return result if isinstance(result, int) else 0
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        return _report(error.format_message(), "vitrail --help", 2, arguments)
    except VitrailError as error:
        return _report(error.message, error.hint, error.exit_code, arguments)
    except (click.Abort, KeyboardInterrupt):
        return _report("interrupted", None, 130, arguments)
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _report(message: str, hint: str | None, code: int, arguments: list[str]) -> int:
    if "--json" in arguments:
        click.echo(jsonlib.dumps({"error": message, "next": hint, "exit_code": code}))
    click.echo(f"vitrail: {message}" + (f"\n  next: {hint}" if hint else ""), err=True)
    return code


def entry() -> None:
    """The console script."""
    sys.exit(main())


if __name__ == "__main__":
    entry()
