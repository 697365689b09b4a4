"""`load_model`: one way in for weights of every origin.

    where -> file -> archive (names, shapes, types; nothing read) -> its format -> configuration -> name table
          -> every name and shape compared, one error for all that differs -> arrays read one by one -> model

The model is built without memory, then given the arrays: for our own files they are views
of the mapped file, so that loading reads each byte once, for its hash. What a file cannot
say is inferred by its origin's convention and can be overridden; what was inferred, resized
or left out stands in `model.card.notes`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from vitrail.errors import CheckpointError, UsageError, VitrailError
from vitrail.model.config import ViTConfig, pair
from vitrail.model.patch import change_channels, resize_patch_kernel
from vitrail.model.position import LearnedPosition
from vitrail.model.variants import build, config_for, config_to_dict
from vitrail.model.vit import VisionTransformer
from vitrail.runtime.disk import sha256_of
from vitrail.weights.archive import Archive, Shape, check_total, open_archive
from vitrail.weights.card import KEY, Card, card_of, numerics_of
from vitrail.weights.format import Format, Overrides, recognise
from vitrail.weights.rules import Rule, active, rule, their_tensors
from vitrail.weights.sidecar import Sidecar, read_sidecar
from vitrail.weights.store import hash_of, nonfinite

__all__ = ["Plan", "find_weights", "load_model", "plan_for", "tensors_for"]

NAMES = (
    "model.safetensors",
    "best.safetensors",
    "last.safetensors",
    "open_clip_model.safetensors",
    "pytorch_model.bin",
    "open_clip_pytorch_model.bin",
)
SUFFIXES = (".safetensors", ".npz", ".pth", ".pt", ".bin")
OPEN = "image size: not in the file; the first input settles it"
ALIGNMENT = 64  # bytes; the tensors of our own files lie so, those of others rarely
MOST_LISTED = 1000  # names of one kind in one error


def load_model(
    where: str | os.PathLike,
    *,
    heads: int | None = None,
    eps: float | None = None,
    activation: str | None = None,
    pool: str | None = None,
    image_size: int | tuple[int, int] | None = None,
    pool_pad: str | float | None = None,
    position_resample: str | None = None,
    patch_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    classes: int | None = None,
    new_head: bool = False,
    max_weight_bytes: int | None = None,
    offline: bool = False,
    sha256: str | None = None,
    allow_nonfinite: bool = False,
) -> nn.Module:
    """A model with the weights of a file, a folder or a URI, in float32, in evaluation mode, with its `.card`.

    What the file cannot say follows its origin's convention, unless said here:
      heads, eps, activation    attention heads; LayerNorm epsilon; "gelu_tanh", "gelu", "quick_gelu", …
      pool                      "token", "gap", "map", "unpooled"
      pool_pad                  BiT: "zero" or "inf" (minus infinity) around the root's max-pool
      position_resample         how positions go to another grid (model.config.POSITION_RESAMPLING)
    Changes on the way in:
      image_size                positions are resampled to it
      patch_size, channels      the patch projection is resized (FlexiViT); its channels repeated or added up
      classes, new_head         another number of classes: a new zero head, without the pre-training layer; 0: no head
    Trust:
      max_weight_bytes          most bytes the file's arrays may take (default: the memory that is free)
      sha256                    the file must have this hash
      offline                   never touch the network
      allow_nonfinite           load NaN and infinities
    """
    path = find_weights(where, offline=offline, sha256=sha256)
    said = Overrides(
        heads=heads, eps=eps, activation=activation, pool=pool, position_resample=position_resample,
        image_size=None if image_size is None else pair(image_size, "image_size"), pool_pad=_pool_pad(pool_pad),
    )  # fmt: skip
    plan = plan_for(open_archive(path, max_weight_bytes=max_weight_bytes), said)
    model, hashes = _filled(plan, allow_nonfinite)
    card = plan.card.replace(hashes=hashes)
    model.card = card if plan.format is None else card.replace(**_provenance(str(where), path))  # type: ignore[assignment]
    _leave_open(model, plan, said.image_size)
    _change_channels(model, channels)
    _change_patch(model, patch_size, said.image_size)
    _change_size(model, said.image_size)
    _change_head(model, classes, new_head)
    return model.eval()


def _pool_pad(said: str | float | None) -> str | None:
    """ "zero" or "inf", also as what the pad is filled with: 0, -inf."""
    return None if said is None else {"-inf": "inf", "0": "zero", "0.0": "zero"}.get(str(said), str(said))


# ---- from what the user says to a file ----


def _is_uri(text: str) -> bool:
    return "://" in text or text.startswith("builtin:")


def _provenance(where: str, path: Path) -> dict[str, Any]:
    """Name and parent of weights of another origin: a cache's folders have names that nobody gave them."""
    if not _is_uri(where):
        return {"parents": (path.name,)}
    scheme, _, rest = where.partition("#")[0].partition("://")
    return {"parents": (where,), "name": rest if scheme in ("hf", "timm") else path.stem}


