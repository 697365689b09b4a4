"""`convert`: the same model in another system's file, with proof.

    source -> model -> (folded, where the other system lacks a parameter) -> its file and sidecars in a hidden folder
           -> read back -> every parameter compared byte for byte, logits compared -> the file appears

A file that does not read back as the same model never appears. What a reader of the new file
must be told, because the file cannot say it, is in the report; so is how far logits move when
the other system reads it by its own convention (a GELU that it computes otherwise, say).
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from vitrail.errors import CheckpointError, NumericsError, UsageError, VitrailError
from vitrail.model.variants import build
from vitrail.weights.archive import Archive, open_archive
from vitrail.weights.card import Card
from vitrail.weights.format import Format, Overrides, format_named, formats
from vitrail.weights.load import Plan, Unsettled, load_model, plan_for, tensors_for
from vitrail.weights.npz import write_npz
from vitrail.weights.rules import active, their_tensors
from vitrail.weights.safe import replace_file, write_safetensors
from vitrail.weights.store import bare, save_model, weights_of

__all__ = ["Conversion", "convert"]

TOLERANCE = 1e-5  # of logits: folds move them by rounding only
# fields of a configuration that change no logit: they are for training
TRAINING = ("dropout", "drop_path", "drop_path_uniform", "head_bias_init", "layer_scale")


@dataclass(frozen=True)
class Conversion:
    """What became of each parameter, and how far the logits are from the source's."""

    source: str
    files: tuple[str, ...]  # what was written, the weights first
    origin: str  # of the source
    format: str  # of what was written, with its style
    arrays: int  # in the new file
    parameters: int
    renamed: tuple[str, ...]  # "ours -> theirs" of each parameter that has another name
    reshaped: tuple[str, ...]  # those whose numbers lie otherwise: turned, split or joined
    resized: tuple[str, ...]  # what was resampled, cut or made new on the way in
    dropped: tuple[str, ...]  # what the source has and the new file has not
    folded: tuple[str, ...]  # what was merged into another parameter, logits unchanged
    tell: Mapping[str, Any]  # what a reader of the file must say, for the file cannot: load_model(file, **tell)
    convention: tuple[str, ...]  # where the other system itself computes otherwise
    identical: bool  # every parameter reads back byte for byte
    difference: float  # max |logits - source's| / max |source's|, read with `tell`; of the features, if that is larger
    difference_by_convention: float | None  # the same, read as the other system reads it; None: it needs `tell`

    def to_dict(self) -> dict[str, Any]:
        return json.loads(json.dumps(dataclasses.asdict(self), default=str))

    def __str__(self) -> str:
        listed = {
            "renamed": f"{len(self.renamed)} of {len(self.renamed) + len(self._kept)} parameters",
            "reshaped": f"{len(self.reshaped)} parameters (turned, split or joined)",
            "resized": "; ".join(self.resized) or "nothing",
            "dropped": "; ".join(self.dropped) or "nothing",
            "folded": "; ".join(self.folded) or "nothing",
        }
        lines = [f"{self.source} ({self.origin}) -> {', '.join(self.files)} ({self.format})"]
        lines += [f"  {name:9} {text}" for name, text in listed.items()]
        lines += [f"  agree     logits within {self.difference:.1e}; parameters byte for byte: {'yes' if self.identical else 'no'}"]
        if self.tell:
            said = ", ".join(f"{name}={value!r}" for name, value in self.tell.items())
            lines += [f"  tell      the file cannot say: load_model(…, {said})"]
        if self.convention:
            by = self.difference_by_convention
            moved = "" if by is None else f", which moves logits by {by:.1e}" if by else "; no logit moves at this image size"
            lines += [f"  note      its own readers use {'; '.join(self.convention)}{moved}"]
        return "\n".join(lines)

    @property
    def _kept(self) -> range:
        return range(self.parameters - len(self.renamed))


