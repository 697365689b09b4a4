"""A model as one graph for any batch, any image size, any decoded image: what `export` writes.

`AnySize` is the model with its position table resampled inside the graph. A resample is two
small matrix products, R table C', and R and C are built from `arange` and the size of the
input, so nothing depends on how a runtime understands "resize". At the model's own size they
are exact identities.

`WithPreprocess` puts the evaluation view in front: uint8 or float pixels (N, H, W, C) of any
one size -> resize, crop, value range -> logits.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.data.transform import Preprocess
from vitrail.errors import UsageError
from vitrail.model.config import AxialConfig, ResNetConfig
from vitrail.model.position import LearnedPosition, LearnedPosition2d, SincosPosition
from vitrail.model.resnet import Root, StdConv

__all__ = ["AnySize", "WithPreprocess", "any_size_reason", "freeze", "taps"]


def taps(old: Any, new: Any, filter: str, *, aligned: bool = False, antialias: bool = False, a: float = -0.75, like: Tensor) -> Tensor:
    """(new, old) float32: row i holds the weights with which output i takes the inputs. Either length may be symbolic.

    filter: "bilinear" or "bicubic" (Keys' cubic with parameter `a`). Without antialias the image
    goes on past its border with its last value; with it, what lies outside is left out and the
    rest counts fully: as `data.resize` and torch do it.
    """
    if isinstance(old, int) and old == 1:
        return torch.ones(new, 1, device=like.device)
    out = torch.arange(new, device=like.device, dtype=torch.float32)[:, None]
    inputs, outputs = length(old, like), length(new, like)
    if aligned:
        at = out * ((inputs - 1) / (outputs - 1).clamp(min=1))
    else:
        at = (out + 0.5) * (inputs / outputs) - 0.5
    if antialias:
        index = torch.arange(old, device=like.device, dtype=torch.float32)[None]
        weight = _kernel((index - at) / (inputs / outputs).clamp(min=1), filter, a)
        return weight / weight.sum(1, keepdim=True)
    reach = 1 if filter == "bilinear" else 2  # taps that may lie outside, on each side
    part = lambda start, stop: _kernel(torch.arange(start, stop, device=like.device, dtype=torch.float32)[None] - at, filter, a)
    first, last = part(-reach, 1).sum(1, keepdim=True), part(old - 1, old + reach).sum(1, keepdim=True)
    return torch.cat([first, part(1, old - 1), last], dim=1)


def length(count: Any, like: Tensor) -> Tensor:
    """A length, fixed or symbolic, as a float of the graph."""
    return torch.arange(count, device=like.device, dtype=torch.float32)[-1] + 1


def _kernel(x: Tensor, filter: str, a: float) -> Tensor:
    x = x.abs()
    if filter == "bilinear":
        return (1 - x).clamp(min=0)
    near = ((a + 2) * x - (a + 3)) * x * x + 1
    far = ((a * x - 5 * a) * x + 8 * a) * x - 4 * a
    return torch.where(x < 1, near, torch.where(x < 2, far, torch.zeros_like(x)))


# position_resample -> how `taps` does the same
RESAMPLING: dict[str, dict[str, Any]] = {
    "bilinear": {"filter": "bilinear", "aligned": True},
    "bilinear_unaligned": {"filter": "bilinear"},
    "bicubic": {"filter": "bicubic"},
    "bicubic_antialias": {"filter": "bicubic", "antialias": True, "a": -0.5},
    "bicubic_aligned": {"filter": "bicubic", "aligned": True},
}


class LearnedAnywhere(nn.Module):
    """Learned positions (table or half tables) for the grid that `size` names when they are asked."""

    def __init__(self, position: LearnedPosition | LearnedPosition2d, size: list[Any]) -> None:
        super().__init__()
        self.own = position
        self.size = size
        self.how = RESAMPLING[position.resample]

    def prefix(self) -> Tensor | None:
        return self.own.prefix()

    def patches(self) -> Tensor:
        rows, columns = self.size
        if isinstance(self.own, LearnedPosition2d):
            across = self._along(self.own.columns, self.own.grid[1], columns)
            down = self._along(self.own.rows, self.own.grid[0], rows)
            both = [across[None].expand(rows, -1, -1), down[:, None].expand(-1, columns, -1)]
            return torch.cat(both, dim=2).flatten(0, 1)
        table = self.own.patches().unflatten(0, self.own.grid)  # (rows, columns, D)
        down = self._along(table.flatten(1), self.own.grid[0], rows).unflatten(1, (self.own.grid[1], -1))
        across = self._along(down.transpose(0, 1).flatten(1), self.own.grid[1], columns).unflatten(1, (rows, -1))
        return across.transpose(0, 1).flatten(0, 1)

    def _along(self, table_ND: Tensor, old: int, new: Any) -> Tensor:
        """Resample the first axis."""
        weights = taps(old, new, **self.how, like=table_ND)
        return (weights @ table_ND.float()).to(table_ND.dtype)


class SincosAnywhere(nn.Module):
    """Sines and cosines of whatever grid there is."""

    def __init__(self, position: SincosPosition, size: list[Any]) -> None:
        super().__init__()
        self.size = size
        quarter = position.width // 4
        omega = 1.0 / 10_000 ** (torch.arange(quarter, dtype=torch.float64) / (quarter - 1))
        self.register_buffer("omega", omega.float(), persistent=False)

    omega: Tensor

    def prefix(self) -> Tensor | None:
        return None

    def patches(self) -> Tensor:
        rows, columns = self.size
        y = torch.arange(rows, device=self.omega.device, dtype=torch.float32)[:, None] * self.omega
        x = torch.arange(columns, device=self.omega.device, dtype=torch.float32)[:, None] * self.omega
        down = torch.cat([y.sin(), y.cos()], 1)[:, None].expand(-1, columns, -1)
        across = torch.cat([x.sin(), x.cos()], 1)[None].expand(rows, -1, -1)
        return torch.cat([across, down], dim=2).flatten(0, 1)


def any_size_reason(model: nn.Module) -> str | None:
    """Why this model's graph cannot take other image sizes; None where it can."""
    config: Any = model.config
    if isinstance(config, ResNetConfig):
        return None if config.padding == "fixed" else "its padding depends on whether a size is odd"
    if isinstance(config, AxialConfig):
        return "its axial attention is made for one grid"
    if config.position == "relative":
        return "its relative positions are a table of the sequence's length"
    if config.position_resample not in RESAMPLING and config.position.startswith("learned"):
        return f"its positions are resampled by {config.position_resample!r}, which torch computes from a scale, not a size"
    return None


class AnySize(nn.Module):
    """The model for any batch and any image size that divides into its patches. It shares the model's parameters."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.size: list[Any] = [0, 0]
        config: Any = model.config
        self.step = (1, 1)
        if not isinstance(config, ResNetConfig):
            stride = config.stem.stride if config.stem else 1
            self.step = (config.patch_size[0] * stride, config.patch_size[1] * stride)
            swap_positions(model, self.size)
        model.check_input = lambda x: None  # type: ignore[method-assign, assignment]

    def forward(self, images: Tensor) -> Tensor:
        self.size[:] = [images.shape[2] // self.step[0], images.shape[3] // self.step[1]]
        return self.model(images)


def swap_positions(model: nn.Module, size: list[Any]) -> None:
    """Every position module of a model becomes one that follows `size`."""
    for name, module in list(model.named_modules()):
        new: nn.Module | None = None
        if isinstance(module, (LearnedPosition, LearnedPosition2d)):
            new = LearnedAnywhere(module, size)
        elif isinstance(module, SincosPosition):
            new = SincosAnywhere(module, size)
        if new is not None:
            owner, _, last = name.rpartition(".")
            setattr(model.get_submodule(owner), last, new)
            for block in getattr(model, "blocks", ()):
                if block.shared_position[0] is module:
                    block.shared_position = (new,)


class FrozenConv(StdConv):
    """A convolution whose `weight` holds kernels that are standardised already."""

    whole = False  # every side it will see divides by its stride, so that SAME padding is one number

    def standardised(self) -> Tensor:
        return self.weight

    def convolve(self, x_BCHW: Tensor, weight: Tensor) -> Tensor:
        if self.padding == "same" and self.whole:
            return F.conv2d(pad_whole(x_BCHW, self.size, self.stride, 0.0), weight, stride=self.stride)
        return super().convolve(x_BCHW, weight)


def pad_whole(x_BCHW: Tensor, size: int, stride: int, value: float) -> Tensor:
    """`pad_same` of sides that divide by the stride: (side / stride - 1) * stride + size - side = size - stride."""
    total = max(0, size - stride)
    sides = (total // 2, total - total // 2)
    return F.pad(x_BCHW, (*sides, *sides), value=value) if total else x_BCHW


class FramedRoot(Root):
    """A root whose zeros around the pool are joined on instead of padded on.

    ONNX Runtime (1.31, "basic" optimisations) merges a Pad into the MaxPool behind it, and a
    MaxPool pads with -inf: with BiT's zeros and negative features the answer is another one.
    """

    whole = False

    def pool(self, x_BCHW: Tensor) -> Tensor:
        if self.padding == "same" and self.whole and self.pool_pad != "zero":
            return F.max_pool2d(pad_whole(x_BCHW, 3, 2, float("-inf")), 3, 2)
        if self.padding == "same" or self.pool_pad != "zero":
            return super().pool(x_BCHW)
        batch, channels, height, width = x_BCHW.shape
        line = x_BCHW.new_zeros(batch, channels, 1, width)
        x = torch.cat([line, x_BCHW, line], dim=2)
        column = x_BCHW.new_zeros(batch, channels, height + 2, 1)
        return F.max_pool2d(torch.cat([column, x, column], dim=3), 3, 2)


def freeze(model: nn.Module) -> nn.Module:
    """Inference only, in place: what depends on parameters alone is computed now instead of at every call."""
    hybrid = not isinstance(model.config, ResNetConfig)  # its images divide by the stem's whole stride
    for module in model.modules():
        if type(module) is Root:
            module.__class__ = FramedRoot
            module.whole = hybrid  # type: ignore[assignment]
        if type(module) is StdConv:
            module.weight = nn.Parameter(module.standardised().detach(), requires_grad=False)
            module.__class__ = FrozenConv
            module.whole = hybrid  # type: ignore[assignment]
    return model


# ---------------------------------------------------------------- the view


def preprocess_reason(view: Preprocess) -> str | None:
    """Why this view cannot be part of a graph; None where it can."""
    if view.mode not in ("squash", "bit"):
        return f"mode {view.mode!r} crops by a rounding rule that differs from image to image"
    if view.interpolation not in ("bilinear", "bicubic"):
        return f"the {view.interpolation} filter is not written as a graph"
    if view.channels != 3:
        return "luma is taken outside"
    return None


class WithPreprocess(nn.Module):
    """Pixels (N, H, W, 3) in 0..255, decoded and upright, all of one size -> the same view as `Preprocess` -> logits."""

    def __init__(self, model: nn.Module, view: Preprocess) -> None:
        super().__init__()
        reason = preprocess_reason(view)
        if reason:
            raise UsageError(
                f"the preprocessing of this model cannot be exported: {reason}.", hint="leave --preprocess out, and do it before"
            )
        self.model = model
        self.view = view
        self.register_buffer("middle", 255 * torch.tensor(view.mean).view(-1, 1, 1), persistent=False)
        self.register_buffer("spread", 255 * torch.tensor(view.std).view(-1, 1, 1), persistent=False)

    middle: Tensor
    spread: Tensor

    def forward(self, pixels: Tensor) -> Tensor:
        view = self.view
        x = pixels.permute(0, 3, 1, 2).float()
        rows, columns = view.image_size if view.resize is None or view.mode == "squash" else (view.resize, view.resize)
        how: dict[str, Any] = {"filter": view.interpolation, "antialias": view.antialias, "a": -0.5 if view.antialias else -0.75}
        down = taps(x.shape[2], rows, **how, like=x)
        across = taps(x.shape[3], columns, **how, like=x)
        x = down @ (x @ across.transpose(0, 1))
        if view._rounding != "keep":
            x = x.clamp(0, 255)
            x = x.floor() if view._rounding == "truncate" else x.round()
        top, left = (rows - view.image_size[0]) // 2, (columns - view.image_size[1]) // 2
        x = x[:, :, top : top + view.image_size[0], left : left + view.image_size[1]]
        return self.model((x - self.middle) / self.spread)


def nearest_sizes(config: Any, count: int) -> list[tuple[int, int]]:
    """`count` image sizes a model can take, around its own: smaller, larger, wide, tall."""
    rows, columns = config.image_size
    stride = config.stem.stride if getattr(config, "stem", None) else 1
    patch = getattr(config, "patch_size", None)
    down, across = (patch[0] * stride, patch[1] * stride) if patch else (config.stride, config.stride)
    grid = max(1, rows // down), max(1, columns // across)
    shapes = [(1.0, 1.0), (1.5, 1.5), (1.0, 1.5), (2.0, 1.0), (0.75, 1.25), (1.25, 0.75), (2.0, 2.0)]
    found: list[tuple[int, int]] = []
    for tall, wide in shapes:
        size = max(2, math.ceil(grid[0] * tall)) * down, max(2, math.ceil(grid[1] * wide)) * across
        if size not in found:
            found.append(size)
    return found[:count]
