"""What every weight format of another system implements, and how a file finds its format.

A format decides on declared names and shapes alone (`Archive.entries`), never on values.
Its `rules` (see rules.py) serve reading and writing; all else is that origin's conventions
for what its files cannot say: heads, epsilon, activation, pooling, image size, preprocessing.

    file -> open_archive -> recognise -> view -> configuration -> rules -> model
    model -> cannot_hold? -> fold -> rules -> their file and sidecar

To add an origin: a module in weights/formats/ with `FORMATS = (MyFormat(),)`, and its
name in `MODULES` below.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import importlib.util
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from vitrail.errors import CheckpointError, UsageError
from vitrail.model.config import pair
from vitrail.weights.archive import Archive, Entry, Shape
from vitrail.weights.rules import Rule
from vitrail.weights.sidecar import Sidecar

if TYPE_CHECKING:
    from vitrail.data.transform import Preprocess
    from vitrail.weights.card import Card

__all__ = [
    "Format",
    "Overrides",
    "Reading",
    "blocks_of",
    "format_named",
    "formats",
    "heads_for",
    "recognise",
    "renamed",
    "size_for",
]

# modules of weights/formats/, in the order in which a tie is decided
MODULES = ("google", "bit", "timm", "huggingface", "torchvision", "facebook", "clip")


@dataclass(frozen=True)
class Overrides:
    """What the caller says about a file that cannot say it itself; None: the origin's convention."""

    heads: int | None = None
    eps: float | None = None
    activation: str | None = None
    pool: str | None = None  # "token", "gap", "map", "unpooled"
    image_size: tuple[int, int] | None = None
    pool_pad: str | None = None  # BiT: "zero" or "inf", how the root's max-pool is padded
    position_resample: str | None = None

    def over(self, **convention: Any) -> dict[str, Any]:
        """The convention's values with the caller's over them: `**overrides.over(eps=1e-6, activation="gelu")`."""
        said = {key: getattr(self, key, None) for key in convention}
        return {key: value if said[key] is None else said[key] for key, value in convention.items()}


@dataclass(frozen=True)
class Reading:
    """What a format makes of a file: the configuration at the file's own sizes.

    size_known False: the file has no image size (sincos positions, a ResNet) or only a number
    of positions that is no square; the first input, or image_size=, settles it.
    """

    config: Any  # ViTConfig or ResNetConfig
    size_known: bool = True
    notes: tuple[str, ...] = ()


class Format(ABC):
    """One origin's files. The class attributes are its face, the methods its conventions."""

    name: str  # the origin as cards and `vitrail convert --to` spell it: "timm", "hf", "torchvision", "npz"
    title: str  # as error messages spell it: "timm's vision_transformer"
    family: str | None = None  # the only family of models it can hold ("vit", "bit"), where there is one
    container: str = "safetensors"  # what it is written in: "safetensors", "npz", "pickle"
    filename: str = "model.safetensors"  # its usual name in a folder
    marks: tuple[str, ...] = ()  # regular expressions: every file of this origin has a name that matches each
    never: tuple[str, ...] = ()  # and none that matches one of these
    ignored: tuple[str, ...] = ()  # names that are no parameter of the image model: left out, and reported
    styles: tuple[str, ...] = ("",)  # spellings of the same names (generations); the first is written by default
    written: bool = True  # False: read only

    # ---- reading ----

    def view(self, archive: Archive) -> Archive:
        """The archive in this origin's plain spelling: prefixes removed, odd shapes settled (see `renamed`)."""
        return archive

    def recognise(self, archive: Archive, sidecar: Sidecar) -> float | None:
        """How surely this file is of this origin (more marks, more sure), or None."""
        names = list(self.view(archive).entries)
        if any(_any(pattern, names) for pattern in self.never) or self.unmatched(archive):
            return None
        return float(len(self.marks))

    def unmatched(self, archive: Archive) -> list[str]:
        """The marks that no name of the file bears; for the message about an unknown file."""
        names = list(self.view(archive).entries)
        return [pattern for pattern in self.marks if not _any(pattern, names)]

    def style_of(self, view: Archive) -> str:
        """Which of `styles` a file is spelled in."""
        return self.styles[0]

    @abstractmethod
    def configuration(self, view: Archive, sidecar: Sidecar, overrides: Overrides) -> Reading:
        """The model at the file's own sizes, by declared shapes, the sidecar, and this origin's conventions."""

    @abstractmethod
    def rules(self, config: Any, style: str = "") -> list[Rule]:
        """Every parameter this origin can have; those a model lacks fall away by themselves."""

    def preprocess(self, config: Any, sidecar: Sidecar) -> Preprocess:
        """How this origin prepares an image for these weights. Here: the paper's, [-1, 1] after a plain resize."""
        from vitrail.data.transform import Preprocess

        return Preprocess(config.image_size)

    def classes(self, sidecar: Sidecar) -> tuple[str, ...]:
        """Class names, where the sidecar knows them."""
        return ()

    # ---- writing ----

    def cannot_hold(self, config: Any) -> list[str]:
        """Why this origin has no place for such a model, one sentence a reason; empty: it has.

        About parameters and structure only. Where its readers merely compute otherwise (another GELU, another
        epsilon), the file holds the model, and `convert` measures and reports what that does to the logits.
        """
        return []

    def fold(self, config: Any, state: dict[str, Tensor]) -> tuple[Any, dict[str, Tensor], tuple[str, ...]]:
        """The same function with fewer parameters, where this origin lacks one: (config, state, what was folded)."""
        return config, state, ()

    def sidecar(self, config: Any, card: Card | None) -> dict[str, Mapping[str, Any]]:
        """The JSON files that go beside the weights: file name -> content."""
        return {}

    def metadata(self) -> dict[str, str]:
        """What the header of a safetensors file says."""
        return {"format": "pt"}


