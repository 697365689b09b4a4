"""A batch on its way from the data to the model."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from torch import Tensor

__all__ = ["Batch"]


@dataclass
class Batch:
    """images uint8 (N, C, H, W), or float32 in 0..255 where a preset keeps fractions.

    `position` numbers the slots of the endless training stream (epoch * length + place) and is
    the key of every draw; `index` is the sample in the source that fills the slot. `valid` is
    False where evaluation pads its last batch or could not read a file. `host_position` is
    `position` on the host, so that draws can be planned without waiting for a device. `ready`
    holds the augmented (images, targets), piece by piece, where they were made ahead.
    """

    images: Tensor
    labels: Tensor  # int64 (N), or float32 (N, K) multi-hot
    index: Tensor  # int64 (N)
    position: Tensor  # int64 (N)
    valid: Tensor  # bool (N)
    host_position: np.ndarray | None = None
    ready: list[tuple[Tensor, Tensor]] | None = None

    def __len__(self) -> int:
        return int(self.images.shape[0])

    def positions(self) -> np.ndarray:
        """`position` as a numpy array, without a device round trip where the host knows it."""
        return self.host_position if self.host_position is not None else self.position.cpu().numpy()

    def hash(self) -> str:
        """SHA-256 over (index, label, pixels): one number compares two streams."""
        digest = hashlib.sha256()
        for tensor in (self.index, self.labels, self.valid, self.images):
            digest.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
        return digest.hexdigest()