def find_weights(where: str | os.PathLike, *, offline: bool = False, sha256: str | None = None) -> Path:
    """The weight file that a path, a folder or a URI means; URIs are fetched into the cache."""
    if _is_uri(str(where)):
        from vitrail.weights.hub import fetch

        fetched = fetch(str(where), offline=offline, sha256=sha256)
        return _in_folder(fetched) if fetched.is_dir() else fetched
    path = Path(where).expanduser()
    if path.is_dir():
        path = _in_folder(path)
    elif not path.exists():
        raise _absent(str(where))
    if sha256 is not None and (found := sha256_of(path)) != sha256.lower():
        raise CheckpointError(f"{path}: its SHA-256 is {found}, not {sha256}.", hint="get the file again from its origin")
    return path


def _in_folder(folder: Path) -> Path:
    for name in NAMES:
        if (folder / name).is_file():
            return folder / name
    found = sorted(file for file in folder.iterdir() if file.suffix in SUFFIXES and file.is_file())
    if len(found) == 1:
        return found[0]
    if not found:
        raise CheckpointError(f"{folder}: no weights in this folder.", hint=f"a file ending in {', '.join(SUFFIXES)}")
    shown = ", ".join(file.name for file in found[:8])
    raise CheckpointError(f"{folder}: several weight files ({shown}).", hint="name the one you mean")


def _absent(where: str) -> VitrailError:
    """A name of a model is no weights; say where weights of that model are."""
    try:
        config_for(where)
    except UsageError:
        if where.endswith(SUFFIXES):
            return CheckpointError(
                f"{where}: no such file.", hint="check the path, or pass a URI (hf://, timm://, gs://, https://, builtin:)"
            )
        near = f"on the Hugging Face hub: hf://{where}" if re.fullmatch(r"[\w.-]+/[\w.-]+", where) else f"a model of timm: timm://{where}"
        return CheckpointError(
            f"{where}: no such file or folder.", hint=f"weights are a path or a URI (hf://, timm://, gs://, https://, builtin:); {near}"
        )
    return UsageError(
        f"{where!r} is the name of a model, and a name has no weights.",
        hint=f"create_model({where!r}) makes a fresh one; weights are a path or a URI, for example "
        "timm://vit_base_patch16_224.augreg_in21k_ft_in1k or gs://vit_models/imagenet21k/ViT-B_16.npz",
    )


# ---- from an archive to a plan: nothing is read yet ----


@dataclass(frozen=True)
class Plan:
    """All that is decided about a file before a value of it is read."""

    archive: Archive  # under the names of the rules
    config: Any
    model: nn.Module  # built without memory, to be filled
    rules: list[Rule]
    card: Card
    size_known: bool = True
    format: Format | None = None  # None: our own
    style: str = ""
    left_out: tuple[str, ...] = ()  # names in the file that are no parameter of the model


def plan_for(archive: Archive, said: Overrides) -> Plan:
    """Which model a file holds and how its arrays become parameters; or one error that says all that is wrong."""
    plan = _own_plan(archive, said) if KEY in archive.metadata else _foreign_plan(archive, said)
    left_out = _compare(plan, said)
    notes = (f"left out: {_listed(left_out)}",) if left_out else ()
    return dataclasses.replace(plan, left_out=left_out, card=plan.card.replace(notes=(*plan.card.notes, *notes)))


