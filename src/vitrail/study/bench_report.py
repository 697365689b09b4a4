"""A benchmark as a table on a terminal, and as a page for benchmarks/results."""

from __future__ import annotations

from collections.abc import Sequence

from vitrail.study.bench import Bench, Row
from vitrail.study.bench_work import OURS

__all__ = ["as_markdown", "as_text"]

HEADINGS = ("model", "batch", "system", "how", "images/s", "±", "ms", "TFLOP/s", "share", "memory", "x peer", "agrees", "n")
TITLES = {"infer": "Inference", "train": "Training (forward, backward, clip, AdamW)"}


def cells(row: Row) -> tuple[str, ...]:
    """One row, as the headings above want it; what was not measured is empty."""
    case, time = row.case, row.timing
    front = (case.model, str(case.batch), case.system, f"{case.mode}, {case.precision}")
    if time is None:
        return (*front, row.error or "nothing")
    percent = lambda value: "" if value is None else f"{100 * value:.0f} %"
    batch = f"{case.batch}" + (f" of {row.largest_batch}" if row.largest_batch else "")
    return (
        case.model, batch, *front[2:],
        f"{row.images_per_s:,.0f}" if row.images_per_s >= 100 else f"{row.images_per_s:.2f}",
        f"{100 * time.spread:.1f} %" if time.n > 1 else "",
        f"{1e3 * time.median:.2f}" if time.median < 1 else f"{1e3 * time.median:.0f}",
        f"{row.tflops:.0f}" if row.tflops >= 100 else f"{row.tflops:.3g}",
        percent(row.share),
        "" if row.memory_gib is None else f"{row.memory_gib:.1f} GiB",
        "" if row.ratio is None else f"{row.ratio:.2f}",
        "" if row.agrees is None else f"{row.agrees:.0e}",
        str(time.n) if time.n > 1 else "best",
    )  # fmt: skip


def as_text(bench: Bench) -> str:
    """For a terminal: one table a kind of work, columns without content left out."""
    parts = [str(bench.machine)]
    for work, title in TITLES.items():
        rows = [row for row in bench.rows if row.case.work == work]
        if rows:
            parts += ["", title, *aligned(used(HEADINGS, rows))]
    return "\n".join([*parts, "", *legend(bench), f"{bench.seconds:.0f} s"])


def used(headings: Sequence[str], rows: Sequence[Row]) -> list[tuple[str, ...]]:
    """The table without the columns that are empty throughout; a failure's reason stays, at the end of its row."""
    table = [cells(row) for row in rows]
    width = len(headings)
    keep = [k for k in range(width) if any(len(line) == width and line[k] for line in table)] or list(range(4))
    lines = [tuple(line[k] for k in keep) if len(line) == width else line for line in table]
    return [tuple(headings[k] for k in keep), *lines]


def aligned(lines: Sequence[tuple[str, ...]]) -> list[str]:
    full = len(lines[0])
    widths = [max(len(line[k]) for line in lines if len(line) == full) for k in range(full)]
    left = 4  # columns of words; the rest are numbers
    for line in lines:  # the words of a failure count too
        widths[: min(left, full)] = [max(w, len(word)) for w, word in zip(widths, line[:left])]
    put = lambda k, word: word.ljust(widths[k]) if k < left else word.rjust(widths[k])
    return ["  ".join(put(k, word) if k < len(widths) and (k < left or len(line) == full) else word for k, word in enumerate(line)).rstrip()
            for line in lines]  # fmt: skip


def legend(bench: Bench) -> list[str]:
    """What the columns mean, where they are there; and what to know."""
    rows = [row for row in bench.rows if row.timing]
    said = ["± half the distance from the 10th to the 90th percentile of n passes; share: of the large product's rate"]
    if any(row.ratio for row in rows):
        said.append("x peer: images/s of ours over the fastest peer at the same model and batch, each at its best")
    if any(row.agrees is not None for row in rows):
        said.append("agrees: largest relative distance of the logits, from ours in fp32, or of the first losses, from the first row")
    if any(row.case.mode.startswith("--fast") for row in rows):
        said.append("--fast: its candidates, the best pass; agrees: their distributions' mean total variation from the exact model's")
    if bench.versions:
        said.append("versions: " + ", ".join(f"{name} {version}" for name, version in bench.versions.items()))
    return said + [f"note: {note}" for note in bench.notes]


def as_markdown(bench: Bench, command: str = "") -> str:
    """A page in the manner of benchmarks/results: command, machine, tables, what the columns mean."""
    lines = [f"# Speed on {bench.machine.device}", "", f"{bench.day}. {bench.machine}."]
    if command:
        lines += ["", "```", command, "```"]
    for work, title in TITLES.items():
        rows = [row for row in bench.rows if row.case.work == work]
        if not rows:
            continue
        table = used(HEADINGS, rows)
        full = len(table[0])
        lines += ["", f"## {title}", "", "| " + " | ".join(table[0]) + " |", "|" + " --- |" * full]
        lines += ["| " + " | ".join((*line, *[""] * (full - len(line)))) + " |" for line in table[1:]]
    if found := summary(bench):
        lines += ["", "## Ours beside the best peer", "", *found]
    return "\n".join([*lines, "", *(f"- {said}" for said in legend(bench)), f"- the whole run took {bench.seconds:.0f} s", ""])


def summary(bench: Bench) -> list[str]:
    """One line for each piece of work that both did."""
    said = []
    for work, model, batch in dict.fromkeys((row.case.work, row.case.model, row.case.batch) for row in bench.rows):
        ours = bench.best(work, model, batch, OURS)
        theirs = max(
            (row for row in bench.rows if (row.case.work, row.case.model, row.case.batch) == (work, model, batch)
             and row.case.system != OURS and row.timing),
            key=lambda row: row.images_per_s, default=None,
        )  # fmt: skip
        if ours is not None and theirs is not None:
            said.append(
                f"- {work} {model}, batch {batch}: {ours.images_per_s:,.1f} images/s ({ours.case.mode}, {ours.case.precision}) against "
                f"{theirs.images_per_s:,.1f} of {theirs.case.system} ({theirs.case.mode}, {theirs.case.precision}): "
                f"{ours.images_per_s / theirs.images_per_s:.2f} times"
            )
    return said
