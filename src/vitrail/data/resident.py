"""The whole training set as uint8 on the device, and every crop made there: no decoding while training.

`ResidentStream` yields the same samples with the same boxes as `loader.TrainStream` (the draws
are the same); pixels agree within a level, because the resampling is done on the batch.

A view is, for each sample, a row of taps for every output row and column: an offset into the
image, a step, a kernel. Boxes, sizes and offsets are drawn on the host; taps, reads and sums
happen on the device. Images may have different sizes: they lie in one long buffer.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Any, NamedTuple, Self

import numpy as np
import torch
from torch import Tensor

from vitrail.data import decode
from vitrail.data.batch import Batch
from vitrail.data.boxes import inception_boxes, random_resized_boxes
from vitrail.data.crop import TrainView
from vitrail.data.loader import Labels, make_order, rank_cores
from vitrail.data.order import BatchLayout
from vitrail.data.quarantine import IN_A_ROW, Bad, Quarantine
from vitrail.data.source import Source
from vitrail.data.worker import read
from vitrail.errors import DataError, DecodeError, UsageError
from vitrail.kernels import draws
from vitrail.runtime.progress import Progress, duration

__all__ = ["Axis", "ResidentStream", "resample"]

LARGE = 20_000  # images from which on loading them says how far it is
PIECE = 64  # images decoded by a thread before it asks for more
PROBED = 64  # images whose size is looked at before deciding whether a set fits


class Axis(NamedTuple):
    """One dimension of each sample's view, on the host: output i lies at `start + i` of `source` resized to `target`,
    and `source` begins at `origin` of the stored image. `mirror`: positions beyond the target are reflected."""

    origin: np.ndarray
    source: np.ndarray
    target: np.ndarray
    start: np.ndarray


class Piece(NamedTuple):
    """A run of the source, decoded."""

    end: int  # of the run
    places: np.ndarray  # of the images that could be decoded
    size: np.ndarray  # (len(places), 2): height, width
    pixels: np.ndarray  # uint8, one image after another
    bad: list[Bad]


class ResidentStream:
    """As `TrainStream`, endless, with `seek`; batches lie on `device`."""

    def __init__(
        self,
        source: Source,
        view: TrainView,
        *,
        device: torch.device | str,
        batch_size: int,
        seed: int,
        rank: int = 0,
        world: int = 1,
        start_step: int = 0,
        repeats: int = 1,
        balanced: bool = False,
        workers: int | None = None,
    ) -> None:
        self.source, self.view, self.device = source, view, torch.device(device)
        self.layout = BatchLayout(batch_size, rank, world)
        self.order = make_order(source, seed, repeats, balanced)
        self.words = draws.key(seed, "crop")
        self.step = start_step
        self._labels = Labels(source)
        self._record = Quarantine(len(source))
        self._load(rank_cores() if workers is None else max(1, workers))

    @staticmethod
    def fits(source: Source, view: TrainView, room_bytes: int) -> bool:
        """Whether the decoded set takes at most `room_bytes`, judged by the sizes of a few of its images."""
        if view.dct_scale:
            return False
        chosen = np.unique(np.linspace(0, len(source) - 1, min(PROBED, len(source))).astype(np.int64))
        sizes = []
        for i in chosen.tolist():
            try:
                data, where = read(source, i)
                sizes.append(_bytes(data, where))
            except DecodeError:
                continue
        return bool(sizes) and float(np.mean(sizes)) * len(source) <= room_bytes

    # ------------------------------------------------------------ loading

    def _load(self, workers: int) -> None:
        count = len(self.source)
        self.height, self.width = np.zeros(count, np.int64), np.zeros(count, np.int64)
        self.bad = np.ones(count, bool)
        held: list[Tensor] = []
        found: list[Bad] = []
        began = time.monotonic()
        with Progress(quiet=count < LARGE) as progress:
            for piece in self._pieces(workers):
                held.append(torch.from_numpy(piece.pixels).to(self.device))
                self.height[piece.places], self.width[piece.places], self.bad[piece.places] = *piece.size.T, False
                found += piece.bad
                progress.show(_so_far(piece.end, count, time.monotonic() - began))
        self._record.take(count, found)
        if self.bad.all():
            raise DataError(f"{self.source.name}: no image could be read.")
        self.pixels = torch.cat(held).view(-1, 3)
        self.offset = np.concatenate([[0], np.cumsum(self.height * self.width)[:-1]])

    def _pieces(self, workers: int) -> Iterator[Piece]:
        """The whole source in order, decoded by threads (codecs let go of the interpreter) a little ahead of need.

        Many images to a task, because handing over a task costs as much as decoding a small image.
        """
        parts = deque(range(at, min(at + PIECE, len(self.source))) for at in range(0, len(self.source), PIECE))
        ahead: deque[Future[Piece]] = deque()
        with ThreadPoolExecutor(workers) as pool:
            while parts or ahead:
                while parts and len(ahead) < 2 * workers:
                    ahead.append(pool.submit(self._decode, parts.popleft()))
                yield ahead.popleft().result()

    def _decode(self, part: range) -> Piece:
        images: list[np.ndarray] = []
        places, bad = [], []
        for i in part:
            try:
                data, where = read(self.source, i)
                images.append(decode.pixels(data, where=where))
                places.append(i)
            except DecodeError as error:
                bad.append(Bad(i, self.source.id(i), error.reason, error.detail, i))
        size = np.array([image.shape[:2] for image in images], np.int64).reshape(-1, 2)
        pixels = np.concatenate([image.reshape(-1) for image in images]) if images else np.empty(0, np.uint8)
        return Piece(part.stop, np.array(places, np.int64), size, pixels, bad)

    # ------------------------------------------------------------ the stream

    def __iter__(self) -> Iterator[Batch]:
        return self

    def __next__(self) -> Batch:
        return self.several(1)

    def several(self, steps: int) -> Batch:
        """The next `steps` batches as one: what a host needs for planning hardly grows with their number."""
        positions = np.concatenate([self.layout.positions(self.step + i) for i in range(steps)])
        self.step += steps
        index = self._usable(positions, self.order(positions))
        rows, columns = self._axes(positions, index)
        place = (self.offset[index], self.width[index])
        images = resample(self.pixels, place, rows, columns, self.view)
        return Batch(
            images.permute(0, 3, 1, 2),
            self._labels(index).to(self.device, non_blocking=True),
            self._put(index),
            self._put(positions),
            torch.ones(len(index), dtype=torch.bool, device=self.device),
            positions,
        )

    def _usable(self, positions: np.ndarray, index: np.ndarray) -> np.ndarray:
        """A bad sample's slot goes to the next draw for that position."""
        for slot in np.flatnonzero(self.bad[index]):
            for attempt in range(IN_A_ROW):
                index[slot] = self.order.replacement(int(positions[slot]), attempt)
                if not self.bad[index[slot]]:
                    break
        return index

    def _put(self, array: np.ndarray) -> Tensor:
        return torch.from_numpy(array).to(self.device, non_blocking=True)

    def _axes(self, positions: np.ndarray, index: np.ndarray) -> tuple[Axis, Axis]:
        """Where each sample's view lies; the draws are those of `TrainView.pixels`, for the whole batch at once."""
        view, streams, every = self.view, draws.Streams(self.words, positions), np.arange(len(index))
        height, width = self.height[index], self.width[index]
        rows, columns = (np.full(len(index), side, np.int64) for side in view.image_size)
        nothing = np.zeros(len(index), np.int64)
        if view.crop in ("inception", "random_resized"):
            sample = inception_boxes if view.crop == "inception" else random_resized_boxes
            top, left, h, w = sample(height, width, streams, view.crop_area, view.crop_ratio).T
            return Axis(top, h, rows, nothing), Axis(left, w, columns, nothing)
        sizes = np.array([view.size_before_crop(h, w) for h, w in zip(height.tolist(), width.tolist())], np.int64).T
        spare = (2 * view.crop_pad, 2 * view.crop_pad) if view.crop == "pad_crop" else (sizes[0] - rows, sizes[1] - columns)
        top, left = streams.integer(every, spare[0] + 1), streams.integer(every, spare[1] + 1)
        pad = view.crop_pad if view.crop == "pad_crop" else 0
        return Axis(nothing, height, sizes[0], top - pad), Axis(nothing, width, sizes[1], left - pad)

    def seek(self, step: int) -> None:
        if step < 0:
            raise UsageError(f"cannot seek to step {step}.")
        self.step = step

    def epoch(self, step: int | None = None) -> float:
        return (self.step if step is None else step) * self.layout.batch_size / self.order.length

    @property
    def quarantine(self) -> list[dict[str, Any]]:
        return self._record.entries

    @property
    def quarantine_summary(self) -> str:
        return self._record.summary()

    def close(self) -> None:
        self.pixels = self.pixels[:0]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def _so_far(done: int, count: int, seconds: float) -> str:
    left = f", about {duration(seconds * (count - done) / done)} left" if done else ""
    return f"decoding onto the device: {done:,} of {count:,} images{left}"


