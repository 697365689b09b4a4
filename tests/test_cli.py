import json
import subprocess
import sys
import time

import click
import pytest

from vitrail import cli
from vitrail.errors import CheckpointError, DataError, DecodeError, NumericsError, Preempted, ResourceError, UsageError


def run(*arguments):
    return subprocess.run([sys.executable, "-m", "vitrail", *arguments], capture_output=True, text=True, check=False)


def test_help_lists_every_verb_and_imports_no_torch():
    code = "import sys; from vitrail.cli import main; main(['--help']); assert 'torch' not in sys.modules, 'torch was imported'"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    for verb in cli.VERBS:
        assert verb in shown


def test_help_takes_at_most_a_tenth_of_importing_torch():
    def seconds(code):
        best = 1e9
        for _ in range(3):
            start = time.perf_counter()
            subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
            best = min(best, time.perf_counter() - start)
        return best

    python = seconds("pass")
    help_s = seconds("from vitrail.cli import main; main(['--help'])") - python
    torch_s = seconds("import torch") - python
    assert help_s < torch_s / 10 + 0.02, (help_s, torch_s)


def test_importing_vitrail_is_free():
    code = "import sys, vitrail; heavy = {'torch', 'numpy', 'PIL'} & set(sys.modules); assert not heavy, heavy"
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("verb", list(cli.VERBS))
def test_every_verb_explains_itself(verb):
    command = cli.vitrail.get_command(click.Context(cli.vitrail), verb)
    assert command.help and len(command.help) > 20
    leaves = list(command.commands.values()) if isinstance(command, click.Group) else [command]
    for leaf in leaves:
        options = {name for p in leaf.params for name in p.opts}
        assert "--json" in options, f"{verb} {leaf.name} has no --json"
        shown = [p for p in leaf.params if isinstance(p, click.Option) and not p.hidden]
        assert all(p.help for p in shown), f"an option of {verb} {leaf.name} has no help"


def test_an_unknown_verb_gets_the_nearest_name_and_exit_code_2():
    answer = run("finetun")
    assert answer.returncode == 2
    assert "did you mean 'finetune'" in answer.stderr
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("a"), 2),
        (DataError("a"), 3),
        (DecodeError("truncated"), 3),
        (NumericsError("a"), 4),
        (CheckpointError("a"), 5),
        (ResourceError("a"), 6),
        (Preempted("a"), 75),
    ],
)
def test_every_kind_of_error_has_its_exit_code_and_says_what_to_do(error, code, monkeypatch, capsys):
    error.hint = "try this"
    probe = click.Command("probe", callback=lambda: (_ for _ in ()).throw(error))
    monkeypatch.setattr(cli.Verbs, "get_command", lambda self, ctx, name: probe)
    assert cli.main(["probe"]) == code
    assert "next: try this" in capsys.readouterr().err


def test_an_error_is_json_too_when_json_was_asked(monkeypatch, capsys):
    def fail():
        raise DataError("no images in x", hint="look there")

    probe = click.Command("probe", callback=lambda as_json: fail(), params=[click.Option(["--json", "as_json"], is_flag=True)])
    monkeypatch.setattr(cli.Verbs, "get_command", lambda self, ctx, name: probe)
    assert cli.main(["probe", "--json"]) == 3
    body = json.loads(capsys.readouterr().out)
    assert body == {"error": "no images in x", "next": "look there", "exit_code": 3}


def test_a_decode_error_survives_the_trip_from_a_worker():
    import pickle

    error = pickle.loads(pickle.dumps(DecodeError("truncated", "cut at 10 bytes", where="a.jpg")))
    assert (error.reason, error.where, error.exit_code) == ("truncated", "a.jpg", 3)


def test_of_several_ranks_the_first_prints(monkeypatch, capsys):
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank in ("0", "1"):
        monkeypatch.setenv("RANK", rank)
        cli.emit({"rank": rank}, as_json=True)
    assert json.loads(capsys.readouterr().out) == {"rank": "0"}


def test_windows_is_refused_in_one_sentence_that_says_where_it_runs(monkeypatch, capsys):
    import vitrail

    monkeypatch.setattr(sys, "platform", "win32")
    assert cli.main(["models"]) == 6
    assert "WSL 2" in capsys.readouterr().err
    with pytest.raises(ResourceError, match="Windows"):
        vitrail.load_model  # noqa: B018
    assert cli.main(["--version"]) == 0
