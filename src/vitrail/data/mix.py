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

__all__ = ["Mix", "beta", "erase", "erased_boxes", "mix", "plan_mix", "roll"]


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
    streams, every = draws.Streams(draws.key(seed, "mix"), numbers), np.arange(len(numbers))
    happens, which = streams.uniform(every) < probability, streams.uniform(every)
    cuts = happens & (cutmix > 0) & ((mixup <= 0) | (which < switch))
    blends = happens & ~cuts
    share, box = np.ones(len(numbers)), np.zeros((len(numbers), 4), np.int64)
    if cuts.any():
        share[cuts], box[cuts] = _cut(beta(cutmix, streams, every[cuts]), streams, every[cuts], size)
    if blends.any():
        own = beta(mixup, streams, every[blends])
        share[blends] = np.maximum(own, 1 - own)  # the larger part is the sample's own, as in big_vision
    return Mix(share.astype(np.float32)[inverse], box[inverse])


def _cut(share: np.ndarray, streams: draws.Streams, rows: np.ndarray, size: tuple[int, int]) -> tuple[np.ndarray, np.ndarray]:
    """Boxes of 1 - share of the area about uniform centres, clipped at the border; the share follows the clipped box."""
    side = np.sqrt(1 - share)
    centre = [streams.integer(rows, length) for length in size]
    half = [(length * side).astype(np.int64) // 2 for length in size]
    top, left = (np.maximum(0, c - h) for c, h in zip(centre, half))
    bottom, right = (np.minimum(length, c + h) for length, c, h in zip(size, centre, half))
    return 1 - (bottom - top) * (right - left) / (size[0] * size[1]), np.stack([top, left, bottom, right], 1)


def beta(alpha: float, streams: draws.Streams, rows: np.ndarray) -> np.ndarray:
    """Beta(alpha, alpha), one a row: two gammas, in logarithms so that a small alpha does not underflow."""
    a, b = _log_gamma(alpha, streams, rows), _log_gamma(alpha, streams, rows)
    return 1 / (1 + np.exp(np.clip(b - a, -700.0, 700.0)))


def _log_gamma(alpha: float, streams: draws.Streams, rows: np.ndarray) -> np.ndarray:
    """Logarithms of Gamma(alpha): Marsaglia and Tsang's squeeze; below 1 by way of alpha + 1."""
    boost = np.zeros(len(rows))
    if alpha < 1:
        boost, alpha = np.log(1 - streams.uniform(rows)) / alpha, alpha + 1
    d = alpha - 1 / 3
    out, left = np.empty(len(rows)), np.arange(len(rows))
    while len(left):
        here = rows[left]
        x = np.sqrt(-2 * np.log(1 - streams.uniform(here))) * np.cos(2 * np.pi * streams.uniform(here))
        v = (1 + x / np.sqrt(9 * d)) ** 3
        log_v = np.log(np.where(v > 0, v, 1.0))
        taken = (v > 0) & (np.log(1 - streams.uniform(here)) < 0.5 * x * x + d - d * v + d * log_v)
        out[left[taken]] = np.log(d) + log_v[taken]
        left = left[~taken]
    return out + boost


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
    boxes = erased_boxes(probability, seed, positions, size)
    rows = np.flatnonzero(boxes[:, 2] > boxes[:, 0])
    if not len(rows):
        return images
    where = _to(images.device, rows)
    chosen = images.index_select(0, where)
    keys = draws.sample_keys(draws.key(seed, "erase noise"), _to(images.device, positions[rows].astype(np.int64)))
    u = draws.uniform(keys, chosen[0].numel()).view_as(chosen)
    centre, spread = (_to(images.device, np.array(v, np.float32)).view(-1, 1, 1) * 255 for v in (mean, std))
    noise = torch.erfinv(2 * u - 1 + 2.0**-24) * math.sqrt(2) * spread + centre
    images.index_copy_(0, where, torch.where(_inside(boxes[rows], chosen), noise.to(images.dtype), chosen))
    return images


def erased_boxes(probability: float, seed: int, positions: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """(N, 4) int64: top, left, bottom, right of what is erased; zeros where nothing is. Ten attempts, as timm."""
    rows, columns = size
    streams = draws.Streams(draws.key(seed, "erase"), positions)
    out = np.zeros((len(positions), 4), np.int64)
    rest = np.flatnonzero(streams.uniform(np.arange(len(positions))) < probability)
    for _ in range(10):
        if not len(rest):
            break
        area = streams.uniform(rest, 0.02, 1 / 3) * rows * columns
        logs = streams.uniform(rest, math.log(0.3), math.log(1 / 0.3))
        aspect = np.fromiter(map(math.exp, logs.tolist()), np.float64, len(rest))  # numpy's exp may differ in the last bit
        height, width = np.rint(np.sqrt(area * aspect)).astype(np.int64), np.rint(np.sqrt(area / aspect)).astype(np.int64)
        fits = (height < rows) & (width < columns)
        done, height, width = rest[fits], height[fits], width[fits]
        top, left = streams.integer(done, rows - height + 1), streams.integer(done, columns - width + 1)
        out[done] = np.stack([top, left, top + height, left + width], 1)
        rest = rest[~fits]
    return out