def _bytes(data: bytes | np.ndarray, where: str) -> int:
    if isinstance(data, np.ndarray):
        return data.shape[0] * data.shape[1] * 3
    _, width, height, _ = decode.probe(data, where=where)
    return width * height * 3


# ---------------------------------------------------------------- on the device


def resample(pixels: Tensor, place: tuple[np.ndarray, np.ndarray], rows: Axis, columns: Axis, view: TrainView) -> Tensor:
    """pixels (all, 3) uint8; place (offset, width) of each sample -> (N, rows, columns, 3) uint8."""
    device = pixels.device
    down, weight_down = _taps(rows, view.image_size[0], view, device)  # (N, out, taps)
    across, weight_across = _taps(columns, view.image_size[1], view, device)
    offset, width = (torch.from_numpy(np.ascontiguousarray(a)).to(device, non_blocking=True).view(-1, 1) for a in place)
    total = None
    for i in range(down.shape[2]):
        base = (offset + down[:, :, i] * width)[:, :, None]
        line = None
        for j in range(across.shape[2]):
            term = pixels[base + across[:, None, :, j]].float() * weight_across[:, None, :, j, None]
            line = term if line is None else line.add_(term)
        assert line is not None
        line.mul_(weight_down[:, :, i, None, None])
        total = line if total is None else total.add_(line)
    assert total is not None
    if view.rounding == "round":
        total.round_()
    return total.clamp_(0, 255).to(torch.uint8)


