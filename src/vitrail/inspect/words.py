"""What the numbers of a report say, in a sentence each. Every threshold is stated in the sentence it decides."""

from __future__ import annotations

import math

from vitrail.inspect.attention import AttentionStatistics
from vitrail.inspect.filters import Filters
from vitrail.inspect.positions import Positions

__all__ = ["about_attention", "about_entropy", "about_filters", "about_positions"]


def about_filters(found: Filters) -> str:
    first = found.explained[:28].sum().item()
    rows, columns, channels = found.raw.shape[1:]
    return (
        f"{len(found.raw)} filters of {rows} x {columns} pixels and {channels} channel{'s' if channels > 1 else ''}. "
        f"{found.needed} of {len(found.explained)} components explain 95 % of their variance; "
        f"the first {min(28, len(found.explained))} explain {100 * first:.0f} %."
    )


def about_positions(found: Positions) -> str:
    score = found.scores
    numbers = ", ".join(f"{name} {score[key]:.2f}" for name, key in NAMES if not math.isnan(score[key]))
    return f"Mean cosine with: {numbers}. {verdict(score)}"


NAMES = (
    ("direct neighbours", "neighbours"),
    ("the rest of the row", "same_row"),
    ("the rest of the column", "same_column"),
    ("all others", "elsewhere"),
)


def verdict(score: dict[str, float]) -> str:
    row, column = (score[key] - score["elsewhere"] for key in ("same_row", "same_column"))
    seen = [name for name, value in (("rows", row), ("columns", column)) if value > 0.1]
    if seen:
        return f"{' and '.join(seen).capitalize()} are told apart (more than 0.1 above all others)."
    near = score["neighbours"] - score["elsewhere"]
    if near > 0.1:
        return "Neighbours are alike (more than 0.1 above all others), but neither rows nor columns stand out by 0.1."
    return "Neither neighbours nor rows nor columns stand out by 0.1: no sense of place is to be seen here."


def about_attention(found: AttentionStatistics) -> str:
    """Do heads look far in low layers? Figures 7 and 11: some do, some stay local; high layers all look far."""
    layers = len(found.layers)
    share = found.distance / found.uniform[:, None]
    low, high = share[: max(1, layers // 3)], share[layers - max(1, layers // 3) :]
    far, local = int((low > 0.75).sum()), int((low < 0.5).sum())
    return (
        f"In the first {len(low)} of {layers} layers, {far} of {low.numel()} heads look farther than 3/4 of the uniform distance "
        f"and {local} stay under half of it (from {found.distance[: len(low)].min():.1f} to {found.distance[: len(low)].max():.1f} px). "
        f"In the last {len(high)}, {int((high > 0.75).sum())} of {high.numel()} look farther than 3/4. "
        f"Looking everywhere alike is {found.uniform.max():.1f} px. Means over {found.images} images."
    )


def about_entropy(found: AttentionStatistics) -> str:
    flat = found.entropy.flatten()
    heads = found.entropy.shape[1]
    name = lambda at: f"layer {found.layers[at // heads]}, head {at % heads + 1}"
    sharp, broad = int(flat.argmin()), int(flat.argmax())
    text = (
        f"The sharpest head ({name(sharp)}) attends to about {2 ** flat[sharp]:.0f} tokens, the broadest ({name(broad)}) to about "
        f"{2 ** flat[broad]:.0f}."
    )
    if found.prefix.max() > 0:
        most = int(found.prefix.flatten().argmax())
        text += (
            f" Patches give up to {100 * found.prefix.max():.0f} % of their attention to tokens that are no patch ({name(most)}), "
            f"{100 * found.prefix.mean():.0f} % on average."
        )
    return text
