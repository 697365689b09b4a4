"""What the paper reports, as data: one TOML document a table or figure, in `targets/`.

    load_target("table-6").rows[0].values["ImageNet"]       80.73

Numbers are kept as printed, the paper's contradictions included; `public` says in words which
rows rest on data that nobody outside has, `claims` what a picture without numbers asserts.
"""

from __future__ import annotations

import dataclasses
import re
import tomllib
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from vitrail.errors import UsageError, nearest

__all__ = ["IMAGES", "Row", "Target", "list_targets", "load_target"]

FOLDER = Path(__file__).parent / "targets"
# images of an epoch of pre-training (JFT-300M: the count that gives the paper's exaFLOPs)
IMAGES = {"JFT-300M": 303_000_000, "ImageNet-21k": 14_197_122, "ImageNet": 1_281_167}


@dataclass(frozen=True)
class Row:
    """One line of a table. `values` and `std` are in the target's unit, by column."""

    model: str  # as `create_model` takes it, where Vitrail has it
    pretrain: str  # the data it was pre-trained on
    values: dict[str, float]
    std: dict[str, float] = field(default_factory=dict)
    epochs: int | None = None
    exaflops: float | None = None  # as printed
    above: tuple[float, float] | None = None  # where the count is known to miss the printed number: by so many %, from … to
    why: str = ""  # the reason for `above`
    printed_as: str = ""
    create: str = ""  # the name `create_model` takes, where it is not `model`
    optimizer: str = ""
    position: str = ""
    note: str = ""
    weights: tuple[str, ...] = ()  # public checkpoints of this very pre-training

    @property
    def name(self) -> str:
        """How a printed table calls the row."""
        parts = [self.printed_as or self.model, self.optimizer, f"{self.epochs} epochs" if self.epochs else ""]
        return " ".join(part for part in parts if part)

    @property
    def images(self) -> int | None:
        """Pre-training images seen, where the paper says for how long."""
        return None if self.epochs is None or self.pretrain not in IMAGES else self.epochs * IMAGES[self.pretrain]


@dataclass(frozen=True)
class Target:
    """A table or a figure."""

    name: str
    title: str
    unit: str
    protocol: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    public: tuple[str, ...] = ()
    claims: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    mini: str = ""  # the small study of the same design
    rows_from: str = ""  # the table whose numbers a figure draws
    inspect: str = ""  # pictures rather than numbers: what `vitrail inspect` draws
    bench: str = ""  # speeds rather than numbers: the models of `vitrail bench`


def list_targets() -> tuple[str, ...]:
    """Names, tables first, in the paper's order."""
    return tuple(sorted((path.stem for path in FOLDER.glob("*.toml")), key=_place))


def _place(name: str) -> tuple[int, int, str]:
    kind, _, number = name.partition("-")
    return (("table", "figure").index(kind) if kind in ("table", "figure") else 2, int(number) if number.isdigit() else 0, name)


@cache
def load_target(name: str) -> Target:
    """`table-6`, also written "Table 6", "table6", "fig 5"."""
    key = _spelled(name)
    if key not in list_targets():
        raise UsageError(f"The study has no {name!r}{nearest(key, list_targets())}.", hint="vitrail reproduce --list")
    document = tomllib.loads((FOLDER / f"{key}.toml").read_text(encoding="utf-8"))
    rows = tuple(_typed(Row, row, key) for row in document.pop("rows", ()))
    target: Target = _typed(Target, {**document, "rows": rows}, key)
    if target.rows_from:
        target = dataclasses.replace(target, rows=load_target(target.rows_from).rows)
    return target


def _spelled(name: str) -> str:
    found = re.fullmatch(r"(fig|figure|tab|table)[\s._-]*(\d+)", name.strip().lower())
    return f"{'figure' if found[1].startswith('fig') else 'table'}-{found[2]}" if found else name.strip().lower()


def _typed(kind: Any, values: dict[str, Any], where: str) -> Any:
    """Lists become tuples; a key that the record does not have is refused."""
    known = {field.name for field in dataclasses.fields(kind)}
    for key in values:
        if key not in known:
            raise UsageError(f"targets/{where}.toml: {kind.__name__} has no key {key!r}{nearest(key, known)}.")
    return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})
