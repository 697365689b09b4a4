"""Checkpoints that are there or not there, never half there.

    checkpoints/step-00001200/   model.safetensors  optimizer.safetensors  …  state.json  MANIFEST.json
    checkpoints/LATEST           the newest name (a hint for people; readers trust the manifests)

Commit: write into `.tmp-<step>-<pid>-<boot>`, fsync every file, write the manifest (size and
SHA-256 of each), fsync the directory, rename it to its final name, fsync the parent; only
then move LATEST, and only then delete old ones. A kill between any two of these leaves
either the previous checkpoint newest or the new one complete.

Find: the newest directory whose manifest verifies byte for byte. LATEST may be absent,
empty or wrong. A damaged checkpoint is named loudly and passed over (or refused: `strict`).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import warnings
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from vitrail.errors import CheckpointError
from vitrail.runtime.disk import FileWriter, Written, fsync_directory, sha256_of, write_atomic
from vitrail.runtime.faults import fault
from vitrail.runtime.lock import boot_id, is_alive

__all__ = ["Checkpoint", "CheckpointStore", "Damaged", "Draft", "verify"]

_NAME = re.compile(r"step-(\d{8,})$")
_DRAFT = re.compile(r"\.tmp-(\d+)-(\d+)-([0-9a-f]*)$")


@dataclass(frozen=True)
class Checkpoint:
    """A committed and verified checkpoint."""

    path: Path
    step: int

    def state(self) -> dict[str, Any]:
        return json.loads((self.path / "state.json").read_text("utf-8"))


class Damaged(CheckpointError):
    """A checkpoint directory that does not match its manifest, and where."""


class Draft:
    """The directory a commit is written into; records what the manifest will say."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.files: dict[str, Written] = {}

    def add(self, name: str, write: Callable[[Path], Written]) -> None:
        """Let `write` create the file `name` (hashed and fsynced by FileWriter)."""
        self.files[name] = write(self.path / name)
        fault("commit.after_file")

    def add_json(self, name: str, body: Any) -> None:
        with FileWriter(self.path / name) as file:
            file.write(json.dumps(body, indent=1, sort_keys=True).encode())
        self.files[name] = file.written
        fault("commit.after_file")

    def add_existing(self, folder: str) -> None:
        """Enter files that another writer (torch.distributed.checkpoint) put into `folder`."""
        for file in sorted((self.path / folder).rglob("*")):
            if file.is_file():
                self.files[file.relative_to(self.path).as_posix()] = Written(file.stat().st_size, sha256_of(file))
        fsync_directory(self.path / folder)


class CheckpointStore:
    """The checkpoints of one run directory."""

    def __init__(self, folder: Path, keep: int = 2) -> None:
        self.folder = Path(folder)
        self.keep = max(1, keep)
        self.last_size = 0

    def draft_path(self, step: int) -> Path:
        return self.folder / f".tmp-{step:08d}-{os.getpid()}-{boot_id()[:8]}"

    def commit(self, step: int, fill: Callable[[Draft], None]) -> Checkpoint:
        """Write a checkpoint through `fill`; raises OSError with nothing of it left behind."""
        fault("commit.start")
        self.folder.mkdir(parents=True, exist_ok=True)
        self._require_space()
        final = self.folder / f"step-{step:08d}"
        draft = Draft(self.draft_path(step))
        try:
            draft.path.mkdir(exist_ok=True)  # sharded writers may have begun it
            fill(draft)
            fault("commit.after_fsync")
            self._seal(draft, step)
            fault("commit.before_rename")
            if final.exists():  # the same step again: only ever because it was found damaged, or is identical
                shutil.rmtree(final)
            os.rename(draft.path, final)
        except BaseException:
            shutil.rmtree(draft.path, ignore_errors=True)
            raise
        fault("commit.after_rename")
        fsync_directory(self.folder)
        fault("commit.before_latest")
        write_atomic(self.folder / "LATEST", final.name.encode())
        fault("commit.after_latest")
        self.last_size = sum(item.size for item in draft.files.values())
        self.prune(newest=final)
        return Checkpoint(final, step)

    def _seal(self, draft: Draft, step: int) -> None:
        manifest = {"format": 1, "step": step, "files": {name: asdict(item) for name, item in draft.files.items()}}
        with FileWriter(draft.path / "MANIFEST.json") as file:
            file.write(json.dumps(manifest, indent=1, sort_keys=True).encode())
        fault("commit.after_manifest")
        fsync_directory(draft.path)

    def _require_space(self) -> None:
        """Refuse before the first byte when the last size, and a fifth more, does not fit."""
        free = shutil.disk_usage(self.folder).free
        need = int(1.2 * self.last_size)
        if need > free:
            raise OSError(28, f"a checkpoint needs {need / 1e6:.0f} MB and {free / 1e6:.0f} MB are free", str(self.folder))

    def names(self) -> list[tuple[int, Path]]:
        """(step, path) of everything that looks like a checkpoint, newest first; never raises."""
        if not self.folder.is_dir():
            return []
        found = [(int(match[1]), path) for path in self.folder.iterdir() if (match := _NAME.match(path.name)) and path.is_dir()]
        return sorted(found, reverse=True)

    def latest(self, *, strict: bool = False) -> Checkpoint | None:
        """The newest checkpoint that verifies; damaged ones are named in a warning, or refused when strict."""
        for step, path in self.names():
            try:
                verify(path)
            except Damaged as damage:
                if strict:
                    raise
                warnings.warn(f"CHECKPOINT DAMAGED, falling back to the one before: {damage.message}", stacklevel=2)
                continue
            self.last_size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
            return Checkpoint(path, step)
        return None

    def prune(self, newest: Path) -> None:
        """Delete all but the newest `keep`; never `newest`, and a failure is only a warning."""
        fault("prune.before")
        for _, path in self.names()[self.keep :]:
            if path == newest:
                continue
            try:
                shutil.rmtree(path)
            except OSError as error:
                warnings.warn(f"could not delete the old checkpoint {path}: {error}", stacklevel=2)
        fault("prune.after")

    def clean(self) -> list[Path]:
        """Remove drafts whose writer is gone (dead pid, or another boot); a living writer's draft is kept."""
        removed = []
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            match = _DRAFT.match(path.name)
            if match and not (boot_id().startswith(match[3]) and is_alive(int(match[2])) and int(match[2]) != os.getpid()):
                shutil.rmtree(path, ignore_errors=True)
                removed.append(path)
        return removed


def verify(path: Path) -> None:
    """Compare a checkpoint with its manifest: every file, its size, its SHA-256."""
    try:
        manifest = json.loads((path / "MANIFEST.json").read_text("utf-8"))
        files = {str(name): Written(int(item["size"]), str(item["sha256"])) for name, item in manifest["files"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise Damaged(f"{path / 'MANIFEST.json'} cannot be read ({type(error).__name__}: {error})") from None
    if "state.json" not in files:
        raise Damaged(f"{path / 'MANIFEST.json'} lists no state.json")
    for name, item in files.items():
        file = path / name
        if not file.is_file():
            raise Damaged(f"{file} is missing")
        if file.stat().st_size != item.size:
            raise Damaged(f"{file} has {file.stat().st_size} bytes, its manifest says {item.size}")
        if sha256_of(file) != item.sha256:
            raise Damaged(f"{file} does not have the SHA-256 in its manifest")
