"""Rows of numbers about images, computed in parts: shared between ranks, and kept on disk so that a run goes on.

A part is a stretch of consecutive images of a source; rank r computes every world-th of the
parts that are missing, and each is one npz file that appears whole or not at all. What it
belongs to (weights, data, view, precision) is hashed into the folder's name, so parts of
another model are never taken for this one's. Parts do not depend on the number of ranks.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from vitrail.data.source import Source
from vitrail.data.split import Part
from vitrail.errors import ResourceError
from vitrail.runtime import distributed
from vitrail.runtime.disk import write_atomic

__all__ = ["Parts", "weights_fingerprint"]

LARGEST, SMALLEST, ABOUT = 2048, 16, 64  # images in a part; parts of a small source

Rows = Mapping[str, np.ndarray]  # columns of equal length, "index" among them


class Parts:
    """The parts of one computation over `source`; `folder` None keeps them in memory."""

    def __init__(self, source: Source, folder: Path | None = None, identity: Mapping[str, Any] | None = None) -> None:
        self.source = source
        self.size = min(LARGEST, max(SMALLEST, -(-len(source) // ABOUT)))
        self.count = -(-len(source) // self.size)
        self.folder = None
        if folder is not None:
            text = json.dumps({**(identity or {}), "images": len(source)}, sort_keys=True)
            self.folder = folder / hashlib.blake2b(text.encode(), digest_size=10).hexdigest()
            self.folder.mkdir(parents=True, exist_ok=True)
            if distributed.is_main():
                write_atomic(self.folder / "identity.json", text.encode())
        have = {k for k in range(self.count) if self.folder is not None and self._path(k).is_file()}
        self.missing: list[int] = distributed.broadcast_object(sorted(set(range(self.count)) - have))
        self.mine = self.missing[distributed.rank() :: distributed.world()]
        self.held: dict[int, dict[str, np.ndarray]] = {}

    def _path(self, k: int) -> Path:
        assert self.folder is not None
        return self.folder / f"part-{k:06d}.npz"

    def remaining(self) -> Part | None:
        """The images this rank has to look at, as a source of its own; None: nothing is left."""
        if not self.mine:
            return None
        ranges = [np.arange(k * self.size, min((k + 1) * self.size, len(self.source))) for k in self.mine]
        official = bool(getattr(self.source, "official", False))
        return Part((self.source,), np.concatenate(ranges).astype(np.int64), self.source.split, official)

    def take(self, rows: Iterable[Rows]) -> None:
        """Rows about `remaining()` in its order, "index" numbering ITS images; one that is not there could not be read."""
        order = np.concatenate([np.arange(k * self.size, min((k + 1) * self.size, len(self.source))) for k in self.mine])
        pending: list[dict[str, np.ndarray]] = []
        waiting = list(self.mine)
        for columns in rows:
            pending.append({**columns, "index": order[columns["index"]]})
            newest = int(pending[-1]["index"][-1]) if len(columns["index"]) else -1
            if waiting and newest >= (waiting[0] + 1) * self.size:
                pending = [self._commit(waiting, _joined(pending), before=newest)]
        if waiting:
            self._commit(waiting, _joined(pending), before=None)

    def _commit(self, waiting: list[int], columns: dict[str, np.ndarray], before: int | None) -> dict[str, np.ndarray]:
        """Put away every part that lies wholly before image `before`; what is left over."""
        while waiting and (before is None or before >= (waiting[0] + 1) * self.size):
            k = waiting.pop(0)
            inside = columns["index"] < (k + 1) * self.size
            part = {name: values[inside] for name, values in columns.items()}
            columns = {name: values[~inside] for name, values in columns.items()}
            if self.folder is None:
                self.held[k] = part
            else:
                body = io.BytesIO()
                np.savez(body, **part)  # type: ignore[arg-type]
                write_atomic(self._path(k), body.getvalue())
        return columns

    def read(self, k: int) -> dict[str, np.ndarray]:
        if k in self.held:
            return self.held[k]
        try:
            with np.load(self._path(k), allow_pickle=False) as stored:
                return {name: stored[name] for name in stored.files}
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise ResourceError(f"{self._path(k)} cannot be read ({error}).", hint="delete it and run the same command again") from None

    def everything(self) -> dict[str, np.ndarray]:
        """All columns in the order of the images, the same on every rank."""
        if self.folder is None:
            parts = {k: part for theirs in distributed.gather_objects(self.held) for k, part in theirs.items()}
        else:
            distributed.barrier()  # the ranks write to one folder, which all of them see
            parts = {k: self.read(k) for k in range(self.count)}
        return _joined([parts[k] for k in sorted(parts)])

    def forget(self, places: np.ndarray) -> None:
        """Remove the parts that hold these images, so that the next run looks at them again."""
        if self.folder is not None:
            for k in np.unique(places // self.size).tolist():
                self._path(k).unlink(missing_ok=True)

    def discard(self) -> None:
        """Remove the files of the parts (their content has a better place)."""
        for k in range(self.count):
            self._path(k).unlink(missing_ok=True)


def _joined(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Columns end to end; parts without a readable image know no columns but "index"."""
    full = [part for part in parts if len(part["index"])] or parts[:1]
    if not full:
        return {"index": np.zeros(0, np.int64)}
    return {name: np.concatenate([part[name] for part in full]) for name in full[0]}


def weights_fingerprint(model: nn.Module) -> str:
    """A hash of every parameter and buffer as it is now, whatever file it once came from."""
    digest = hashlib.blake2b(digest_size=16)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(memoryview(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()))
    return digest.hexdigest()