def _own_plan(archive: Archive, said: Overrides) -> Plan:
    card = Card.from_metadata(archive.metadata, str(archive.path))
    try:
        described = card.config
    except (VitrailError, TypeError, ValueError) as error:
        what = error.message if isinstance(error, VitrailError) else str(error)
        raise CheckpointError(f"{archive.path}: its card describes no model: {what}", hint="get the file again") from None
    config = described.replace(**_overriding(described, said))
    if config != described:
        card = dataclasses.replace(card, model=config_to_dict(config), numerics=numerics_of(config))
    return Plan(archive, config, _shell(archive, config), [rule(name, name) for name in archive.entries], card)


def _overriding(config: Any, said: Overrides) -> dict[str, Any]:
    """What the caller says over our own card; image_size is a change of the model, not of what the file is."""
    known = {item.name for item in dataclasses.fields(config)}
    values = {name: value for name, value in dataclasses.asdict(said).items() if value is not None and name != "image_size"}
    if config.family == "bit" and "eps" in values:
        values["norm_eps"] = values.pop("eps")
    for name in values:
        if name not in known:
            raise UsageError(f"{name}= means nothing for a model of the family {config.family!r}.")
    return values


def _foreign_plan(archive: Archive, said: Overrides) -> Plan:
    if (archive.path.parent / "MANIFEST.json").exists():
        raise CheckpointError(
            f"{archive.path}: part of a training checkpoint, which has no card.",
            hint="load the run's folder, or resume it with the command that started it",
        )
    sidecar = read_sidecar(archive.path)
    form = recognise(archive, sidecar)
    view = form.view(archive)
    try:
        reading = form.configuration(view, sidecar, said)
    except UsageError as error:  # the configuration refuses what the caller says, or what the shapes say
        kind = CheckpointError if said == Overrides() else UsageError
        raise kind(f"{archive.path}: {error.message}", hint=error.hint) from None
    except (ArithmeticError, LookupError, TypeError, ValueError) as error:  # no origin writes such names and shapes
        raise CheckpointError(f"{archive.path}: not readable as {form.title} ({error}).", hint="get the file again") from None
    config, style = reading.config, form.style_of(view)
    _overriding(config, said)  # refuses what means nothing for such a model
    shell = _shell(archive, config)
    card = Card(
        name=_name(archive.path),
        model=config_to_dict(config),
        origin=form.name if style == form.styles[0] else f"{form.name}:{style}",
        numerics=numerics_of(config),
        preprocess=_preprocess(form, config, sidecar),
        classes=_classes(form, config, sidecar),
        notes=(*dict.fromkeys((*archive.notes, *view.notes)), *reading.notes, *_grid_note(config, said, reading.size_known)),
    )
    return Plan(view, config, shell, form.rules(config, style), card, reading.size_known, form, style)


def _grid_note(config: Any, said: Overrides, known: bool) -> tuple[str, ...]:
    """A number of positions that is a square, read as another grid because image_size= fits it exactly."""
    rows, columns = config.grid
    count = rows * columns
    odd = known and said.image_size is not None and rows != columns and math.isqrt(count) ** 2 == count
    learned = getattr(config, "position", "") == "learned"
    return (f"positions: {count} read as {rows} x {columns}, for image_size= has exactly that many patches",) if odd and learned else ()


def _name(path: Path) -> str:
    plain = path.name in NAMES or path.stem in ("model", "checkpoint", "weights")
    return path.absolute().parent.name if plain else path.stem


def _preprocess(form: Format, config: Any, sidecar: Sidecar) -> dict[str, Any]:
    return form.preprocess(config, sidecar).to_dict() if config.channels in (1, 3) else {}


def _classes(form: Format, config: Any, sidecar: Sidecar) -> tuple[str, ...]:
    names = form.classes(sidecar)
    return names if len(names) == config.classes else ()


