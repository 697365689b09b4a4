"""The run's curve as a picture: loss and accuracy over steps, from metrics.jsonl."""

from __future__ import annotations

from pathlib import Path

from vitrail.runtime.metrics import read_metrics

__all__ = ["draw_curve"]


def draw_curve(metrics: Path, picture: Path, title: str = "") -> Path | None:
    """Draw loss (left axis) and evaluation accuracy (right); None where matplotlib is not installed."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return None
    lines = list(read_metrics(metrics))
    losses = [(line["step"], line["loss"]) for line in lines if isinstance(line.get("loss"), float)]
    figures = [(line["step"], 100 * line["eval"]["top1"]) for line in lines if "top1" in line.get("eval", {})]
    figure = Figure(figsize=(8, 4.5), layout="constrained")
    left = figure.subplots()
    left.plot(*zip(*losses or [(0, 0.0)]), color="tab:blue", linewidth=1)
    left.set_xlabel("step")
    left.set_ylabel("training loss", color="tab:blue")
    left.set_title(title)
    if figures:
        right = left.twinx()
        right.plot(*zip(*figures), color="tab:orange", marker=".")
        right.set_ylabel("held-out accuracy, %", color="tab:orange")
    figure.savefig(picture, dpi=120)
    return picture
