"""`create_model`: a model by name, fresh from the paper's initialisation, with the identity card of one that has not learned yet."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from vitrail.model import variants
from vitrail.weights.card import card_of

__all__ = ["create_model"]


def create_model(
    name: str, *, classes: int | Sequence[str] = 1000, image_size: Any = None, seed: int = 0, **options: Any
) -> variants.Model:
    """A model by name ("B/16", "L/16@384", "R50+ViT-B/16", "R50x1"); `vitrail models` lists them.

    classes      how many, or their names, which then stand on the card
    image_size   pixels: 224, or (rows, columns); None: what the name says, else 224
    seed         every parameter is drawn from it and from the parameter's own name
    options      pool=, position=, drop_path=, registers=, …: see ViTConfig

    `model.card.transform()` prepares images as the model wants them; `save_model(model, path)` keeps both together.
    """
    names = () if isinstance(classes, int) else tuple(classes)
    count = classes if isinstance(classes, int) else len(names)
    model = variants.create_model(name, classes=count, image_size=image_size, seed=seed, **options)
    model.card = card_of(model, name).replace(classes=names)  # type: ignore[assignment]
    return model
