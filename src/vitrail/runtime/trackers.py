"""TensorBoard, Weights & Biases and MLflow: only when a recipe names them; metrics.jsonl is always written."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vitrail.errors import UsageError, missing_extra, nearest

__all__ = ["Trackers"]

Send = Callable[[int, dict[str, float]], None]


class Trackers:
    """Sends each line's numbers to every tracker named; a tracker that fails warns once and is dropped."""

    def __init__(self, names: Iterable[str], folder: Path, settings: dict[str, Any]) -> None:
        starters = {"tensorboard": _tensorboard, "wandb": _wandb, "mlflow": _mlflow}
        self._send: dict[str, Send] = {}
        for name in names:
            if name not in starters:
                raise UsageError(f"there is no tracker {name!r}{nearest(name, starters)}.")
            self._send[name] = starters[name](folder, settings)

    def send(self, step: int, line: dict[str, Any]) -> None:
        numbers = dict(_numbers(line))
        for name, send in list(self._send.items()):
            try:
                send(step, numbers)
            except Exception as error:  # someone else's service must not stop a run
                warnings.warn(f"{name} failed and is switched off for this run: {error}", stacklevel=2)
                del self._send[name]


def _numbers(line: dict[str, Any], prefix: str = "") -> Iterable[tuple[str, float]]:
    for key, value in line.items():
        if isinstance(value, dict):
            yield from _numbers(value, f"{prefix}{key}/")
        elif isinstance(value, int | float) and not isinstance(value, bool) and key != "step":
            yield prefix + key, float(value)


def _tensorboard(folder: Path, settings: dict[str, Any]) -> Send:
    try:
        from tensorboardX import SummaryWriter
    except ImportError:
        try:
            from torch.utils.tensorboard import SummaryWriter  # type: ignore[assignment]
        except ImportError:
            raise missing_extra("tensorboardX", "tracking", "the TensorBoard tracker") from None
    writer = SummaryWriter(str(folder / "tensorboard"))

    def send(step: int, numbers: dict[str, float]) -> None:
        for name, value in numbers.items():
            writer.add_scalar(name, value, step)
        writer.flush()

    return send


def _wandb(folder: Path, settings: dict[str, Any]) -> Send:
    try:
        import wandb
    except ImportError:
        raise missing_extra("wandb", "tracking", "the Weights & Biases tracker") from None
    run = wandb.init(dir=str(folder), name=folder.name, config=settings, resume="allow", id=folder.name)
    return lambda step, numbers: run.log(numbers, step=step)


def _mlflow(folder: Path, settings: dict[str, Any]) -> Send:
    try:
        import mlflow
    except ImportError:
        raise missing_extra("mlflow", "tracking", "the MLflow tracker") from None
    mlflow.start_run(run_name=folder.name)
    mlflow.log_dict(settings, "recipe.json")
    return lambda step, numbers: mlflow.log_metrics(numbers, step=step)
