"""Committing a checkpoint with all ranks, and what to do when the disk refuses."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitrail.errors import ResourceError
from vitrail.runtime import distributed
from vitrail.train.state import TrainState, save_state
from vitrail.train.store import CheckpointStore, Draft

__all__ = ["Saver"]

MOST_FAILURES = 3  # in a row


class Saver:
    """`save(state)` on every rank; rank 0 writes. A refusal costs a warning, three in a row the run."""

    def __init__(self, store: CheckpointStore, about: Mapping[str, Any], *, sharded: bool = False, compact: bool = False) -> None:
        self.store, self.about = store, about
        self.layout = {"sharded": sharded, "compact": compact}
        self.failures = 0
        self.saved_step = -1
        self._home = inode(store.folder.parent)

    def save(self, state: TrainState) -> bool:
        """True when the checkpoint is committed; the ranks agree on that."""
        error = self._write(state) if distributed.is_main() else self._assist(state)
        if distributed.agree(int(error is not None)) == 0:
            self.failures = 0
            self.saved_step = state.step
            return True
        self.failures += 1
        if distributed.is_main():
            warnings.warn(f"checkpoint of step {state.step} could not be written ({error}); training goes on", stacklevel=2)
        if self.failures >= MOST_FAILURES:
            last = self.store.names()
            where = f"{self.store.folder}, the last at step {state.step}"
            raise ResourceError(
                f"{MOST_FAILURES} checkpoints in a row could not be written to {where}: {error}.",
                hint=f"make room; the same command resumes from {last[0][1].name if last else 'the beginning'}",
            )
        return False

    def _write(self, state: TrainState) -> OSError | None:
        entered = False

        def fill(draft: Draft) -> None:
            nonlocal entered
            entered = True
            distributed.agree(0)
            save_state(draft, state, self.about, **self.layout)

        try:
            self._require_folder(state)
            distributed.broadcast_object(self.store.draft_path(state.step))
            self.store.commit(state.step, fill)
        except OSError as error:
            if not entered:
                distributed.agree(1)
            return error
        return None

    def _assist(self, state: TrainState) -> OSError | None:
        """Another rank: gather or write shards, when rank 0 got as far as that."""
        draft = Draft(distributed.broadcast_object(None))
        if distributed.agree(0) == 0:
            try:
                save_state(draft, state, self.about, **self.layout)
            except OSError as error:
                return error
        return None

    def _require_folder(self, state: TrainState) -> None:
        if inode(self.store.folder.parent) != self._home:  # gone, or another directory of that name
            raise ResourceError(
                f"{self.store.folder.parent} is gone; it was there when the run started. The run was at step {state.step}.",
                hint="restore the directory, then run the same command",
            )


def inode(folder: Path) -> int | None:
    try:
        return folder.stat().st_ino
    except OSError:
        return None