def _shell(archive: Archive, config: Any) -> nn.Module:
    """The model without memory, where the file is large enough to mean it."""
    bounded(archive, config)
    try:
        return build(config, init=False)
    except (RuntimeError, OverflowError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{archive.path}: describes no model that can be built ({str(error).splitlines()[0]}).", hint="get the file again"
        ) from None


def bounded(archive: Archive, config: Any) -> None:
    """A few bytes of header must not make us build a million layers or a huge table of positions."""
    layers = getattr(config, "depth", 0) + sum(getattr(getattr(config, "stem", None) or config, "layers", ()))
    if layers > len(archive.entries):
        raise CheckpointError(
            f"{archive.path}: claims {layers:,} layers and holds {len(archive.entries):,} arrays.",
            hint="get the file again from its origin",
        )
    if getattr(config, "position", None) == "sincos2d":
        check_total(archive.path, [4 * config.tokens * config.width], None)


# ---- every name and shape, before any value ----


def _compare(plan: Plan, said: Overrides) -> tuple[str, ...]:
    """Names of the file that the model leaves out; raises one error for everything that does not fit."""
    archive, meta = plan.archive, dict(plan.model.named_parameters())
    rules = active(plan.rules, meta)
    needed = {name: tuple(tensor.shape) for name, tensor in their_tensors(rules, meta).items()}
    homeless = sorted(set(meta) - {name for r in rules for name in r.ours})
    missing = [name for name in needed if name not in archive.entries] + homeless
    left_out, unexpected = _surplus(plan, needed, said)
    wrong = [
        f"{name} is {archive.entries[name].shape}, not {shape}"
        for name, shape in needed.items()
        if name in archive.entries and archive.entries[name].shape != shape
    ]
    strange = [f"{name} ({archive.entries[name].dtype})" for name in needed if name in archive.entries and not _is_float(archive, name)]
    if missing or unexpected or wrong or strange:
        raise _mismatch(plan, missing, unexpected, wrong, strange)
    return tuple(left_out)


def _surplus(plan: Plan, needed: Mapping[str, Shape], said: Overrides) -> tuple[list[str], list[str]]:
    """(names left out by right, names nobody expects)."""
    patterns = [re.compile(pattern) for pattern in (plan.format.ignored if plan.format else ())]
    # another pooling was asked for: the parts of the file's own pooling are left out, nothing else is
    replaced = {name for r in plan.rules for name in r.theirs if said.pool and r.ours[0].startswith(("map.", "fc_norm."))}
    left_out: list[str] = []
    unexpected: list[str] = []
    for name in plan.archive.entries:
        if name not in needed:
            known = name in replaced or any(pattern.search(name) for pattern in patterns)
            (left_out if known else unexpected).append(name)
    return left_out, unexpected


def _is_float(archive: Archive, name: str) -> bool:
    dtype = archive.entries[name].dtype
    return isinstance(dtype, torch.dtype) and dtype.is_floating_point


def _mismatch(
    plan: Plan, missing: Sequence[str], unexpected: Sequence[str], wrong: Sequence[str], strange: Sequence[str]
) -> CheckpointError:
    """One error, grouped, with the nearest unexpected name beside each missing one."""
    title = plan.format.title if plan.format else "Vitrail"
    lines = [f"{plan.archive.path}: does not hold the model it describes (read as {title}). Nothing was loaded."]
    if missing:
        lines += [f"  missing ({len(missing)}): {_listed(_with_nearest(missing, unexpected))}"]
    if unexpected:
        lines += [f"  unexpected ({len(unexpected)}): {_listed(unexpected)}"]
    if wrong:
        lines += [f"  wrong shape ({len(wrong)}): {_listed(wrong)}"]
    if strange:
        lines += [f"  not floating point ({len(strange)}): {_listed(strange)}"]
    return CheckpointError("\n".join(lines), hint="get the file again, or say what differs: heads=, pool=, image_size=")


def _with_nearest(missing: Sequence[str], unexpected: Sequence[str]) -> Iterator[str]:
    affordable = len(missing) * len(unexpected) <= 100_000
    for name in missing:
        near = difflib.get_close_matches(name, unexpected, n=1, cutoff=0.6) if affordable else []
        yield f"{name} (the file has {near[0]})" if near else name


