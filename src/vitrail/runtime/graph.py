"""A forward pass recorded once as a CUDA graph and replayed: what one image takes is then the GPU's time, not Python's.

A ViT is about a hundred short kernels an image; started one by one from Python they take ten times
as long as they run. A recording is made for each batch size that comes a second time, on the same
kernels with the same arguments, so its answers are those of the plain call bit for bit. Where
recording is not possible (another device, an operation that waits for the host), the plain call stays.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import torch
from torch import Tensor

__all__ = ["Graphed"]

WARM_UP = 3  # passes before a recording: libraries choose their kernels and take their workspace


class Graphed:
    """`forward`, images (B, C, H, W) -> Tensor, replayed where it can be. Its weights must stay where they are.

    largest   batches above it run plainly: there the launches hide behind the work
    eager     record a size the first time it comes
    """

    def __init__(self, forward: Callable[[Tensor], Tensor], *, largest: int = 64, eager: bool = False) -> None:
        self.forward, self.largest, self.eager = forward, largest, eager
        self.failure: str | None = None  # why nothing is recorded any more
        self._seen: set[tuple[object, ...]] = set()
        self._recordings: dict[tuple[object, ...], tuple[torch.cuda.CUDAGraph, Tensor, Tensor]] = {}
        self._lock = threading.Lock()

    def __call__(self, images: Tensor) -> Tensor:
        if images.device.type != "cuda" or len(images) > self.largest or self.failure is not None:
            return self.forward(images)
        with self._lock:  # one input buffer a recording
            return self._replay(images)

    @property
    def recorded(self) -> int:
        return len(self._recordings)

    def _replay(self, images: Tensor) -> Tensor:
        key = (tuple(images.shape), images.dtype, images.device.index)
        if key not in self._recordings:
            if key not in self._seen and not self.eager:
                self._seen.add(key)
                return self.forward(images)
            try:
                self._recordings[key] = self._record(images)
            except RuntimeError as error:
                self.failure = " ".join(str(error).split())[:200]
                torch.cuda.synchronize(images.device)
                return self.forward(images)
        graph, given, found = self._recordings[key]
        given.copy_(images, non_blocking=True)
        graph.replay()
        return found.clone()

    @torch.no_grad()
    def _record(self, images: Tensor) -> tuple[torch.cuda.CUDAGraph, Tensor, Tensor]:
        given = images.detach().clone()
        side = torch.cuda.Stream(images.device)
        side.wait_stream(torch.cuda.current_stream(images.device))
        with torch.cuda.stream(side):
            for _ in range(WARM_UP):
                self.forward(given)
        torch.cuda.current_stream(images.device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = self.forward(given)
        return graph, given, found
