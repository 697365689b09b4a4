"""A run's model as one file with its identity card: what everybody else loads."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from vitrail import __version__
from vitrail.config import to_dict
from vitrail.model.variants import build, config_to_dict
from vitrail.runtime import distributed
from vitrail.train.adapt import merged_state
from vitrail.train.run import Run
from vitrail.weights.card import Card, numerics_of
from vitrail.weights.store import save_model

__all__ = ["card_for", "publish"]


def publish(run: Run, path: Path, figures: Mapping[str, Any]) -> None:
    """Write the averaged weights (or the plain ones) and the card. Every rank takes part: shards are gathered."""
    average = run.ema.applied(run.model) if run.ema is not None else nullcontext()
    with average:
        weights = {name: distributed.whole(tensor).detach().to("cpu", copy=True) for name, tensor in merged_state(run.model).items()}
    if not distributed.is_main():
        return
    twin = build(run.model.config, init=False)
    twin.load_state_dict(weights, assign=True)
    try:
        save_model(twin, path, card=card_for(run, figures), dtype=run.recipe.train.publish_dtype)
    except OSError as error:
        warnings.warn(f"{path} could not be written ({error}); the checkpoints are not affected", stacklevel=2)


def card_for(run: Run, figures: Mapping[str, Any]) -> Card:
    source = run.sources.train
    config = run.model.config
    parent = run.recipe.model.weights
    return Card(
        name=run.recipe.name or run.recipe.model.name,
        model=config_to_dict(config),
        origin="vitrail",
        numerics=numerics_of(config),
        preprocess=run.preprocess.to_dict(),
        classes=source.classes if config.classes else (),
        metrics={**figures, "step": run.state.step} if figures else {},
        data=f"{source.name} ({source.split or 'all'}, {len(source):,} images, fingerprint {source.fingerprint[:12]})",
        recipe=to_dict(run.recipe),
        notes=(f"trained by vitrail {__version__}", *source.notes),
        parents=(parent,) if parent else (),
    )
