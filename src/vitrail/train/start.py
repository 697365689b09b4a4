"""The model a run starts from: fresh, or from weights; all of it learning, or a part."""

from __future__ import annotations

import dataclasses
from typing import Any

import torch
from torch import nn

from vitrail.config import Recipe
from vitrail.data.classes import require_same_classes
from vitrail.data.source import Source
from vitrail.errors import UsageError, nearest
from vitrail.model.variants import build, create_model
from vitrail.train.adapt import adapt

__all__ = ["starting_model"]

UNLABELLED = ("masked_patches", "mae")  # objectives that need no class


def starting_model(recipe: Recipe, source: Source) -> nn.Module:
    """On the CPU, in float32; what the recipe calls frozen takes no gradient."""
    unlabelled = recipe.objective.loss in UNLABELLED
    classes = 0 if unlabelled else (recipe.model.classes or len(source.classes))
    model = fresh(recipe, classes) if recipe.model.weights is None else continued(recipe, classes, source)
    model.recompute = recipe.train.checkpoint_blocks or ("parts" if recipe.train.save_memory else False)  # type: ignore[assignment]
    return adapt(model, recipe.adapt, seed=recipe.train.seed)


def fresh(recipe: Recipe, classes: int) -> nn.Module:
    options = dict(recipe.model.options)
    if recipe.objective.head_bias and classes:
        options.setdefault("head_bias_init", recipe.objective.head_bias)
    return create_model(recipe.model.name, classes=classes, image_size=recipe.model.image_size, seed=recipe.train.seed, **options)


def continued(recipe: Recipe, classes: int, source: Source) -> nn.Module:
    """From weights: a new zero head for these classes, or the old head, when it is for the same classes."""
    from vitrail.weights.load import load_model

    assert recipe.model.weights is not None
    new_head = recipe.model.new_head or classes == 0
    size = recipe.model.image_size
    model: Any = load_model(recipe.model.weights, image_size=size, classes=classes if new_head else None, new_head=new_head)
    if not new_head:
        theirs = model.card.classes or tuple(map(str, range(model.config.classes)))
        require_same_classes(theirs, source.classes, recipe.model.weights, source.name)
    elif recipe.objective.head_bias:
        with torch.no_grad():
            model.head.bias.fill_(recipe.objective.head_bias)
    model = with_options(model, recipe.model.options, recipe.train.seed)
    for parameter in model.parameters():  # loaded ones may be views of the mapped file, which must not learn
        parameter.data = parameter.data.clone()
        parameter.requires_grad_(True)
    return model


def with_options(model: Any, options: dict[str, Any], seed: int) -> nn.Module:
    """Loaded weights under the recipe's options (dropout, pooling, …); what would change a shape is refused.

    Parameters that only the new configuration has are drawn fresh; those only the old one had are dropped.
    """
    known = {field.name for field in dataclasses.fields(model.config)}
    for name in options:
        if name not in known:
            raise UsageError(f"model.options.{name}: a model has no such option{nearest(name, known)}.")
    wanted = {name: value for name, value in options.items() if getattr(model.config, name) != value}
    for of_old_head in ("head_bias_init", "representation"):  # a new head replaces what they describe
        wanted.pop(of_old_head, None)
    if not wanted:
        return model
    other: Any = build(model.config.replace(**wanted), seed=seed)
    ours, theirs = dict(other.named_parameters()), dict(model.named_parameters())
    odd = sorted(name for name in ours.keys() & theirs.keys() if ours[name].shape != theirs[name].shape)
    if odd:
        raise UsageError(
            f"model.options {', '.join(sorted(wanted))} would change the shape of {len(odd)} weights that exist, for example {odd[0]}.",
            hint="leave them out, or start from fresh weights (model.weights=none)",
        )
    with torch.no_grad():
        for name in ours.keys() & theirs.keys():
            ours[name].copy_(theirs[name])
    other.card = getattr(model, "card", None)
    return other