def _listed(names: Iterable[str]) -> str:
    every = [name if len(name) <= 200 else name[:199] + "…" for name in names]
    rest = len(every) - MOST_LISTED
    return ", ".join(every[:MOST_LISTED]) + (f" and {rest:,} more" if rest > 0 else "")


# ---- values ----


def _filled(plan: Plan, allow_nonfinite: bool) -> tuple[nn.Module, dict[str, str]]:
    """The model with its parameters, and the hash of each."""
    model = plan.model
    parameters = tensors_for(plan, dict(model.named_parameters()))
    hashes, bad = _examined(plan, parameters)
    if bad and not allow_nonfinite:
        shown = ", ".join(f"{name} ({count:,})" for name, count in list(bad.items())[:20])
        raise CheckpointError(
            f"{plan.archive.path}: {sum(bad.values()):,} values in {len(bad)} of {len(parameters)} parameters are NaN or inf: {shown}.",
            hint="get another copy, or pass allow_nonfinite=True",
        )
    for name, tensor in parameters.items():
        owner, _, kind = name.rpartition(".")
        model.get_submodule(owner)._parameters[kind] = nn.Parameter(tensor)
    return model, hashes


def tensors_for(plan: Plan, ours: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Every parameter in float32, in the model's order: views of the file where they already lie so, and aligned."""
    found: dict[str, Tensor] = {}
    for r in active(plan.rules, ours):
        for name, tensor in zip(r.ours, r.read([plan.archive.read(theirs) for theirs in r.theirs]), strict=True):
            found[name] = aligned(tensor.to(torch.float32).contiguous())
    return {name: found[name] for name in ours}


def aligned(tensor: Tensor) -> Tensor:
    """Where torch itself would put it: from other addresses, sums come out in another order, and equal weights give other last digits."""
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def _examined(plan: Plan, parameters: Mapping[str, Tensor]) -> tuple[dict[str, str], dict[str, int]]:
    """(hash of each parameter, values that are no number by name); a card's hashes are verified on the way."""
    said = plan.card.hashes

    def examine(name: str) -> tuple[str, int]:
        tensor = parameters[name]
        stored = plan.archive.read(name) if said and plan.archive.entries[name].dtype != torch.float32 else tensor
        return hash_of(stored), nonfinite(tensor)

    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        found = dict(zip(parameters, pool.map(examine, parameters)))
    damaged = [name for name, (value, _) in found.items() if said and said.get(name) != value]
    if damaged:
        raise CheckpointError(
            f"{plan.archive.path}: {len(damaged)} parameters do not match the hashes on their card: {_listed(damaged)}.",
            hint="the file is damaged; get it again",
        )
    return {name: value for name, (value, _) in found.items()}, {name: count for name, (_, count) in found.items() if count}


# ---- changes on the way in ----


def _note(model: nn.Module, *notes: str) -> None:
    card = card_of(model)
    model.card = dataclasses.replace(card, notes=(*card.notes, *notes))  # type: ignore[assignment]


def _leave_open(model: nn.Module, plan: Plan, wanted: tuple[int, int] | None) -> None:
    """A model without its image size waits for its first input; also when it was saved as one of ours before that came."""
    again = OPEN in plan.card.notes
    if not isinstance(model, VisionTransformer) or (plan.size_known and not again) or (wanted is not None and not again):
        return
    model.__class__ = Unsettled
    if not again:
        _note(model, OPEN)
    if wanted is not None:
        cast(Unsettled, model).settle(wanted)


def _change_channels(model: Any, channels: int | None) -> None:
    """Another number of channels: repeated or added up."""
    if channels is None or channels == model.config.channels:
        return
    stem = getattr(model, "stem", None)
    owner = model.patch if getattr(model, "root", stem) is None else (model.root if stem is None else stem.root).conv
    owner.weight = nn.Parameter(change_channels(owner.weight.detach(), channels))
    old, model.config = model.config.channels, model.config.replace(channels=channels)
    _note(model, f"channels: {old} -> {channels}")


def _change_patch(model: Any, patch_size: int | tuple[int, int] | None, image_size: tuple[int, int] | None) -> None:
    """Another patch size (FlexiViT's pseudo-inverse), at the image size that is wanted with it."""
    size = pair(patch_size, "patch_size") if patch_size is not None else None
    if size is None or size == getattr(model.config, "patch_size", None):
        return
    if not hasattr(model, "patch"):
        raise UsageError("this model has no patches, so patch_size= means nothing.")
    old, config = model.config.patch_size, model.config.replace(patch_size=size, image_size=image_size or model.config.image_size)
    model.patch.weight = nn.Parameter(resize_patch_kernel(model.patch.weight.detach(), size))
    model.patch.patch_size, model.config = size, config
    model.resize(config.image_size)
    _note(model, f"patch size: {_by(old)} -> {_by(size)} (pseudo-inverse), positions to {_by(config.grid)}")


def _change_size(model: Any, wanted: tuple[int, int] | None) -> None:
    """Positions to the wanted image size."""
    if wanted is not None and wanted != tuple(model.config.image_size):
        before = model.grid
        model.resize(wanted)
        _note(model, f"positions: {_by(before)} -> {_by(model.grid)} ({getattr(model.config, 'position_resample', 'any size')})")


def _change_head(model: Any, classes: int | None, new_head: bool) -> None:
    old = model.config.classes
    wanted = old if classes is None else classes
    if wanted == old and not new_head:
        return
    model.reset_head(wanted, keep_representation=wanted == 0)
    _note(model, f"head: new, {wanted} classes (the file has {old})" if wanted else f"head: removed ({old} classes)")


def _by(pair_: Sequence[int]) -> str:
    return f"{pair_[0]} x {pair_[1]}"


class Unsettled(VisionTransformer):
    """A model whose file has no image size: the first input says it, and from then on it is a plain VisionTransformer."""

    def check_input(self, x_BCHW: Tensor) -> None:
        seen = (int(x_BCHW.shape[2]), int(x_BCHW.shape[3]))
        if seen == self.config.image_size and torch.compiler.is_compiling():
            return super().check_input(x_BCHW)  # a compiled graph changes no model
        self.settle(seen)
        return self.check_input(x_BCHW)

    def resize(self, image_size: int | tuple[int, int]) -> VisionTransformer:
        if self.config.position == "learned":
            raise UsageError(
                f"the grid of the {math.prod(self.grid)} positions is not known yet, so they cannot be resampled.",
                hint="load_model(…, image_size=(rows, columns)) with the size they were trained at, then resize",
            )
        self.__class__ = VisionTransformer  # type: ignore[assignment]
        self.resize(image_size)
        return closed(self)

    def settle(self, seen: tuple[int, int]) -> None:
        """A learned table goes to the grid it fits, everything else to any."""
        if self.config.position == "learned":
            config, position = self.fitting(seen), cast(LearnedPosition, self.position)
            self.__class__ = VisionTransformer  # type: ignore[assignment]
            self.config, position.grid, position.prefix_rows = config, config.grid, config.position_prefix
            closed(self)
        else:
            self.resize(seen)

    def fitting(self, seen: tuple[int, int]) -> ViTConfig:
        """The table's rows are the patches', and those of none, some or all of the tokens before them: by convention, else as they fit."""
        config = self.config.replace(image_size=seen)
        patches, positions = math.prod(config.grid), math.prod(self.grid) + self.config.position_prefix
        for rows in (config.position_prefix, 0, config.prefix - config.registers, config.prefix):
            if positions == patches + rows:
                return config.replace(position_class=rows > 0, position_registers=rows > config.prefix - config.registers)
        raise UsageError(
            f"the weights have {math.prod(self.grid)} positions of an unknown grid, "
            f"and an image of {_by(seen)} has {_by(config.grid)} patches.",
            hint="load_model(…, image_size=(rows, columns)) with the size they were trained at",
        )


def closed(model: VisionTransformer) -> VisionTransformer:
    """Its card says the size from now on."""
    card = card_of(model)
    model.card = card.replace(notes=tuple(note for note in card.notes if note != OPEN))  # type: ignore[assignment]
    return model