def convert(
    source: str | os.PathLike | nn.Module,
    destination: str | os.PathLike,
    *,
    to: str,
    style: str | None = None,
    overwrite: bool = False,
    **options: Any,
) -> Conversion:
    """Write `source` (a path, a URI or a model) in the format `to`: "npz", "timm", "hf", "torchvision", "vitrail", ….

    destination   a file, or a folder (it gets the format's usual names, sidecars included)
    style         a generation of names, where a format has several ("linen", "prelinen", "scan")
    options       as for `load_model`: heads=, image_size=, classes=, …
    """
    if isinstance(source, nn.Module):
        model: Any = bare(source)
        said = getattr(getattr(model, "card", None), "name", "") or "model"
    else:
        model, said = load_model(source, **options), str(source)
    if isinstance(model, Unsettled) and model.config.position == "learned":
        raise UsageError(
            f"{said}: the grid of its positions is not in the file.",
            hint="pass image_size=(rows, columns), on the command line --image-size ROWSxCOLUMNS",
        )
    card = getattr(model, "card", None)
    writer = _Ours(model, card) if to == "vitrail" else _Theirs(model, card, _choose(to, model.config, card), style)
    target = _target(Path(destination), str(destination), writer.filename)
    _refuse_overwriting(target, writer.sidecars, overwrite)
    hidden = target.parent / f".{target.name}.{os.getpid()}.tmp"
    try:
        hidden.mkdir(parents=True)
        draft = hidden / target.name
        writer.write(draft)
        for name, content in writer.sidecars.items():
            (hidden / name).write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        proof = _proof(model, writer, draft)
        written = _publish(hidden, target, writer.sidecars)
    except OSError as error:
        raise CheckpointError(f"{target}: cannot be written ({error.strerror}).", hint="check space and permissions") from None
    finally:
        shutil.rmtree(hidden, ignore_errors=True)
    return _report(model, card, writer, said, written, proof)


# ---- where to, and in which format ----


def _target(destination: Path, said: str, filename: str) -> Path:
    if destination.is_dir() or said.endswith(("/", os.sep)) or not destination.suffix:
        return destination / filename
    if destination.suffix != Path(filename).suffix and not {destination.suffix, Path(filename).suffix} <= {".pth", ".pt", ".bin"}:
        raise UsageError(f"{destination}: this format is written as {Path(filename).suffix}, not {destination.suffix}.")
    return destination


def _refuse_overwriting(target: Path, sidecars: Mapping[str, Any], overwrite: bool) -> None:
    present = [name for name in (target.name, *sidecars) if (target.parent / name).exists()]
    if present and not overwrite:
        raise UsageError(f"{target.parent}: there is already {', '.join(present)}.", hint="another place, or --overwrite")


def _choose(to: str, config: Any, card: Card | None) -> Format:
    """The format of that name that can hold the model; "npz" is any of Google's, the model's own origin first."""
    of_name = [form for form in formats() if to == form.name or (to == "npz" == form.container)]
    if not of_name:
        format_named(to)  # raises, with the nearest name
    origin = card.origin.partition(":")[0] if card else ""
    of_name.sort(key=lambda form: form.name != origin)
    reasons = {form.title: form.cannot_hold(config) for form in of_name}
    fitting = [form for form in of_name if not reasons[form.title]]
    if not fitting:
        fits_family = [form for form in of_name if form.family in (None, config.family)] or of_name
        fewest = min(fits_family, key=lambda form: len(reasons[form.title]))
        shown = "; ".join(reasons[fewest.title])
        raise UsageError(f"this model cannot be written as {to!r}: {shown}.", hint="--to vitrail holds every model")
    return fitting[0]


def _publish(hidden: Path, target: Path, sidecars: Mapping[str, Any]) -> tuple[str, ...]:
    """Move everything to its final name, the weights last: a reader sees all of it or no weights."""
    for name in (*sidecars, target.name):
        source = hidden / name
        replace_file(target.parent / name, lambda stream, source=source: _copy(source, stream)) if name in sidecars else _rename(
            source, target
        )
    return (str(target), *(str(target.parent / name) for name in sidecars))


def _copy(source: Path, stream: IO[bytes]) -> None:
    stream.write(source.read_bytes())