def _taps(axis: Axis, out: int, view: TrainView, device: torch.device) -> tuple[Tensor, Tensor]:
    """(N, out, K) places along one dimension of the stored images, and weights that sum to 1: as `resize._taps`, for
    a whole batch."""
    host = torch.from_numpy(np.stack(axis).astype(np.int64)).to(device, non_blocking=True)
    origin, source, target, start = host[:, :, None].unbind(0)
    at = start + torch.arange(out, device=device)[None]
    at = at.abs()  # pad_crop: reflected about the first and the last
    at = torch.where(at >= target, 2 * (target - 1) - at, at)
    scale = source.double() / target
    widen = scale.clamp(min=1.0) if view.antialias else torch.ones_like(scale)
    centre = (at + 0.5) * scale
    largest = float(np.max(axis.source / axis.target))
    index, weight = _kernel_taps(view, centre, scale, widen, source, largest)
    weight = weight / weight.sum(2, keepdim=True)
    return origin[:, :, None] + index.clamp(min=0).minimum(source[:, :, None] - 1), weight.float()


_RADIUS = {"bilinear": 1.0, "bicubic": 2.0, "lanczos": 3.0}


def _kernel_taps(view: TrainView, centre: Tensor, scale: Tensor, widen: Tensor, source: Tensor, largest: float) -> tuple[Tensor, Tensor]:
    filter = view.interpolation
    if filter == "nearest":
        return centre.floor().long()[:, :, None], torch.ones_like(centre)[:, :, None]
    if filter == "area":
        low = centre - scale / 2
        steps = torch.arange(math.ceil(largest) + 1, device=centre.device)
        index = (low + 1e-9).floor().long()[:, :, None] + steps
        overlap = torch.minimum(index + 1.0, (low + scale)[:, :, None]) - torch.maximum(index.double(), low[:, :, None])
        return index, torch.where(index < source[:, :, None], overlap.clamp(min=0), 0.0)
    radius = _RADIUS[filter]
    reach = radius * widen
    count = math.ceil(2 * radius * (max(largest, 1.0) if view.antialias else 1.0))  # as many pixels as the kernel is wide
    first = (centre - reach + 0.5).floor() if view.antialias else (centre - 0.5).floor() - int(radius) + 1
    first = first.clamp(min=0) if view.antialias else first
    index = first.long()[:, :, None] + torch.arange(count, device=centre.device)
    distance = ((index + 0.5 - centre[:, :, None]) / widen[:, :, None]).abs()
    weight = _kernel(filter, distance, -0.5 if view.antialias else -0.75)
    if view.antialias:
        weight = torch.where((index < source[:, :, None]) & (index < (centre + reach)[:, :, None]), weight, 0.0)
    return index, weight


def _kernel(filter: str, x: Tensor, a: float) -> Tensor:
    if filter == "bilinear":
        return (1 - x).clamp(min=0)
    if filter == "lanczos":
        return torch.where(x < 3, torch.sinc(x) * torch.sinc(x / 3), 0.0)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, 0.0))
