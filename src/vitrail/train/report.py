"""`report.html` of a fine-tuning: the number, the curve, what is confused with what, and where the model looked.

One file, no network: pictures and charts are inside it. Charts are SVG written here, so the
page needs no plotting library.
"""

from __future__ import annotations

import base64
import html
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitrail.data.source import open_source
from vitrail.errors import DecodeError
from vitrail.evaluate.classify import Evaluation
from vitrail.inspect.maps import attention_rollout
from vitrail.inspect.overlay import overlay
from vitrail.runtime.metrics import read_metrics

__all__ = ["write_report"]

SHOWN = 8  # pictures of each kind
MOST_CLASSES = 30  # beyond it the table of confusions would be unreadable; the list of the commonest stays

STYLE = """
:root { --ink:#1d1d22; --paper:#fff; --faint:#8a8a94; --line:#e3e3ea; --blue:#0072b2; --orange:#d55e00 }
@media (prefers-color-scheme: dark) {
  :root { --ink:#e9e9ee; --paper:#17171b; --faint:#92929c; --line:#33333b; --blue:#56b4e9; --orange:#e69f00 } }
body { font:16px/1.5 system-ui,sans-serif; color:var(--ink); background:var(--paper); max-width:60rem; margin:2rem auto; padding:0 1rem }
h1 { font-size:1.6rem } h2 { margin-top:2.5rem; font-size:1.2rem }
.big { font-size:2.4rem; font-weight:600 } .faint { color:var(--faint) } .scroll { overflow-x:auto }
svg text { fill:var(--faint); font:12px system-ui } figure { margin:0 } figure img { width:100%; border-radius:4px }
figcaption { font-size:.85rem } .pictures { display:grid; grid-template-columns:repeat(auto-fill,minmax(12rem,1fr)); gap:1rem }
table.confusion { border-collapse:collapse; font-size:.72rem }
table.confusion td,table.confusion th { padding:.15rem .35rem; text-align:right }
table.confusion th.side { text-align:left; font-weight:400 }
table.plain td, table.plain th { padding:.2rem .8rem .2rem 0; text-align:left }
"""


def write_report(folder: Path, model: Any, measured: Evaluation, reasons: Sequence[str], extra: Sequence[tuple[str, str]] = ()) -> Path:
    """Write folder/report.html. `model` is the one that was measured; `extra` are more (title, HTML) sections, first."""
    sections = [
        *extra,
        ("How it learned", curves(folder / "metrics.jsonl")),
        ("What is taken for what", confusion(measured)),
        ("Class by class", per_class(measured)),
        *pictures(model, measured),
        ("What was chosen, and why", "<ul>" + "".join(f"<li>{html.escape(line)}</li>" for line in reasons) + "</ul>"),
    ]
    body = "".join(f"<h2>{html.escape(title)}</h2>{content}" for title, content in sections if content)
    path = folder / "report.html"
    policy = "<meta http-equiv='Content-Security-Policy' content=\"default-src 'none'; img-src data:; style-src 'unsafe-inline'\">"
    path.write_text(
        f"<!doctype html><html lang=en><meta charset=utf-8><meta name=viewport content='width=device-width'>{policy}"
        f"<title>{html.escape(folder.name)}</title><style>{STYLE}</style><h1>{html.escape(folder.name)}</h1>{headline(measured)}{body}",
        "utf-8",
    )
    return path


def headline(measured: Evaluation) -> str:
    missing = f", {measured.unreadable} more could not be read" if measured.unreadable else ""
    return (
        f"<p class=big>{100 * measured.top1.value:.1f} %</p><p>of {measured.images:,} held-out images are named correctly "
        f"(95 % interval {100 * measured.top1.low:.1f} to {100 * measured.top1.high:.1f} %{missing}). "
        f"<span class=faint>{html.escape(measured.data)}, split {html.escape(str(measured.split))}; "
        f"calibration error {100 * measured.counts.ece:.1f} points.</span></p>"
    )


# ---------------------------------------------------------------- charts


def curves(metrics: Path) -> str:
    """Training loss (blue) and held-out accuracy (orange) over steps."""
    lines = list(read_metrics(metrics)) if metrics.exists() else []
    loss = [(line["step"], float(line["loss"])) for line in lines if isinstance(line.get("loss"), float)]
    accuracy = [(line["step"], 100 * line["eval"]["top1"]) for line in lines if "top1" in line.get("eval", {})]
    if not loss:
        return ""
    last = max(step for step, _ in [*loss, *accuracy])
    parts = [axes(last)]
    parts.append(trace(loss, last, max(value for _, value in loss), "var(--blue)"))
    if accuracy:
        parts.append(trace(accuracy, last, 100.0, "var(--orange)", dots=True))
    top = max(value for _, value in loss)
    parts.append(f"<text x=4 y=16 style='fill:var(--blue)'>training loss, up to {top:.2f}</text>")
    parts.append("<text x=596 y=16 text-anchor=end style='fill:var(--orange)'>held-out accuracy, up to 100 %</text>")
    return f"<svg viewBox='0 0 600 260' role=img aria-label='loss and accuracy over steps'>{''.join(parts)}</svg>"


def axes(last: int) -> str:
    lines = "".join(f"<line x1=4 x2=596 y1={y} y2={y} stroke='var(--line)'/>" for y in (24, 78, 132, 186, 240))
    return lines + f"<text x=4 y=256>step 0</text><text x=596 y=256 text-anchor=end>{last:,}</text>"