def _rename(source: Path, target: Path) -> None:
    with open(source, "rb") as stream:
        os.fsync(stream.fileno())
    os.replace(source, target)


# ---- writing ----


class _Ours:
    """Our own file."""

    filename = "model.safetensors"
    sidecars: Mapping[str, Any] = {}
    folded: tuple[str, ...] = ()
    form: Format | None = None
    title = "vitrail"

    def __init__(self, model: Any, card: Card | None) -> None:
        self.model, self.config, self.card = model, model.config, card
        self.state = weights_of(model)
        self.names = {name: (name,) for name in self.state}
        self.turned: set[str] = set()
        self.arrays = len(self.state)

    def write(self, path: Path) -> None:
        save_model(self.model, path, card=self.card)


class _Theirs:
    """A file of another system."""

    def __init__(self, model: Any, card: Card | None, form: Format, style: str | None) -> None:
        origin, _, spelled = (card.origin if card else "").partition(":")
        self.style = style or (spelled if origin == form.name and spelled else form.styles[0])
        if self.style not in form.styles:
            known = ", ".join(spelling for spelling in form.styles if spelling)
            raise UsageError(
                f"no style {self.style!r} of {form.title} is known.",
                hint=f"one of: {known}" if known else "leave the style out: it has one",
            )
        self.form, self.filename = form, form.filename
        self.title = f"{form.name}:{self.style}" if self.style != form.styles[0] else form.name
        self.config, self.state, self.folded = form.fold(model.config, weights_of(model))
        self.sidecars = form.sidecar(self.config, card)
        rules = active(form.rules(self.config, self.style), self.state)
        self.names = {name: r.theirs for r in rules for name in r.ours}
        homeless = sorted(set(self.state) - set(self.names))
        if homeless:
            raise UsageError(f"{form.title} has no place for {', '.join(homeless[:12])}.", hint="--to vitrail holds every model")
        self.tensors = their_tensors(rules, self.state)
        self.turned = {name for r in rules for name in r.ours if not self._as_it_is(name, r.theirs)}
        self.arrays = len(self.tensors)

    def _as_it_is(self, name: str, theirs: tuple[str, ...]) -> bool:
        ours, array = self.state[name], self.tensors[theirs[0]]
        return len(theirs) == 1 and array.shape == ours.shape and array.data_ptr() == ours.data_ptr() and array.stride() == ours.stride()

    def write(self, path: Path) -> None:
        writers: dict[str, Callable[[IO[bytes]], None]] = {
            "npz": lambda stream: write_npz(stream, self.tensors.items()),
            "safetensors": lambda stream: write_safetensors(stream, self.tensors, self.form.metadata()),
            "pickle": lambda stream: torch.save({name: tensor.contiguous() for name, tensor in self.tensors.items()}, stream),
        }
        replace_file(path, writers[self.form.container])


# ---- proof ----


@dataclass(frozen=True)
class _Proof:
    tell: dict[str, Any]
    convention: tuple[str, ...]
    identical: bool
    difference: float
    by_convention: float | None


def _proof(model: Any, writer: _Ours | _Theirs, draft: Path) -> _Proof:
    """Read the draft back; refuse it unless it is the same model."""
    archive = open_archive(draft)
    plan, tell = _told(archive, writer.config)
    found = tensors_for(plan, dict(plan.model.named_parameters()))
    if found.keys() != writer.state.keys():
        odd = sorted(found.keys() ^ writer.state.keys())
        raise NumericsError(f"{draft.name}: reads back as another model ({', '.join(odd[:8])}); nothing was written.")
    identical = all(torch.equal(found[name], tensor.to(torch.float32)) for name, tensor in writer.state.items())
    x = _images(model.config)
    expected = _answers(model, x)
    difference = _distance(_answers(_with(build(writer.config, init=False), found), x), expected)
    if not identical or not difference <= TOLERANCE:
        raise NumericsError(
            f"{draft.name}: does not read back as the same model: parameters {'equal' if identical else 'differ'}, "
            f"logits differ by {difference:.1e} (at most {TOLERANCE:.0e}); nothing was written.",
            hint="this is a defect of Vitrail; please report it with the model's card",
        )
    plain = {name: value for name, value in tell.items() if name in ("heads", "image_size")}
    theirs = plan_for(archive, Overrides(**plain))
    other = _differences(theirs.config, writer.config)
    convention = tuple(f"{name} {value!r} instead of {_field(writer.config, name)!r}" for name, value in other.items() if name != "pool")
    by_convention = None
    if "heads" not in tell and "pool" not in other:
        by_convention = _distance(_answers(_with(theirs.model, found), x), expected) if other else difference
    return _Proof(tell, convention, identical, difference, by_convention)