# ---- finding the format of a file ----


@functools.cache
def formats() -> tuple[Format, ...]:
    """Every known origin."""
    found: list[Format] = []
    for module in MODULES:
        if importlib.util.find_spec(f"vitrail.weights.formats.{module}"):
            found.extend(importlib.import_module(f"vitrail.weights.formats.{module}").FORMATS)
    return tuple(found)


def format_named(name: str) -> Format:
    """A format by its name, for writing."""
    from vitrail.errors import nearest

    for known in formats():
        if known.name == name:
            return known
    names = list(dict.fromkeys(["vitrail", *(known.name for known in formats() if known.written)]))
    raise UsageError(f"no weight format is called {name!r}{nearest(name, names)}.", hint=f"one of: {', '.join(names)}")


def recognise(archive: Archive, sidecar: Sidecar) -> Format:
    """The most sure format, or an error that names the nearest origin and what it misses in this file."""
    sure = [(score, known) for known in formats() if (score := known.recognise(archive, sidecar)) is not None]
    if sure:
        return max(sure, key=lambda pair: pair[0])[1]  # the first of equals
    names = sorted(archive.entries)
    shown = ", ".join(names[:5]) + (f" … ({len(names)} in all)" if len(names) > 5 else "")
    by_distance = sorted(formats(), key=lambda known: len(known.unmatched(archive)) / max(1, len(known.marks)))
    hint = "Vitrail reads its own files and those of: " + ", ".join(known.title for known in formats())
    if by_distance:
        near = by_distance[0]
        missed = near.unmatched(archive)
        if len(missed) < len(near.marks):
            odd = [name for name in near.view(archive).entries if any(re.search(pattern, name) for pattern in near.never)]
            what = f"lacks {', '.join(map(readable, missed[:6]))}" if missed else f"has {', '.join(odd[:3])}, which no such file has"
            raise CheckpointError(
                f"{archive.path}: no known origin; nearest is {near.title}, but the file {what}. It holds {shown}.",
                hint=hint,
            )
    raise CheckpointError(f"{archive.path}: of no known origin. It holds {shown}.", hint=hint)


def readable(mark: str) -> str:
    """A mark as a name, without the signs of a regular expression: the first of alternatives, nothing of what may be absent."""
    plain = re.sub(r"\((?:\?:)?\^\|[^)]*\)|\([^)]*\)\?", "", mark)
    return re.sub(r"\((?:\?:)?([^|)]*)[^)]*\)", r"\1", plain).strip("^$").replace("\\", "")


