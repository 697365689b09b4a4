"""The house rules that ARCHITECTURE.md states, walked over the source."""

import ast
import re
from pathlib import Path

import pytest

SRC = Path(__file__).parents[1] / "src" / "vitrail"
# a room may import its own floor's lower rooms: the list reads from the ground up
FLOORS = [
    "errors",
    "runtime",
    "kernels",
    "model",
    "data",
    "weights",
    "config",
    "evaluate",
    "inspect",
    "ship",
    "train",
    "study",
    "cli",
    "commands",
]
MODEL_MAY_IMPORT = {"torch", "kernels", "errors", "model"}
FILES = sorted(SRC.rglob("*.py"))


def room(path: Path) -> str:
    parts = path.relative_to(SRC).parts
    return parts[0].removesuffix(".py")


def type_checking_lines(tree: ast.AST) -> set[int]:
    blocks = [n for n in ast.walk(tree) if isinstance(n, ast.If) and "TYPE_CHECKING" in ast.unparse(n.test)]
    return {line for b in blocks for line in range(b.lineno, (b.end_lineno or b.lineno) + 1)}


def imports(path: Path):
    """(line, dotted module) of every import that runs, at any depth."""
    tree = ast.parse(path.read_text())
    hidden = type_checking_lines(tree)
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)) and node.lineno in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: imports are absolute here"
            if node.module == "vitrail":
                yield from ((node.lineno, f"vitrail.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, node.module or ""


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(SRC)))
def test_imports_point_down_only(path):
    here = room(path)
    if here in ("__init__", "__main__"):
        return
    for line, module in imports(path):
        if not module.startswith("vitrail."):
            continue
        there = module.split(".")[1]
        if there in ("__version__", "__init__", "Room"):
            continue
        assert there in FLOORS, f"{path}:{line}: {module} is in no known room"
        assert FLOORS.index(there) <= FLOORS.index(here), f"{path}:{line}: {here} may not import {there}"


@pytest.mark.parametrize("path", [p for p in FILES if room(p) == "model"], ids=lambda p: p.name)
def test_the_model_needs_only_torch(path):
    for line, module in imports(path):
        top = module.split(".")[1] if module.startswith("vitrail.") else module.split(".")[0]
        standard = {"__future__", "math", "dataclasses", "typing", "collections", "concurrent", "functools", "re", "contextlib"}
        assert top in MODEL_MAY_IMPORT | standard, f"{path}:{line}: model/ may not import {module}"


def test_nothing_imports_torchvision():
    for path in FILES:
        for line, module in imports(path):
            if module.split(".")[0] == "torchvision":
                assert "bench" in path.name or "peers" in path.name, f"{path}:{line}"


def test_only_decode_calls_an_image_codec():
    allowed = {"data/decode.py"}
    readers = re.compile(r"\bImage\.open\(|simplejpeg\.decode")
    for path in FILES:
        name = str(path.relative_to(SRC))
        if name not in allowed:
            assert not readers.search(path.read_text()), f"{name} decodes an image itself; use data.decode"


def test_no_room_for_leftovers():
    assert not [p for p in FILES if p.stem in ("utils", "helpers", "misc", "common")]


def test_commands_do_not_import_torch_until_they_run():
    heavy = {"torch", "numpy", "PIL", "safetensors", "matplotlib", "pyarrow"}
    for path in FILES:
        if room(path) in ("commands", "cli"):
            tree = ast.parse(path.read_text())
            for node in tree.body:
                if isinstance(node, (ast.Import, ast.ImportFrom)):
                    names = [a.name for a in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                    for name in names:
                        assert name.split(".")[0] not in heavy, f"{path}:{node.lineno}: {name} at module level"
                        if name.startswith("vitrail"):
                            assert name in ("vitrail.cli", "vitrail.errors", "vitrail") or name.startswith("vitrail.commands."), (
                                f"{path}:{node.lineno}: {name}"
                            )