def _told(archive: Archive, config: Any) -> tuple[Plan, dict[str, Any]]:
    """The plan that reads a file as `config`, and the least a reader must say for it."""
    names = [item.name for item in dataclasses.fields(Overrides)]
    full = {name: getattr(config, name) for name in names if getattr(config, name, None) is not None}
    tell: dict[str, Any] = {}
    try:
        plan = plan_for(archive, Overrides())
    except VitrailError:
        tell["heads"] = full.get("heads")
        plan = plan_for(archive, Overrides(**tell))
    odd = set(_differences(plan.config, config))
    if not plan.size_known and getattr(config, "position", "") == "learned":
        odd.add("image_size")  # even where the guess happens to be right
    tell |= {name: full[name] for name in names if name in odd and name in full}
    return plan_for(archive, Overrides(**tell)), tell


def _differences(found: Any, wanted: Any) -> dict[str, Any]:
    """Fields of a configuration read back that are not as they were, with the value found."""
    a, b = _flat(found), _flat(wanted)
    return {name: a.get(name) for name in b if a.get(name) != b[name] and name not in TRAINING}


def _flat(config: Any) -> dict[str, Any]:
    table = dataclasses.asdict(config)
    stem = table.pop("stem", None) or {}
    return {**table, **{f"stem.{name}": value for name, value in stem.items()}}


def _field(config: Any, name: str) -> Any:
    return _flat(config)[name]


def _images(config: Any) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.rand(2, config.channels, *config.image_size, generator=generator) * 2 - 1


@torch.inference_mode()
def _answers(model: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and features: a fresh head has logits of zero, which prove nothing."""
    training = model.training
    x = x.to(next(model.parameters()).device, torch.float32)
    answers = model.eval()(x).cpu(), model.features(x).cpu()
    model.train(training)
    return answers


def _with(model: Any, tensors: Mapping[str, Tensor]) -> Any:
    model.load_state_dict(dict(tensors), strict=False, assign=True)
    return model


def _distance(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> float:
    """max |a - b| / max |b|, the larger of logits and features."""
    return max(float((a - b).abs().max() / b.abs().max().clamp_min(1e-30)) for a, b in zip(found, expected))


# ---- report ----


def _report(model: Any, card: Card | None, writer: _Ours | _Theirs, said: str, written: tuple[str, ...], proof: _Proof) -> Conversion:
    notes = card.notes if card else ()
    lost = [f"card: {name}" for name in ("classes", "metrics", "data", "recipe", "license") if card and getattr(card, name)]
    resized = tuple(note for note in notes if note.split(":")[0] in ("positions", "patch size", "channels", "head"))
    return Conversion(
        source=said,
        files=written,
        origin=card.origin if card else "vitrail",
        format=writer.title,
        arrays=writer.arrays,
        parameters=len(writer.state),
        renamed=tuple(f"{name} -> {', '.join(theirs)}" for name, theirs in writer.names.items() if theirs != (name,)),
        reshaped=tuple(sorted(writer.turned)),
        resized=resized,
        dropped=(*(note for note in notes if note.startswith("left out")), *(lost if writer.form and not writer.sidecars else ())),
        folded=writer.folded,
        tell=proof.tell,
        convention=proof.convention,
        identical=proof.identical,
        difference=proof.difference,
        difference_by_convention=proof.by_convention,
    )
