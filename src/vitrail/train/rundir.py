"""A run's directory, and the questions asked before anything is trained in it.

out/run.json          recipe, versions, data, seeds, cost so far      (rewritten at each commit)
out/metrics.jsonl     one line every log_every_steps, one an evaluation
out/checkpoints/      what the run resumes from                       (see store.py)
out/best.safetensors  out/last.safetensors                            models with their cards
out/nonfinite.json    samples of the steps that gave NaN or Inf, if any
out/curve.png         loss and accuracy, at the end
"""

from __future__ import annotations

import json
import os
import platform
import sys
import tempfile
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitrail import __version__
from vitrail.config import Change, Recipe, diff, from_dict
from vitrail.errors import CheckpointError, ResourceError, UsageError
from vitrail.runtime.disk import write_atomic

__all__ = ["RunDirectory", "compare_recipes", "compare_sources", "versions"]


@dataclass(frozen=True)
class RunDirectory:
    """Paths of one run; `prepare` proves that they can be written before the first step."""

    path: Path

    def prepare(self) -> None:
        """Create the directory and write, sync and delete a file in it: better now than at the first checkpoint."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(dir=self.path, prefix=".probe-") as probe:
                probe.write(b"x" * 4096)
                probe.flush()
                os.fsync(probe.fileno())
        except OSError as error:
            raise ResourceError(
                f"{self.path} cannot hold a run ({error.strerror or error}).", hint="choose another --out, on a disk with space."
            ) from None

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def best(self) -> Path:
        return self.path / "best.safetensors"

    @property
    def last(self) -> Path:
        return self.path / "last.safetensors"

    def write_json(self, name: str, body: Any) -> None:
        """Replace a JSON file; a disk that refuses costs a warning here (checkpoints have their own rules)."""
        try:
            write_atomic(self.path / name, (json.dumps(body, indent=1, default=str) + "\n").encode())
        except OSError as error:
            warnings.warn(f"{self.path / name} cannot be written ({error})", stacklevel=2)

    def read_json(self, name: str) -> dict[str, Any]:
        try:
            body = json.loads((self.path / name).read_text("utf-8"))
        except (OSError, ValueError):
            return {}
        return body if isinstance(body, dict) else {}


def versions() -> dict[str, str]:
    """What a reader needs to run the same again."""
    import numpy
    import torch

    return {
        "vitrail": __version__,
        "torch": torch.__version__,
        "numpy": numpy.__version__,
        "python": platform.python_version(),
        "platform": platform.platform(),
        "command": " ".join(sys.argv),
    }


def compare_recipes(saved: dict[str, Any], recipe: Recipe, *, override: bool = False) -> list[Change]:
    """The differences a resume may make: refused where tensors or sample order depend on them.

    `noted` keys (a learning rate, an augmentation) change what the weights become, so they
    need `--override`; `free` keys (logging, evaluation, workers) change no weight.
    """
    changes = [change for change in diff(from_dict(saved), recipe) if change.kind != "free"]
    fixed = [change for change in changes if change.kind == "fixed"]
    if fixed:
        raise UsageError(
            "This run was started with another recipe, and these keys cannot change on the way:\n  " + "\n  ".join(map(str, fixed)),
            hint="resume with the recipe in run.json, or choose another --out.",
        )
    if changes and not override:
        raise UsageError(
            "The recipe differs from the one this run was started with:\n  " + "\n  ".join(map(str, changes)),
            hint="add --override to go on with the new values, or choose another --out.",
        )
    return changes


def compare_sources(saved: dict[str, Any], now: dict[str, Any], *, accept: bool = False) -> None:
    """Refuse to go on with other data than the run was started with."""
    if saved.get("fingerprint") == now["fingerprint"] or accept:
        return
    raise CheckpointError(
        f"The training data changed since this run was started: {saved.get('examples')} images with fingerprint "
        f"{str(saved.get('fingerprint'))[:12]} then, {now['examples']} with {now['fingerprint'][:12]} now.",
        hint="restore the data, or add --accept-dataset-change to go on with what is there.",
    )
