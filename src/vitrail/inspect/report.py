"""`inspect`: everything there is to see of a model, as arrays, as files, and as one page.

    report = inspect("model.safetensors", "photos/", out="inside")
    report.attention.distance     # (layers, heads), pixels
    report.shown.rollout          # (images, rows, columns)

What a model cannot have (attention in a ResNet, positions in a bag of patches, a class to explain
without a head) is left out and named in `report.notes`; everything else is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.data.transform import Preprocess
from vitrail.errors import DataError, UsageError
from vitrail.evaluate.classes import owner_by_name
from vitrail.evaluate.score import evaluating
from vitrail.inspect import words
from vitrail.inspect.attention import AttentionStatistics, attention_statistics, attention_weights, layers_of
from vitrail.inspect.features import embedding_map, neighbours, token_colours
from vitrail.inspect.filters import Filters, filters
from vitrail.inspect.maps import attention_rollout, class_attention, gradient_rollout, logits_of
from vitrail.inspect.mistakes import Mistake, explain, most_confident
from vitrail.inspect.pictures import Picture, Pictures, open_pictures
from vitrail.inspect.positions import Positions, position_similarity
from vitrail.model.vit import VisionTransformer
from vitrail.runtime.device import pick_device

__all__ = ["Report", "Set", "Shown", "inspect"]

T = TypeVar("T")
MOST_TABLES = 6  # position tables that are drawn where every layer has its own
MOST_TSNE = 2000  # images; beyond it the map is of principal components


@dataclass(frozen=True)
class Shown:
    """The images that are drawn with their maps; tensors have one entry an image, maps are on the grid of patches.

    rollout, gradient    (S, rows, columns); gradient None for a model without a head
    heads                (S, layers, H, rows, columns): what the head of the model draws from, through each head
    from_patch           (S, layers, heads or 1, N, N): from which patch to which, heads averaged where they are many;
                         None where that would be too much for a page
    colours              (S, rows, columns, 3): principal components of the last tokens
    """

    places: list[int]
    pictures: list[Picture]
    colours: Tensor
    rollout: Tensor | None = None
    gradient: Tensor | None = None
    heads: Tensor | None = None
    from_patch: Tensor | None = None


@dataclass(frozen=True)
class Set:
    """All images that were looked at.

    features (N, D), flat (N, 2) or None; near: each one's nearest others (N, k) and their cosines
    labels (N) and classes of the data, where it has any; logits (N, K), where there is a head
    """

    ids: list[str]
    features: Tensor
    near: Tensor
    alike: Tensor
    flat: Tensor | None
    method: str
    labels: np.ndarray | None
    classes: tuple[str, ...]
    logits: Tensor | None
    owner: np.ndarray | None


@dataclass
class Report:
    """What `inspect` found; None where there was nothing to find, and then `notes` say why."""

    name: str
    model: dict[str, Any]
    outputs: tuple[str, ...]
    filters: Filters
    positions: list[Positions]
    attention: AttentionStatistics | None
    shown: Shown
    images: Set
    pictures: Pictures
    mistakes: list[Mistake]
    wrong: tuple[int, int] | None  # (mistakes, images with a label that counts)
    notes: list[str] = field(default_factory=list)
    path: Path | None = None

    def sentences(self) -> list[str]:
        """What is to be seen, a line a figure."""
        lines = [f"Filters: {words.about_filters(self.filters)}"]
        if self.positions:
            lines.append(f"Positions: {words.about_positions(self.positions[0])}")
        if self.attention is not None:
            lines += [f"Attention distance: {words.about_attention(self.attention)}", f"Entropy: {words.about_entropy(self.attention)}"]
        if self.wrong is not None:
            lines.append(f"Mistakes: {self.wrong[0]} of {self.wrong[1]} images.")
        return lines

    def to_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "model": self.model,
            "page": str(self.path / "report.html") if self.path else None,
            "filters": {"layer": self.filters.layer, "explained": self.filters.explained[:28].tolist(), "needed_95": self.filters.needed},
            "positions": [{"layer": p.layer, "kind": p.kind, "grid": list(p.grid), "scores": p.scores} for p in self.positions],
            "attention": self.attention.rows() if self.attention else [],
            "images": len(self.images.ids),
            "mistakes": [vars_of(mistake, self.images) for mistake in self.mistakes],
            "wrong": list(self.wrong) if self.wrong else None,
            "seen": self.sentences(),
            "notes": self.notes,
        }

    def __str__(self) -> str:
        lines = [f"{self.name}: {len(self.images.ids)} images looked at", *(f"  {line}" for line in self.sentences())]
        lines += [f"  note: {note}" for note in self.notes]
        return "\n".join(lines + ([f"  page: {self.path / 'report.html'}"] if self.path else []))


def vars_of(mistake: Mistake, images: Set) -> dict[str, Any]:
    names = images.classes
    return {
        "id": images.ids[mistake.place],
        "truth": names[mistake.truth],
        "said": names[mistake.said],
        "confidence": round(mistake.confidence, 6),
    }


def inspect(
    model: nn.Module | str | os.PathLike,
    images: Any = None,
    *,
    out: str | os.PathLike | None = None,
    split: str | None = None,
    count: int = 128,
    show: int = 8,
    tsne: bool = True,
    image_size: int | tuple[int, int] | None = None,
    device: str | None = None,
) -> Report:
    """Look inside a model: filters, positions, attention, features and mistakes.

    model     a model, or weights of any format and origin that `load_model` reads
    images    an address (folder, csv, parquet, `builtin:fashion`, …), a file, a list of files, or a Source;
              None: coloured shapes, drawn for the occasion
    out       a folder for report.html, PNGs, csv and json; None: nothing is written
    split     of the images; None: test, else val, else train
    count     images for the statistics, features and mistakes, spread evenly over the source (the paper took 128)
    show      how many of them are drawn with their maps
    tsne      the map of the set keeps neighbours (t-SNE); False: it is of the first two principal components
    image_size  to look at another size than the weights'; positions are resampled to it
    device    where to run weights that are loaded here; a model stays where it is
    """
    loaded, name = opened(model, device, image_size)
    notes: list[str] = []
    with evaluating(loaded):
        pictures = open_pictures(images, preprocess_of(loaded), split=split, count=count)
        looked_at = survey(loaded, pictures, notes, tsne)
        attempt = lambda work: attempted(work, notes)
        statistics = attempt(lambda: attention_statistics(loaded, (views for _, views in pictures.batches(batch_size(loaded)))))
        shown = shown_of(loaded, pictures, show, attempt)
        wrong, found = mistaken(loaded, pictures, looked_at, attempt)
        report = Report(
            name=name,
            model=described(loaded),
            outputs=outputs_of(loaded, looked_at),
            filters=filters(loaded),
            positions=attempt(lambda: positions_of(loaded)) or [],
            attention=statistics,
            shown=shown,
            images=looked_at,
            pictures=pictures,
            mistakes=found,
            wrong=wrong,
        )
    report.notes = [*dict.fromkeys([*pictures.notes, *notes])]
    if out is not None:
        from vitrail.inspect.files import write

        report.path = write(report, Path(out))
    return report


# ---- what is looked at ----


def opened(model: nn.Module | str | os.PathLike, device: str | None, image_size: Any) -> tuple[nn.Module, str]:
    """A model and what to call it."""
    if isinstance(model, nn.Module):
        if image_size is not None:
            raise UsageError("image_size= is for weights that are loaded here.", hint="model.resize(image_size) before")
        card = getattr(model, "card", None)
        return model, getattr(card, "name", "") or type(model).__name__
    from vitrail.weights.load import load_model

    loaded = load_model(model, image_size=image_size)
    return loaded.to(pick_device(device)), getattr(loaded.card, "name", "") or Path(os.fspath(model)).name  # type: ignore[union-attr]


def preprocess_of(model: Any) -> Preprocess:
    """The evaluation view of the weights' card, at the model's present size; without a card the paper's."""
    import dataclasses

    card = getattr(model, "card", None)
    size = tuple(model.config.image_size)
    if card is not None and card.preprocess:
        view = card.transform()
        changed = {} if tuple(view.image_size) == size else {"image_size": size, "resize": None}
        return dataclasses.replace(view, **changed)
    if model.config.channels not in (1, 3):
        raise UsageError(f"this model takes {model.config.channels} channels; images have 3 (RGB), or 1 (luma).")
    return Preprocess(size, channels=model.config.channels, mean=(0.5,), std=(0.5,))


