"""Vitrail: Vision Transformers as in "An Image is Worth 16x16 Words", as software.

The public names below are loaded on first use, so that `import vitrail` is free.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import Any

from vitrail.errors import refuse_windows

__version__ = "0.1.0"

# public name -> the module that defines it
_PUBLIC = {
    "create_model": "vitrail.weights.create",
    "list_models": "vitrail.model.variants",
    "catalogue": "vitrail.model.catalogue",
    "describe": "vitrail.model.catalogue",
    "load_model": "vitrail.weights.load",
    "save_model": "vitrail.weights.store",
    "convert": "vitrail.weights.convert",
    "Card": "vitrail.weights.card",
    "open_source": "vitrail.data.source",
    "train": "vitrail.train.loop",
    "finetune": "vitrail.train.finetune",
    "sweep": "vitrail.train.sweep",
    "evaluate": "vitrail.evaluate.classify",
    "fewshot": "vitrail.evaluate.fewshot",
    "knn": "vitrail.evaluate.knn",
    "probe": "vitrail.evaluate.probe",
    "corruption": "vitrail.evaluate.corruption",
    "vtab": "vitrail.train.vtab",
    "inspect": "vitrail.inspect.report",
    "predict": "vitrail.ship.predict",
    "Predictor": "vitrail.ship.predictor",
    "export": "vitrail.ship.export",
    "push": "vitrail.ship.push",
    "bench": "vitrail.study.bench",
    "doctor": "vitrail.study.doctor",
    "reproduce": "vitrail.study.reproduce",
}
__all__ = ["__version__", *_PUBLIC]  # noqa: PLE0604


# rooms of the house whose name is also that of their verb: vitrail.train(recipe, out) and vitrail.train.loop
_ROOMS = ("train", "evaluate", "inspect")


class Room(ModuleType):
    """A package that is called as its verb."""

    @property
    def __wrapped__(self) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(importlib.import_module(_PUBLIC[name]), name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.__wrapped__(*args, **kwargs)


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        refuse_windows()
    if name in _ROOMS:
        return importlib.import_module(f"vitrail.{name}")
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'vitrail' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