def trace(points: Sequence[tuple[int, float]], last: int, top: float, colour: str, dots: bool = False) -> str:
    place = [(4 + 592 * step / max(1, last), 240 - 216 * value / max(1e-9, top)) for step, value in points]
    line = " ".join(f"{x:.1f},{y:.1f}" for x, y in place)
    marks = "".join(f"<circle cx={x:.1f} cy={y:.1f} r=3 fill='{colour}'/>" for x, y in place) if dots else ""
    return f"<polyline points='{line}' fill=none stroke='{colour}' stroke-width=2 />{marks}"


def confusion(measured: Evaluation) -> str:
    """The table where it can be read, and the commonest mistakes in words."""
    name = lambda k: html.escape(measured.classes[k])
    worst = "".join(f"<li>{name(true)} taken for {name(said)}: {count}</li>" for true, said, count in measured.counts.confused(8))
    words = f"<ul>{worst}</ul>" if worst else "<p>No mistake.</p>"
    table = measured.counts.confusion
    if table is None or len(measured.classes) > MOST_CLASSES:
        return words
    share = table / np.maximum(1, table.sum(1, keepdims=True))
    head = "<tr><th class=side>is ↓ said →</th>" + "".join(f"<th>{name(k)}</th>" for k in range(len(table))) + "</tr>"
    rows = "".join(
        f"<tr><th class=side>{name(i)}</th>" + "".join(cell(int(table[i, k]), share[i, k], i == k) for k in range(len(table))) + "</tr>"
        for i in range(len(table))
    )
    return f"<div class=scroll><table class=confusion>{head}{rows}</table></div>{words}"


def cell(count: int, share: float, right: bool) -> str:
    colour = "0,114,178" if right else "213,94,0"
    return f"<td style='background:rgba({colour},{min(0.85, share if right else 3 * share):.2f})'>{count or ''}</td>"


def per_class(measured: Evaluation) -> str:
    """Recall of every class as bars, worst first."""
    rows = [
        (row["recall"], row["images"], name) for name, row in zip(measured.classes, measured.counts.per_class) if row["recall"] is not None
    ]
    rows.sort(key=lambda row: (row[0], row[2]))
    shown = rows[:MOST_CLASSES]
    bar = lambda part: f"<svg width=200 height=12><rect width={200 * part:.0f} height=12 fill='var(--blue)'/></svg>"
    lines = [
        f"<tr><td>{html.escape(name)}</td><td>{bar(recall)}</td><td>{100 * recall:.1f} %</td><td class=faint>of {images:,}</td></tr>"
        for recall, images, name in shown
    ]
    more = f"<p class=faint>The {len(shown)} hardest of {len(rows)} classes.</p>" if len(shown) < len(rows) else ""
    return f"<table class=plain>{''.join(lines)}</table>{more}"


# ---------------------------------------------------------------- pictures


def pictures(model: Any, measured: Evaluation) -> list[tuple[str, str]]:
    """The surest mistakes and some right answers, each with the attention rollout over it."""
    answers = measured.answers
    if answers is None or answers.labels.ndim != 1 or not hasattr(model, "blocks"):
        return []
    source = open_source(measured.data, split=measured.split)
    right = answers.guesses[:, 0] == answers.labels
    by_confidence = np.argsort(-answers.confidence, kind="stable")
    wrong_rows = by_confidence[~right[by_confidence]][:SHOWN]
    good = np.flatnonzero(right)
    right_rows = good[np.unique(np.linspace(0, max(0, len(good) - 1), min(SHOWN, len(good))).astype(int))] if len(good) else good
    sections = []
    for title, rows in (("Wrong, and most sure of it", wrong_rows), ("Right, and where it looked", right_rows)):
        figures = "".join(figure(model, source, measured, int(row)) for row in rows)
        if figures:
            sections.append((title, f"<div class=pictures>{figures}</div>"))
    return sections


def figure(model: Any, source: Any, measured: Evaluation, row: int) -> str:
    from vitrail.data import decode

    answers = measured.answers
    assert answers is not None
    view = model.card.transform()
    try:
        original = decode.pixels(source.read(int(answers.index[row])).data)
    except DecodeError:
        return ""
    said, true = int(answers.guesses[row, 0]), int(answers.labels[row])
    device = next(model.parameters()).device
    heat = attention_rollout(model, view(original)[None].to(device))[0].cpu()
    laid = overlay(original, heat, view.box(*original.shape[:2]))
    words = f"{measured.classes[said]} ({100 * answers.confidence[row]:.0f} %)"
    if said != true:
        words += f", is {measured.classes[true]}"
    both = png(np.concatenate([original, laid], 1))
    return f"<figure><img alt='{html.escape(words)}' src='{both}'><figcaption>{html.escape(words)}</figcaption></figure>"


def png(pixels: np.ndarray) -> str:
    """As a data address, small pictures enlarged so that their pixels can be seen."""
    times = max(1, 128 // pixels.shape[0])
    image = Image.fromarray(pixels.repeat(times, 0).repeat(times, 1))
    image.thumbnail((640, 320))
    out = io.BytesIO()
    image.save(out, "PNG")
    return "data:image/png;base64," + base64.b64encode(out.getvalue()).decode()
