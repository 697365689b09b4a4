"""`reproduce`: the paper's tables and figures by name: its numbers, yours beside them, and at what cost.

    reproduce("table-5", runs="runs/")             target, ours, difference, std, images seen, exaFLOPs
    reproduce("table-6", compute_only=True)        the column of pre-training compute, recomputed
    reproduce("figure-4", scale="mini")            the same design, small: `vitrail.study.mini`

"Ours" comes from finished runs (`ours.py`) and from nowhere else.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

from vitrail.errors import UsageError
from vitrail.model.cost import exaflops
from vitrail.model.names import config_for
from vitrail.study.compute import Counted, counted
from vitrail.study.ours import Finished, finetuning_recipe, finished_runs, ours, pretraining_recipe
from vitrail.study.targets import Row, Target, list_targets, load_target

if TYPE_CHECKING:
    from vitrail.study.cost import RunCost

__all__ = ["Compute", "Entry", "Listing", "Reproduction", "listing", "reproduce"]


@dataclass(frozen=True)
class Entry:
    """One number of the paper, and ours."""

    row: Row
    column: str
    target: float
    target_std: float | None
    runs: tuple[Finished, ...]
    exaflops: float | None

    @property
    def ours(self) -> tuple[float, ...]:
        """One a run, in per cent."""
        return tuple(100 * run.top1 for run in self.runs)

    @property
    def mean(self) -> float | None:
        return fmean(self.ours) if self.ours else None

    @property
    def difference(self) -> float | None:
        return None if self.mean is None else self.mean - self.target

    @property
    def std(self) -> float | None:
        return stdev(self.ours) if len(self.ours) > 1 else None

    def to_dict(self) -> dict[str, Any]:
        return {
            "row": self.row.name,
            "pretrain": self.row.pretrain,
            "column": self.column,
            "target": self.target,
            "target_std": self.target_std,
            "ours": self.mean,
            "difference": self.difference,
            "std": self.std,
            "runs": len(self.ours),
            "images": self.row.images,
            "exaflops": self.exaflops,
        }


@dataclass(frozen=True)
class Reproduction:
    """A table or figure with everything known about it."""

    target: Target
    entries: tuple[Entry, ...]
    commands: tuple[str, ...]  # how to make "ours"

    def cost(self) -> RunCost | None:
        """Of all the runs that are "ours"; their pre-training is not in it."""
        found = dict.fromkeys(run.path for entry in self.entries for run in entry.runs)
        paths = [path for path in found if (path / "run.json").is_file()]
        if not paths:
            return None
        from vitrail.study.cost import RunCost, cost_of_run  # imports torch, which a table alone does not need

        return RunCost.sum([cost_of_run(path) for path in paths])

    def to_dict(self) -> dict[str, Any]:
        t = self.target
        return {
            "name": t.name,
            "title": t.title,
            "unit": t.unit,
            "protocol": t.protocol,
            "entries": [entry.to_dict() for entry in self.entries],
            "public": list(t.public),
            "claims": list(t.claims),
            "notes": list(t.notes),
            "commands": list(self.commands),
            "cost": None if (cost := self.cost()) is None else cost.to_dict(),
        }

    def __str__(self) -> str:
        t = self.target
        lines = [f"{t.name}: {t.title}", f"  unit      {t.unit}", f"  protocol  {t.protocol}", *self._table()]
        cost = self.cost()
        lines += [] if cost is None else [f"  {'cost':9s} of our fine-tuning runs: {cost}"]
        for word, said in (("data", t.public), ("claim", t.claims), ("note", t.notes), ("run", self.commands)):
            lines += [f"  {word:9s} {one}" for one in said]
        return "\n".join(lines)

    def _table(self) -> list[str]:
        if not self.entries:
            return []
        widths = (
            max(len(e.row.name) for e in self.entries),
            max(len(e.row.pretrain) for e in self.entries),
            max(len(e.column) for e in self.entries),
        )
        head = f"  {'model':{widths[0]}s}  {'pre-trained on':{max(14, widths[1])}s}  {'column':{widths[2]}s}"
        lines = ["", f"{head}  {'target':>9s} {'±':>5s} {'ours':>8s} {'diff':>7s} {'std':>5s} {'runs':>4s} {'images':>8s} {'exaFLOPs':>8s}"]
        for e in self.entries:
            images = f"{e.row.images / 1e6:,.0f} M" if e.row.images else "-"
            cost = f"{e.exaflops:,.0f}" if e.exaflops else "-"
            lines.append(
                f"  {e.row.name:{widths[0]}s}  {e.row.pretrain:{max(14, widths[1])}s}  {e.column:{widths[2]}s}  "
                f"{e.target:9.2f} {_number(e.target_std):>5s} {_number(e.mean):>8s} {_number(e.difference, sign=True):>7s} "
                f"{_number(e.std):>5s} {len(e.ours) or '-':>4} {images:>8s} {cost:>8s}"
            )
        return [*lines, ""]


@dataclass(frozen=True)
class Compute:
    """Pre-training compute, printed and counted."""

    target: Target
    rows: tuple[Counted, ...]

    @property
    def ok(self) -> bool:
        return all(row.ok for row in self.rows)

    def to_dict(self) -> dict[str, Any]:
        return {"name": self.target.name, "rule": RULE, "ok": self.ok, "rows": [row.to_dict() for row in self.rows]}

    def __str__(self) -> str:
        lines = [f"{self.target.name}: pre-training exaFLOPs, {RULE}", ""]
        lines.append(f"  {'model':18s} {'epochs':>6s} {'images':>8s} {'GMACs':>8s} {'printed':>8s} {'ours':>8s} {'diff':>7s}")
        for one in self.rows:
            mark = "" if one.close else ("  known" if one.ok else "  UNEXPECTED")
            assert one.row.images is not None
            lines.append(
                f"  {one.row.printed_as or one.row.model:18s} {one.row.epochs:6d} {one.row.images / 1e6:6,.0f} M {one.gmacs:8.3f} "
                f"{one.row.exaflops:8,.0f} {one.ours:8,.1f} {one.difference:+6.1f} %{mark}"
            )
        reasons: dict[str, list[str]] = {}
        for one in self.rows:
            if not one.close:
                reasons.setdefault(one.row.why or "no reason is known", []).append(one.row.name)
        lines += ["", "  within 0.5 % or one unit of the printed digit, except"]
        lines += [f"  - {', '.join(names)}: {why}." for why, names in reasons.items()]
        return "\n".join([*lines, "  all as expected" if self.ok else "  NOT as expected: see the rows marked UNEXPECTED"])


RULE = "epochs x images x 3 passes x 2 FLOP a multiply-add x multiply-adds of one image"


@dataclass(frozen=True)
class Listing:
    """Every table and figure, and what can be done for it."""

    targets: tuple[Target, ...]

    def to_dict(self) -> dict[str, Any]:
        rows = [
            {"name": t.name, "title": t.title, "numbers": sum(len(r.values) for r in t.rows), "mini": t.mini or None} for t in self.targets
        ]
        return {"targets": rows}

    def __str__(self) -> str:
        lines = [f"{t.name:16s} {t.title}{f'  (--scale mini: {t.mini})' if t.mini else ''}" for t in self.targets]
        return "\n".join([*lines, "", "vitrail reproduce NAME [--runs DIR] [--compute-only] [--scale mini]"])


def listing() -> Listing:
    """What `reproduce` knows."""
    return Listing(tuple(map(load_target, list_targets())))


def reproduce(name: str, *, scale: str = "paper", compute_only: bool = False, runs: str | Path | None = None, **options: Any) -> Any:
    """A table or figure of the paper. See the top of this file.

    scale: "paper": the paper's numbers beside those of finished runs (`runs`); "mini": run the small study of the
    same design (`options`: those of `vitrail.study.mini.run.study`)
    """
    target = load_target(name)
    if scale == "mini":
        from vitrail.study.mini.run import study

        return study(_mini(target), **options)
    if scale != "paper":
        raise UsageError(f"There is no scale {scale!r}.", hint="paper or mini")
    if options:
        raise UsageError(f"{', '.join(sorted(options))} belong to the small study.", hint="add --scale mini")
    if compute_only:
        return Compute(target, _counted(target))
    found = finished_runs(runs) if runs is not None else []
    return Reproduction(target, tuple(_entries(target, found)), tuple(_commands(target)))


def _mini(target: Target) -> str:
    if not target.mini:
        have = ", ".join(name for name in list_targets() if load_target(name).mini)
        raise UsageError(f"{target.name} has no small study.", hint=f"these have: {have}; vitrail reproduce {target.name} says what serves")
    return target.mini


def _counted(target: Target) -> tuple[Counted, ...]:
    rows = counted(target)
    if not rows:
        raise UsageError(f"{target.name} prints no pre-training compute.", hint="table-6 and figure-5 do")
    return rows


def _entries(target: Target, runs: list[Finished]) -> list[Entry]:
    entries = []
    for row in target.rows:
        cost = _exaflops(row)
        for column in target.columns:
            if column in row.values:
                entries.append(Entry(row, column, row.values[column], row.std.get(column), ours(target, row, column, runs), cost))
    return entries


def _exaflops(row: Row) -> float | None:
    if row.images is None:
        return None
    try:
        return exaflops(config_for(row.create or row.model), row.images)
    except UsageError:
        return None  # a model of others


def _commands(target: Target) -> list[str]:
    """What to type for "ours"; {…} stands for what the table has one line for."""
    lines = []
    if target.inspect:
        lines.append("vitrail inspect hf://google/vit-large-patch16-224-in21k --images photos/   (draws it from public weights)")
    if target.bench:
        lines.append(f"vitrail bench {target.bench} --sweep   (speed and largest batch on the machine at hand)")
    open_rows = [row for row in target.rows if row.weights or (pretraining_recipe(row) and row.pretrain != "JFT-300M")]
    for row in open_rows:
        recipes = list(dict.fromkeys(filter(None, (finetuning_recipe(target, row, column) for column in target.columns))))
        if not recipes:
            continue
        first, start = pretraining_recipe(row), row.weights[0] if row.weights else None
        if start is None:
            start = f"runs/{row.pretrain}-{row.model.replace('/', '-')}/last.safetensors"
            lines.append(f"vitrail train {first} data.train=… --out {Path(start).parent}")
        model = (row.create or row.model).removeprefix("ViT-")
        lines.append(f"vitrail train {_several(recipes)} model.name={model} model.weights={start} data.train=…")
    if target.name == "table-9":
        lines += [f"vitrail vtab {row.weights[0]}" for row in target.rows if row.weights]
    if lines and open_rows:
        lines.append(f"vitrail reproduce {target.name} --runs runs/   (then sets them beside the paper)")
    if target.mini:
        lines.append(f"vitrail reproduce {target.name} --scale mini   (the same design on data at hand)")
    return lines


def _several(recipes: list[str]) -> str:
    document = recipes[0].partition(":")[0]
    rows = [recipe.partition(":")[2] for recipe in recipes]
    return recipes[0] if len(rows) == 1 else f"{document}:{{{','.join(rows)}}}"


def _number(value: float | None, sign: bool = False) -> str:
    return "-" if value is None else f"{value:+.2f}" if sign else f"{value:.2f}"
