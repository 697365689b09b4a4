"""Writing our own weights: one safetensors file with its identity card inside, the same bytes for the same model."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor, nn

from vitrail.errors import NumericsError, UsageError, nearest
from vitrail.weights.card import Card, card_of
from vitrail.weights.safe import buffers, replace_file, write_safetensors

__all__ = ["bare", "hash_of", "nonfinite", "save_model", "weights_of"]

DTYPES = {
    "fp32": torch.float32,
    "float32": torch.float32,
    "bf16": torch.bfloat16,
    "bfloat16": torch.bfloat16,
    "fp16": torch.float16,
    "float16": torch.float16,
}
FOREIGN = (".npz", ".pth", ".pt", ".bin", ".ckpt")


def save_model(
    model: nn.Module,
    path: str | os.PathLike,
    *,
    card: Card | None = None,
    dtype: torch.dtype | str | None = None,
    allow_nonfinite: bool = False,
) -> Path:
    """Write a model and its card; `load_model` gives both back. The file appears complete or not at all.

    card    what to say about the model; None: what it carries
    dtype   "fp32", "bf16" or "fp16" to store it so; None: as it is in memory
    """
    target = _target(Path(path), str(path))
    plain = bare(model)
    tensors = weights_of(plain, _dtype(dtype))
    bad = {name: count for name, tensor in tensors.items() if (count := nonfinite(tensor))}
    if bad and not allow_nonfinite:
        raise NumericsError(
            f"{sum(bad.values()):,} values in {len(bad)} parameters are NaN or infinite ({', '.join(list(bad)[:4])}); nothing was written.",
            hint="save an earlier state, or pass allow_nonfinite=True",
        )
    written = (card_of(plain, target.stem) if card is None else _described(card, plain)).replace(hashes=hashes_of(tensors))
    metadata = written.to_metadata()

    def write(stream: IO[bytes]) -> None:
        write_safetensors(stream, tensors, metadata)

    replace_file(target, write)
    return target


def _target(path: Path, said: str) -> Path:
    if path.is_dir() or said.endswith(("/", os.sep)):
        return path / "model.safetensors"
    if path.suffix in FOREIGN:
        raise UsageError(
            f"{path}: save_model writes safetensors, not {path.suffix}.",
            hint=f"save as {path.with_suffix('.safetensors').name}, then `vitrail convert` to other formats",
        )
    return path


def _dtype(said: torch.dtype | str | None) -> torch.dtype | None:
    if said is None or isinstance(said, torch.dtype):
        return said
    if said not in DTYPES:
        raise UsageError(f"dtype={said!r} is not known{nearest(said, DTYPES)}.")
    return DTYPES[said]


def _described(card: Card, model: nn.Module) -> Card:
    """A given card with the configuration the model really has."""
    return card_of(_Carrier(model.config, card))


class _Carrier:
    """A configuration and a card, for `card_of`."""

    def __init__(self, config: Any, card: Card) -> None:
        self.config, self.card = config, card


def bare(model: nn.Module) -> nn.Module:
    """The model inside torch.compile's and data parallel wrappers."""
    while True:
        inner = getattr(model, "_orig_mod", None) or (getattr(model, "module", None) if not hasattr(model, "config") else None)
        if not isinstance(inner, nn.Module):
            return model
        model = inner


def weights_of(model: nn.Module, dtype: torch.dtype | None = None) -> dict[str, Tensor]:
    """Every parameter by name, on the CPU, in the model's own order."""
    return {name: tensor.detach().to("cpu", dtype or tensor.dtype).contiguous() for name, tensor in model.named_parameters()}


def hash_of(tensor: Tensor) -> str:
    """SHA-256 of a tensor's bytes in memory order."""
    digest = hashlib.sha256()
    for part in buffers([tensor]):
        digest.update(part)
    return digest.hexdigest()


def hashes_of(tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """The hash of each, computed side by side (hashing releases the interpreter)."""
    with ThreadPoolExecutor(max_workers=min(8, os.cpu_count() or 1)) as pool:
        return dict(zip(tensors, pool.map(hash_of, tensors.values())))


def nonfinite(tensor: Tensor) -> int:
    """How many values are NaN or infinite. A finite sum rules them out in one pass without memory."""
    if not tensor.is_floating_point() or bool(torch.isfinite(tensor.sum())):
        return 0
    return int((~torch.isfinite(tensor)).sum())