def _any(pattern: str, names: Iterable[str]) -> bool:
    compiled = re.compile(pattern)
    return any(compiled.search(name) for name in names)


# ---- what formats share ----


def renamed(archive: Archive, spell: Callable[[str], str | None], settle: Callable[[str, Shape], Shape] | None = None) -> Archive:
    """A view of an archive under other names; a name spelled None is left out, `settle` drops axes of length 1."""
    theirs: dict[str, str] = {}
    entries: dict[str, Entry] = {}
    for name, entry in archive.entries.items():
        plain = spell(name)
        if plain is None:
            continue
        if plain in theirs:
            raise CheckpointError(f"{archive.path}: {theirs[plain]!r} and {name!r} are the same parameter.", hint="get the file again")
        shape = settle(plain, entry.shape) if settle else entry.shape
        theirs[plain], entries[plain] = name, dataclasses.replace(entry, shape=shape)

    def read(plain: str) -> Tensor:
        return archive.read(theirs[plain]).reshape(entries[plain].shape)

    return dataclasses.replace(archive, entries=entries, read=read)


def blocks_of(view: Archive, pattern: str) -> int:
    """How many blocks there are: one more than the largest number that `pattern`'s group finds."""
    compiled = re.compile(pattern)
    return 1 + max((int(match[1]) for name in view.entries if (match := compiled.search(name))), default=-1)


def shape_of(view: Archive, name: str, axes: int) -> Shape:
    """The declared shape of an array the format cannot do without."""
    entry = view.entries.get(name)
    if entry is None or len(entry.shape) != axes:
        said = "is missing" if entry is None else f"has the shape {entry.shape}, not {axes} axes"
        raise CheckpointError(f"{view.path}: {name} {said}.", hint="the file is cut, or no image model of this origin")
    return entry.shape


def heads_for(view: Archive, width: int, said: int | None) -> int:
    """Heads of a file that does not tell them: 64 wide each, as everywhere; any other width must be told."""
    heads = said or (width // 64 if width % 64 == 0 else None)
    if heads is None:
        raise CheckpointError(
            f"{view.path}: the number of heads is not in the file, and a width of {width} is no multiple of 64 to infer it from.",
            hint="pass heads=, for example heads=12 (or once and for all: vitrail convert FILE OUT --to vitrail --heads 12)",
        )
    if heads < 1 or width % heads:
        raise CheckpointError(f"{view.path}: a width of {width} does not divide into heads={heads}.", hint="pass another heads=")
    return heads


def size_for(
    view: Archive, positions: int | None, step: tuple[int, int], overrides: Overrides, said: Any = None
) -> tuple[tuple[int, int], bool]:
    """(image size of the file, is it known) from the number of patch positions and the pixels a patch steps.

    Believed in this order: the sidecar (`said`), an image_size= that has exactly that many patches,
    the square. Else the most nearly square grid, to be settled by the first input.
    """
    rows, columns = step
    if said is not None:
        size = pair(said if isinstance(said, int) else tuple(said), "image_size")
        if positions is None or (size[0] // rows) * (size[1] // columns) == positions:
            return size, True
    wanted = overrides.image_size
    whole = wanted is not None and wanted[0] % rows == 0 and wanted[1] % columns == 0  # another patch_size= may be on its way
    if wanted is not None and (positions is None or (wanted[0] // rows) * (wanted[1] // columns) == positions) and whole:
        return wanted, True
    if positions is None:
        near = lambda pixels: max(1, round(224 / pixels)) * pixels
        return (near(rows), near(columns)), False
    side = math.isqrt(positions)
    if side * side == positions:
        return (side * rows, side * columns), True
    if wanted is not None:
        raise CheckpointError(
            f"{view.path}: {positions} positions are no square grid, and image_size={wanted} has "
            f"{wanted[0] // rows} x {wanted[1] // columns} patches, so the grid they were learned on is unknown.",
            hint="load with the image_size the weights were trained at, then model.resize(…)",
        )
    tall = next(n for n in range(side, 0, -1) if positions % n == 0)
    return (positions // tall * rows, tall * columns), False