def outputs_of(model: Any, looked_at: Set) -> tuple[str, ...]:
    """What the outputs are called: by the card, or by the data that the model was taken to fit, or numbers."""
    named = (tuple(getattr(getattr(model, "card", None), "classes", ())), looked_at.classes if looked_at.owner is not None else ())
    return next((names for names in named if len(names) == model.config.classes), tuple(map(str, range(model.config.classes))))


def described(model: Any) -> dict[str, Any]:
    from vitrail.model.variants import config_to_dict

    parameters = sum(parameter.numel() for parameter in model.parameters())
    return {**config_to_dict(model.config), "grid": list(model.config.grid), "parameters": parameters}


def batch_size(model: Any) -> int:
    """Images at once, so that one layer's activations stay around 64 MB."""
    width = getattr(model.config, "mlp_width", 4 * getattr(model.config, "width", 256))
    return max(1, min(32, (1 << 24) // (model.config.tokens * width)))


def attempted(work: Callable[[], T], notes: list[str]) -> T | None:
    """What work gives; where the model cannot have it, None, and the reason as a note."""
    try:
        return work()
    except UsageError as reason:
        notes.append(reason.message)
        return None


# ---- the set ----


def survey(model: Any, pictures: Pictures, notes: list[str], tsne: bool) -> Set:
    """Features and logits of every image; which are alike."""
    features, logits = [], []
    for _, views in pictures.batches(batch_size(model)):
        given = views.to(next(model.parameters()))
        tokens = model.tokens(given)
        pooled = model.pool(tokens)
        features.append((pooled if pooled.ndim == 2 else pooled.mean(1)).float().cpu())
        if model.config.classes:
            logits.append((logits_of(model, tokens) if isinstance(model, VisionTransformer) else model.head(pooled)).float().cpu())
    if pictures.unreadable:
        notes.append(f"{len(pictures.unreadable)} images could not be read: {'; '.join(pictures.unreadable[:5])}")
    if not features:
        raise DataError("none of the images can be read.", hint="vitrail data check names what is wrong with each")
    every = torch.cat(features)
    near, alike = neighbours(every, every, k=8, leave_out=torch.arange(len(every)))
    method = "tsne" if tsne and len(every) <= MOST_TSNE else "pca"
    flat = attempted(lambda: embedding_map(every, method=method), notes)
    answers = torch.cat(logits) if logits else None
    labels, owner = usable_labels(model, pictures, answers, notes)
    ids = [pictures.source.id(number) for number in pictures.index]
    return Set(ids, every, near, alike, flat, method, labels, tuple(pictures.source.classes), answers, owner)


def usable_labels(model: Any, pictures: Pictures, logits: Tensor | None, notes: list[str]) -> tuple[np.ndarray | None, np.ndarray | None]:
    """Labels of the data; and which class each output stands for, where that is known (an array, identity spelled out)."""
    labels = pictures.labels()
    if labels is None or logits is None:
        return labels, None
    names, classes = tuple(getattr(getattr(model, "card", None), "classes", ())), tuple(pictures.source.classes)
    if not names:
        if logits.shape[1] != len(classes):
            notes.append(f"the model has {logits.shape[1]} outputs without names, the data {len(classes)} classes: mistakes are not known.")
            return labels, None
        notes.append("the model does not name its classes; they are taken to be the data's, in their order.")
        return labels, np.arange(len(classes))
    try:
        owner = owner_by_name(names, classes, "the model", "the data")
    except DataError as reason:
        notes.append(f"mistakes are not known: {reason.message}")
        return labels, None
    return labels, np.arange(len(classes)) if owner is None else owner


# ---- the parts ----


def positions_of(model: Any) -> list[Positions]:
    """The table of positions, or those of up to MOST_TABLES layers."""
    first = position_similarity(model)
    layers = np.linspace(0, first.tables - 1, min(first.tables, MOST_TABLES)).round().astype(int)
    return [first] + [position_similarity(model, layer=int(layer)) for layer in layers[1:]]


def shown_of(model: Any, pictures: Pictures, show: int, attempt: Callable) -> Shown:
    """Some images, spread over those looked at, with every map there is of them."""
    places = sorted({int(place) for place in np.linspace(0, len(pictures) - 1, max(1, min(show, len(pictures)))).round()})
    chosen = [pictures.read(place) for place in places]
    views, size = torch.stack([picture.view for picture in chosen]), batch_size(model)
    colours = token_colours(model, views, batch_size=size)
    if not isinstance(model, VisionTransformer):
        return Shown(places, chosen, colours)
    return Shown(
        places,
        chosen,
        colours,
        rollout=attention_rollout(model, views, batch_size=size).float(),
        gradient=attempt(lambda: gradient_rollout(model, views, batch_size=size).float()),
        heads=class_attention(model, views, batch_size=size).float(),
        from_patch=patch_to_patch(model, views),
    )


PATCH_BYTES = 6 << 20  # on the page, of all images together


def patch_to_patch(model: VisionTransformer, views: Tensor) -> Tensor | None:
    """(S, layers, H or 1, N, N): one layer of one image at a time, and heads averaged where the page would get too large."""
    config, layers = model.config, layers_of(model)
    patches = config.grid[0] * config.grid[1]
    one = len(views) * len(layers) * patches * patches
    if one > PATCH_BYTES or layers[0].axis is not None:
        return None
    heads = config.heads if one * config.heads <= PATCH_BYTES else 1
    out = torch.empty(len(views), len(layers), heads, patches, patches)
    for number, view in enumerate(views):
        for layer in range(len(layers)):
            weights = attention_weights(model, view[None], layer)[0, :, config.prefix :, config.prefix :].float()
            out[number, layer] = (weights if heads > 1 else weights.mean(0, keepdim=True)).cpu()
    return out


def mistaken(model: Any, pictures: Pictures, looked_at: Set, attempt: Callable) -> tuple[tuple[int, int] | None, list[Mistake]]:
    """((how many are wrong, of how many), the most confident of them with maps)."""
    if looked_at.owner is None or looked_at.logits is None or looked_at.labels is None:
        return None, []
    every = most_confident(looked_at.logits, looked_at.labels, owner=looked_at.owner, count=len(looked_at.labels))
    worst = every[:8]
    if worst and isinstance(model, VisionTransformer):
        views = torch.stack([pictures.read(mistake.place).view for mistake in worst])
        worst = attempt(lambda: explain(model, views, worst)) or worst
    return (len(every), len(looked_at.labels)), worst
