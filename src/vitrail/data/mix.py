"""Mixup, cutmix and random erasing on a batch, with draws that no split of the batch can change.

Samples are paired inside fixed groups of neighbouring positions of the global batch; a group
has one lambda and one box. A rank's or micro-batch's share holds whole groups, so the result
is the same for any number of them. Inside a group sample j is mixed with sample j - 1, as
big_vision rolls the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from vitrail.kernels import draws

__all__ = ["Mix", "beta", "erase", "mix", "plan_mix", "roll"]


@dataclass(frozen=True)
class Mix:
    """For each sample: its own share, and the box (top, left, bottom, right) that the partner fills (empty: mixup)."""

    share: np.ndarray  # float32 (N)
    box: np.ndarray  # int64 (N, 4)

    @property
    def cuts(self) -> bool:
        return bool((self.box[:, 2] > self.box[:, 0]).any())


def plan_mix(mixup: float, cutmix: float, probability: float, switch: float, seed: int, groups: np.ndarray, size: tuple[int, int]) -> Mix:
    """What happens to the samples whose groups these are."""
    numbers, inverse = np.unique(groups, return_inverse=True)
    words = draws.key(seed, "mix")
    planned = [_plan_group(mixup, cutmix, probability, switch, draws.Stream(words, int(g)), size) for g in numbers]
    share = np.array([s for s, _ in planned], np.float32)
    box = np.array([b for _, b in planned], np.int64).reshape(-1, 4)
    return Mix(share[inverse], box[inverse])


def _plan_group(
    mixup: float, cutmix: float, probability: float, switch: float, stream: draws.Stream, size: tuple[int, int]
) -> tuple[float, tuple[int, int, int, int]]:
    happens, which = stream.uniform() < probability, stream.uniform()
    if not happens:
        return 1.0, (0, 0, 0, 0)
    if cutmix > 0 and (mixup <= 0 or which < switch):
        return _cut(beta(cutmix, stream), stream, size)
    share = beta(mixup, stream)
    return max(share, 1 - share), (0, 0, 0, 0)  # the larger part is the sample's own, as in big_vision


def _cut(share: float, stream: draws.Stream, size: tuple[int, int]) -> tuple[float, tuple[int, int, int, int]]:
    """A box of 1 - share of the area about a uniform centre, clipped at the border; the share follows the clipped box."""
    rows, columns = size
    side = math.sqrt(1 - share)
    height, width = int(rows * side), int(columns * side)
    y, x = stream.integer(rows), stream.integer(columns)
    top, bottom = max(0, y - height // 2), min(rows, y + height // 2)
    left, right = max(0, x - width // 2), min(columns, x + width // 2)
    return 1 - (bottom - top) * (right - left) / (rows * columns), (top, left, bottom, right)


def beta(alpha: float, stream: draws.Stream) -> float:
    """Beta(alpha, alpha) from the stream: two gammas, in logarithms so that a small alpha does not underflow."""
    a, b = _log_gamma(alpha, stream), _log_gamma(alpha, stream)
    return 1 / (1 + math.exp(max(-700.0, min(700.0, b - a))))


def _log_gamma(alpha: float, stream: draws.Stream) -> float:
    """Logarithm of a Gamma(alpha): Marsaglia and Tsang's squeeze; below 1 by way of alpha + 1."""
    boost = 0.0
    if alpha < 1:
        boost, alpha = math.log(1 - stream.uniform()) / alpha, alpha + 1
    d = alpha - 1 / 3
    while True:
        x = math.sqrt(-2 * math.log(1 - stream.uniform())) * math.cos(2 * math.pi * stream.uniform())
        v = (1 + x / math.sqrt(9 * d)) ** 3
        if v > 0 and math.log(1 - stream.uniform()) < 0.5 * x * x + d - d * v + d * math.log(v):
            return math.log(d * v) + boost


# ---------------------------------------------------------------- on the batch


def roll(x: Tensor, group: int) -> Tensor:
    """Each sample's partner: its left neighbour, the group's last for the first."""
    return x.unflatten(0, (-1, group)).roll(1, 1).flatten(0, 1)


def mix(images: Tensor, targets: Tensor, plan: Mix, group: int) -> tuple[Tensor, Tensor]:
    """Float images (N, C, H, W) and targets (N, K), mixed with their partners'."""
    share = _to(images.device, plan.share)
    partner = roll(images, group)
    weight = share.to(images.dtype).view(-1, 1, 1, 1)
    if plan.cuts:
        weight = torch.where(_inside(plan.box, images), 0.0, torch.where(_cut_rows(plan, images.device), 1.0, weight))
    mixed = images * weight + partner * (1 - weight)
    share = share.to(targets.dtype)[:, None]
    return mixed, targets * share + roll(targets, group) * (1 - share)


def _cut_rows(plan: Mix, device: torch.device) -> Tensor:
    return _to(device, plan.box[:, 2] > plan.box[:, 0]).view(-1, 1, 1, 1)


def _inside(box: np.ndarray, images: Tensor) -> Tensor:
    """(N, 1, H, W): whether a pixel lies in its sample's box."""
    top, left, bottom, right = _to(images.device, box)[:, :, None].unbind(1)
    y, x = torch.arange(images.shape[2], device=images.device), torch.arange(images.shape[3], device=images.device)
    rows, columns = (y >= top) & (y < bottom), (x >= left) & (x < right)
    return (rows[:, :, None] & columns[:, None, :])[:, None]


def _to(device: torch.device, array: np.ndarray) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(array)).to(device, non_blocking=True)


def erase(images: Tensor, probability: float, seed: int, positions: np.ndarray, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Random erasing as timm's mode "pixel": one box of 2 % … a third of the image, filled with noise that is
    standard normal once normalised. Float images in 0..255, changed in place."""
    size = images.shape[2], images.shape[3]
    words = draws.key(seed, "erase")
    boxes = np.array([_erased(probability, draws.Stream(words, int(p)), size) for p in positions], np.int64).reshape(-1, 4)
    rows = np.flatnonzero(boxes[:, 2] > boxes[:, 0])
    if not len(rows):
        return images
    where = _to(images.device, rows)
    chosen = images.index_select(0, where)
    keys = draws.sample_keys(draws.key(seed, "erase noise"), _to(images.device, positions[rows].astype(np.int64)))
    u = draws.uniform(keys, chosen[0].numel()).view_as(chosen)
    centre, spread = (torch.tensor(v, device=images.device).view(-1, 1, 1) * 255 for v in (mean, std))
    noise = torch.erfinv(2 * u - 1 + 2.0**-24) * math.sqrt(2) * spread + centre
    images.index_copy_(0, where, torch.where(_inside(boxes[rows], chosen), noise.to(images.dtype), chosen))
    return images


def _erased(probability: float, stream: draws.Stream, size: tuple[int, int]) -> tuple[int, int, int, int]:
    if stream.uniform() >= probability:
        return 0, 0, 0, 0
    rows, columns = size
    for _ in range(10):
        area = stream.uniform(0.02, 1 / 3) * rows * columns
        aspect = math.exp(stream.uniform(math.log(0.3), math.log(1 / 0.3)))
        height, width = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if height < rows and width < columns:
            top, left = stream.integer(rows - height + 1), stream.integer(columns - width + 1)
            return top, left, top + height, left + width
    return 0, 0, 0, 0
