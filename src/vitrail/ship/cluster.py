"""`predict --ray`: the same predictor on a Ray cluster, for millions of images.

    driver: items --> blocks of a fixed size --> Ray Data --> actors, one model each --> driver: one file

An actor answers whole blocks and writes each as a piece of the result (`ship.tables`), so `out` must
lie where every node sees it. What was stopped goes on with the blocks that are missing, and the file
that comes out is the one that `predict` writes without Ray.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitrail.errors import DataError, ResourceError, UsageError, missing_extra
from vitrail.ship.inputs import open_inputs
from vitrail.ship.predict import SHOWN, Predictions, answers, as_predictor, columns
from vitrail.ship.tables import Layout, Pieces, format_for

__all__ = ["Answerer", "predict_on_ray"]

BLOCK_BATCHES = 32  # of images in a block: what a kill costs, and what an actor asks for at a time


def predict_on_ray(
    model: Any,
    images: Any,
    out: str | os.PathLike[str],
    *,
    split: str | None = None,
    top: int = 5,
    embed: bool = False,
    format: str | None = None,
    overwrite: bool = False,
    batch_size: int = 32,
    threads: int | None = None,
    device: str | None = None,
    actors: int | None = None,
) -> Predictions:
    """As `predict` with `out`, on the cluster that RAY_ADDRESS names, or on this machine alone.

    actors: how many models answer at once (None: as many as there are GPUs, or CPUs where there are none).
    """
    ray = _ray()
    start_time = time.perf_counter()
    inputs = open_inputs(images, split)
    if inputs.total is None:
        raise UsageError("on a cluster the images must be countable, and standard input is not.", hint="write the list to a file")
    predictor = as_predictor(model, device="cpu")
    path = Path(out).absolute()
    layout = Layout(format_for(path, format), columns(predictor, top, embed), embed, inputs.labelled)
    block = batch_size * BLOCK_BATCHES
    job = {"model": predictor.identity, "images": inputs.fingerprint(), "items": [0, len(inputs)], "batch_size": batch_size}
    job |= {"format": layout.format, "top": top, "embed": embed, "block": block}
    pieces = Pieces(path, layout, job, overwrite=overwrite)
    done = pieces.spans()
    missing = [(at, min(at + block, len(inputs))) for at in range(0, len(inputs), block)]
    missing = [span for span in missing if span not in done]
    result = Predictions(0, 0, 0.0, path=path, resumed_at=sum(stop - start for start, stop in done), labelled=inputs.labelled)
    with connected(ray):
        gpus = int(ray.cluster_resources().get("GPU", 0)) if device in (None, "cuda") else 0
        count = min(actors or gpus or int(ray.cluster_resources().get("CPU", 1)), max(1, len(missing)))
        work = {"batch_size": batch_size, "top": top, "embed": embed, "threads": threads}
        given = (ray.put(predictor), ray.put(inputs), pieces, "cuda" if gpus else device or "cpu", work)
        for row in answered(ray, missing, given, count, gpus):
            result.images += row["images"]
            result.bad += list(row["skipped"])[: SHOWN - len(result.bad)]
    result.skipped = pieces.finish()
    result.seconds = time.perf_counter() - start_time
    if not result.images and not result.resumed_at:
        raise DataError(f"none of {result.skipped} files could be read.", hint="vitrail data check shows why")
    return result


class Answerer:
    """One model of the cluster. Ray Data makes it once an actor and calls it with blocks."""

    def __init__(self, predictor: Any, inputs: Any, pieces: Pieces, device: str, work: dict[str, Any]) -> None:
        import ray
        import torch

        held, self.inputs = ray.get([predictor, inputs])
        if device == "cpu":
            assigned = ray.get_runtime_context().get_assigned_resources().get("CPU", 1)
            torch.set_num_threads(max(1, int(assigned)))
        self.predictor = as_predictor(held.model, device=device)
        self.pieces, self.work = pieces, work

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        """Spans of items in, what became of each out; the answers go to their piece."""
        found = [self.block(int(start), int(stop)) for start, stop in zip(batch["start"], batch["stop"])]
        return {"images": [images for images, _ in found], "skipped": [skipped for _, skipped in found]}

    def block(self, start: int, stop: int) -> tuple[int, list[dict[str, Any]]]:
        parts = list(answers(self.predictor, self.inputs, start, stop, **self.work))
        rows = [row for part in parts for row in part.rows]
        skipped = [bad for part in parts for bad in part.skipped]
        self.pieces.write(start, stop, rows, skipped)
        return len(rows), skipped[:SHOWN]


def answered(ray: Any, spans: list[tuple[int, int]], given: tuple, count: int, gpus: int) -> Iterator[dict[str, Any]]:
    """What became of each span, in no particular order."""
    if not spans:
        return
    items = ray.data.from_items([{"start": start, "stop": stop} for start, stop in spans], override_num_blocks=min(len(spans), 4 * count))
    pool = ray.data.ActorPoolStrategy(size=count)
    resources = {"num_gpus": 1} if gpus else {"num_cpus": 1}
    yield from items.map_batches(Answerer, fn_constructor_args=given, batch_size=1, compute=pool, **resources).iter_rows()


def _ray() -> Any:
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # nothing is sent anywhere unless the user says so
    os.environ.setdefault("RAY_DATA_DISABLE_PROGRESS_BARS", "1")
    try:
        import ray
        import ray.data
    except ImportError:
        raise missing_extra("ray", "ray", "predict --ray") from None
    return ray


@contextmanager
def connected(ray: Any) -> Iterator[None]:
    """A running cluster: the one this program joined already, the one RAY_ADDRESS names, or one on this machine for now."""
    if ray.is_initialized():
        yield
        return
    try:
        ray.init(log_to_driver=False, logging_level="error", **({} if os.environ.get("RAY_ADDRESS") else {"include_dashboard": False}))
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ResourceError(f"the Ray cluster cannot be reached ({' '.join(str(error).split())[:200]}).", hint="ray status") from None
    try:
        yield
    finally:
        ray.shutdown()
