"""The identity card of a set of weights: what they are, whose, and how an image must be prepared for them.

It travels inside the safetensors header as one JSON text, with a hash of its own, so a
model is one file. Reading a card builds nothing and opens nothing: it is checked as data.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from vitrail.errors import CheckpointError, VitrailError, nearest

if TYPE_CHECKING:
    from vitrail.data.transform import Preprocess

__all__ = ["KEY", "VERSION", "Card", "card_of", "numerics_of"]

KEY = "vitrail"  # of the card in a safetensors header; KEY + ".sha256" holds the hash of its text
VERSION = 1


@dataclass(frozen=True)
class Card:
    """Everything that the numbers of a model do not say.

    name        what people call it; the file's name where nobody said
    model       the configuration (`model.variants.config_to_dict`)
    origin      the format the weights first came from, "npz:prelinen", "timm", …; "vitrail" for our own
    numerics    GELU kind, epsilons, paddings, interpolation of positions (a readable copy of what `model` says)
    preprocess  the evaluation view (`data.transform.Preprocess.to_dict`)
    classes     class names in the order of the logits
    metrics     measured numbers by name
    data        what it was trained on, in words
    recipe      how (a recipe as a dictionary), where known
    license     of the weights
    notes       what was inferred, resized, folded or left out on the way here
    hashes      SHA-256 of each parameter's bytes as stored, by name
    parents     where the weights came from: files, URIs, names
    """

    name: str = ""
    model: Mapping[str, Any] = field(default_factory=dict)
    origin: str = "vitrail"
    numerics: Mapping[str, Any] = field(default_factory=dict)
    preprocess: Mapping[str, Any] = field(default_factory=dict)
    classes: tuple[str, ...] = ()
    metrics: Mapping[str, Any] = field(default_factory=dict)
    data: str = ""
    recipe: Mapping[str, Any] | None = None
    license: str = ""
    notes: tuple[str, ...] = ()
    hashes: Mapping[str, str] = field(default_factory=dict)
    parents: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for name in ("classes", "notes", "parents"):
            object.__setattr__(self, name, tuple(getattr(self, name)))

    @property
    def config(self) -> Any:
        """The configuration of the model."""
        from vitrail.model.variants import config_from_dict

        return config_from_dict(dict(self.model))

    @property
    def fingerprint(self) -> str:
        """One hash of all parameters: equal for equal weights, whatever file they came from."""
        lines = "".join(f"{name} {value}\n" for name, value in sorted(self.hashes.items()))
        return hashlib.sha256(lines.encode()).hexdigest()

    def transform(self, training: bool = False) -> Preprocess:
        """The preprocessing these weights expect, as a callable: image -> (C, H, W).

        `training`: the same size and value range without the centre crop, for pictures that were cropped at random before.
        """
        from vitrail.data.transform import Preprocess

        grey: dict[str, Any] = {"mean": (0.5,), "std": (0.5,), "channels": 1} if self.model.get("channels") == 1 else {}
        view = Preprocess.from_dict(dict(self.preprocess)) if self.preprocess else Preprocess(self.config.image_size, **grey)
        return dataclasses.replace(view, mode="squash", resize=None) if training else view

    def replace(self, **changes: Any) -> Card:
        """The same card with some entries changed."""
        return dataclasses.replace(self, **changes)

    # ---- as data ----

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types, the version first."""
        return {"version": VERSION, **json.loads(json.dumps(dataclasses.asdict(self)))}

    @classmethod
    def from_dict(cls, table: Mapping[str, Any], where: str = "card") -> Card:
        """The inverse of `to_dict`; every entry is checked."""
        version = table.get("version", VERSION)
        if not isinstance(version, int) or version > VERSION:
            raise CheckpointError(
                f"{where}: a card of version {version!r}; this Vitrail reads up to {VERSION}.", hint="pip install --upgrade vitrail"
            )
        defaults = {item.name: item for item in dataclasses.fields(cls)}
        values = {key: value for key, value in table.items() if key != "version"}
        for key, value in values.items():
            if key not in defaults:
                raise CheckpointError(f"{where}: a card has no entry {key!r}{nearest(key, defaults)}.")
            if not _fits(key, value):
                raise CheckpointError(f"{where}: {key} of the card cannot be {str(value)[:80]!r}.", hint="get the file again")
        return cls(**values)

    # ---- inside a safetensors header ----

    def to_metadata(self) -> dict[str, str]:
        """The header entries that hold this card; the same card gives the same bytes."""
        text = json.dumps(self.to_dict(), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        return {"format": "pt", KEY: text, f"{KEY}.sha256": hashlib.sha256(text.encode()).hexdigest()}

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, str], where: str = "card") -> Card:
        """The card of a safetensors header; a damaged one is refused."""
        text = metadata[KEY]
        said = metadata.get(f"{KEY}.sha256")
        if said is not None and said != hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest():
            raise CheckpointError(f"{where}: the identity card does not match its hash.", hint="get the file again from its origin")
        try:
            table = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise CheckpointError(f"{where}: the identity card is no JSON ({error}).", hint="get the file again") from None
        if not isinstance(table, dict):
            raise CheckpointError(f"{where}: the identity card is no JSON object.", hint="get the file again")
        return cls.from_dict(table, where)


_TEXTS = ("name", "origin", "data", "license")
_LISTS = ("classes", "notes", "parents")


def _fits(key: str, value: Any) -> bool:
    if key in _TEXTS:
        return isinstance(value, str)
    if key in _LISTS:
        return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
    if key == "hashes":
        return isinstance(value, dict) and all(isinstance(item, str) for item in value.values())
    return isinstance(value, dict) or (key == "recipe" and value is None)


def numerics_of(config: Any) -> dict[str, Any]:
    """The choices of a configuration that change digits and nothing else."""
    names = ("activation", "eps", "position_resample", "padding", "pool_pad", "norm_eps", "conv_eps", "conv_eps_in")
    said = {name: getattr(config, name) for name in names if hasattr(config, name)}
    stem = getattr(config, "stem", None)
    return said if stem is None else {**said, **{f"stem.{name}": getattr(stem, name) for name in names if hasattr(stem, name)}}


def card_of(model: Any, name: str = "") -> Card:
    """The card a model carries, brought up to date with its configuration; a fresh one where it carries none."""
    from vitrail.model.variants import config_to_dict

    carried = getattr(model, "card", None)
    card = carried if isinstance(carried, Card) else Card(name=name)
    config = model.config
    preprocess = dict(card.preprocess)
    if preprocess and tuple(preprocess.get("image_size", ())) != tuple(config.image_size):
        preprocess = resized_preprocess(preprocess, config.image_size)
    classes = card.classes if len(card.classes) == config.classes else ()
    return card.replace(model=config_to_dict(config), numerics=numerics_of(config), preprocess=preprocess, classes=classes)


def resized_preprocess(preprocess: Mapping[str, Any], image_size: tuple[int, int]) -> dict[str, Any]:
    """The same view at another size: what is cut away stays the same part of the image."""
    from vitrail.data.transform import Preprocess

    table = dict(preprocess)
    old, new = table.get("image_size"), list(image_size)
    if table.get("resize") and old:
        table["resize"] = max(*new, round(table["resize"] * min(new) / min(old)))
    table["image_size"] = new
    try:
        return Preprocess.from_dict(table).to_dict()
    except VitrailError:
        return Preprocess((image_size[0], image_size[1]), mean=tuple(table["mean"]), std=tuple(table["std"])).to_dict()
