"""Linear layers in fp8, for training and for inference. Opt-in: `train.precision = "fp8"`.

Training (`train_fp8`). All three products of a block's linear layers run on 8-bit floats with one
scale a tensor:

    y  = x8 w8^T         x, w in e4m3 (3 bits of mantissa, up to 448)
    dx = g8 w8           g, the gradient, in e5m2 (2 bits, up to 57344)
    dw = g8^T x8         in float32, accumulated fully

Scales are powers of two, so that scaling itself rounds nothing. A weight's comes from its own
greatest magnitude, each time. An activation's and a gradient's come from the greatest magnitude of
the last 16 steps, with a factor of 2 to spare, which saves a pass over the tensor; what exceeds it
all the same is clipped at the largest number, and the next step's scale knows. The first step has
no past and measures each tensor before it casts it. The scales are part of every checkpoint, so
that a resumed run takes the same steps.

The patch projection, the head, norms, attention and the residual stream stay in bfloat16 and
float32, as in bf16 training. A number that is not finite becomes NaN in fp8 too, never a large
number, so the step's own gate passes such a step over; the history of scales ignores it.
Evaluation of such a model runs in bfloat16.

Inference (`freeze_fp8`). Weights have one scale an output, activations one a token, both measured:
no calibration, and nothing to remember.

On hardware without fp8 products the same numbers are rounded to fp8 and multiplied in float32:
slow, and the twin that the tests hold the GPU's to.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitrail.errors import CheckpointError, UsageError
from vitrail.runtime import distributed

__all__ = ["E4M3", "E5M2", "Fp8Linear", "Scales", "freeze_fp8", "linear_fp8", "quantise_plain", "train_fp8"]

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
MULTIPLE = 16  # the tensor cores' wish for every summed length
PAST = 16  # steps a scale remembers
SPARE = 2.0  # how far a tensor may grow from one step to the next without being clipped
TINY = 2.0**-100  # below this a tensor counts as zero
_measure_first = False  # inside `measuring`: every tensor's scale from itself


@contextmanager
def measuring() -> Iterator[None]:
    """Inside, scales come from the tensors themselves. (A plain global: the backward pass runs in threads of its own.)"""
    global _measure_first
    _measure_first = True
    try:
        yield
    finally:
        _measure_first = False


# ---------------------------------------------------------------- numbers to fp8


def scale_for(greatest: Tensor, dtype: torch.dtype, spare: float = 1.0) -> Tensor:
    """The largest power of two that keeps `greatest` within the type."""
    room = (torch.finfo(dtype).max / (spare * greatest.clamp_min(TINY))).clamp_min(2.0**-126)  # also where all that overflows
    mantissa, _ = torch.frexp(room)
    return room / (2 * mantissa)  # exact on every device; ldexp goes through pow, which need not be


def to_fp8(x: Tensor, scale: Tensor, dtype: torch.dtype) -> Tensor:
    """Rounded to the nearest, clipped at the largest; what is not finite becomes NaN."""
    most = torch.finfo(dtype).max
    return torch.where(torch.isfinite(x), (x.float() * scale).clamp(-most, most), torch.nan).to(dtype)


def quantise_plain(x: Tensor, scale: Tensor, dtype: torch.dtype, pitch: int, sums: bool) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The twin of `quantise.quantise_tiles`."""
    rows = to_fp8(x, scale, dtype)
    columns = F.pad(rows.view(torch.uint8).t(), (0, pitch - len(x))).contiguous().view(dtype)
    return rows, columns, x.abs().amax().float(), x.float().sum(0) if sums else x.new_zeros(0, dtype=torch.float32)


@functools.cache
def has_triton() -> bool:
    return importlib.util.find_spec("triton") is not None


@torch.library.custom_op("vitrail::fp8_quantise", mutates_args=())
def quantise(x: Tensor, scale: Tensor, gradient: bool, sums: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """(M, K) -> fp8 (M, K); fp8 (K, M padded); 1 / scale; greatest |x|; column sums (empty without `sums`)."""
    dtype = E5M2 if gradient else E4M3
    pitch = padded(len(x))
    if _measure_first:
        scale = scale_for(x.abs().amax().float(), dtype)
    cast = quantise_plain
    if x.is_cuda and has_triton():
        from vitrail.kernels.quantise import quantise_tiles as cast
    rows, columns, greatest, total = cast(x, scale, dtype, pitch, sums)
    return rows, columns, 1.0 / scale, greatest, total


@quantise.register_fake
def _(x: Tensor, scale: Tensor, gradient: bool, sums: bool) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    dtype, one = E5M2 if gradient else E4M3, x.new_empty((), dtype=torch.float32)
    columns = x.new_empty(x.shape[1], padded(x.shape[0]), dtype=dtype)
    return x.new_empty(x.shape, dtype=dtype), columns, one, one.clone(), x.new_empty(x.shape[1] if sums else 0, dtype=torch.float32)


@torch.library.custom_op("vitrail::fp8_quantise_weight", mutates_args=())
def quantise_weight(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(N, K) -> fp8 (N, K); fp8 (K, N); 1 / scale, from the weight itself."""
    scale = scale_for(weight.abs().amax().float(), E4M3)
    cast = quantise_plain
    if weight.is_cuda and has_triton():
        from vitrail.kernels.quantise import quantise_tiles as cast
    rows, columns, _, _ = cast(weight, scale, E4M3, len(weight), False)
    return rows, columns, 1.0 / scale


@quantise_weight.register_fake
def _(weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    outputs, inputs = weight.shape
    return (
        weight.new_empty(outputs, inputs, dtype=E4M3),
        weight.new_empty(inputs, outputs, dtype=E4M3),
        weight.new_empty((), dtype=torch.float32),
    )


def padded(length: Any) -> Any:
    return (length + MULTIPLE - 1) // MULTIPLE * MULTIPLE


# ---------------------------------------------------------------- products


def product(
    a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, dtype: torch.dtype, bias: Tensor | None = None, *, fast: bool = True
) -> Tensor:
    """a (M, K) by rows times b (K, N) by columns, both fp8, times both scales. fast: partial sums in fewer bits (Hopper)."""
    if a.is_cuda and bias is not None and dtype == torch.float32:  # the library adds a bias to half precision only
        return product(a, b, scale_a, scale_b, dtype, fast=fast) + bias
    if a.is_cuda:
        return torch._scaled_mm(
            a, b, scale_a=scale_a, scale_b=scale_b, bias=None if bias is None else bias.to(dtype), out_dtype=dtype, use_fast_accum=fast
        )
    return product_plain(a, b, scale_a, scale_b, dtype, bias)


def product_plain(a: Tensor, b: Tensor, scale_a: Tensor, scale_b: Tensor, dtype: torch.dtype, bias: Tensor | None = None) -> Tensor:
    """The same numbers multiplied in float32."""
    found = (a.float() @ b.float()) * (scale_a * scale_b)
    return (found if bias is None else found + bias.to(dtype).float()).to(dtype)


class LinearFp8(torch.autograd.Function):
    """The three products. The probe's "gradient" carries the greatest magnitudes to `Scales`: data that leaves a backward
    pass in the one way that torch.compile, DDP and recomputation all understand."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor, probe: Tensor, dtype: torch.dtype) -> Tensor:
        flat = x.reshape(-1, x.shape[-1])
        x8, x8_turned, x_inverse, greatest, _ = torch.ops.vitrail.fp8_quantise(flat, scale[0], False, False)
        w8, w8_turned, w_inverse = torch.ops.vitrail.fp8_quantise_weight(weight)
        y = product(x8, w8.t(), x_inverse, w_inverse, dtype, bias)
        ctx.save_for_backward(x8_turned, x_inverse, w8_turned, w_inverse, greatest, scale)
        ctx.kinds = x.dtype, weight.dtype, None if bias is None else bias.dtype
        return y.unflatten(0, x.shape[:-1])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x8_turned, x_inverse, w8_turned, w_inverse, greatest, scale = ctx.saved_tensors
        x_dtype, w_dtype, b_dtype = ctx.kinds
        flat = grad.reshape(-1, grad.shape[-1])
        sums = b_dtype is not None and ctx.needs_input_grad[2]
        g8, g8_turned, g_inverse, g_greatest, total = torch.ops.vitrail.fp8_quantise(flat, scale[1], True, sums)
        dx = dw = None
        if ctx.needs_input_grad[0]:
            half = grad.dtype if grad.dtype != torch.float64 else torch.float32
            dx = product(g8, w8_turned.t(), g_inverse, w_inverse, half).to(x_dtype).unflatten(0, grad.shape[:-1])
        if ctx.needs_input_grad[1]:
            dw = product(g8_turned, x8_turned.t(), g_inverse, x_inverse, torch.float32, fast=False).to(w_dtype)
        return dx, dw, total.to(b_dtype) if sums else None, None, torch.stack([greatest, g_greatest]), None


def linear_fp8(x: Tensor, weight: Tensor, bias: Tensor | None, scale: Tensor, probe: Tensor) -> Tensor:
    """x w^T + b through fp8, in autocast's precision. scale (2): of x and of the gradient; probe (2): see `Scales`."""
    return LinearFp8.apply(x, weight, bias, scale, probe, wanted(x))


def wanted(x: Tensor) -> torch.dtype:
    """The precision in which a linear layer answers here."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


class Fp8Linear(nn.Linear):
    """A linear layer that trains in fp8 and answers in the surrounding precision. Parameters and names are nn.Linear's."""

    scale: Tensor
    probe: Tensor

    def forward(self, x: Tensor) -> Tensor:
        if not (self.training and torch.is_grad_enabled()):
            return F.linear(x, self.weight, self.bias)
        return linear_fp8(x, self.weight, self.bias, self.scale, self.probe)


# ---------------------------------------------------------------- a model in fp8


def layers_of(model: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    """The linear layers of a model's blocks whose sides fp8 products can take: not the patch projection, not the head."""
    for name, module in getattr(model, "blocks", nn.Module()).named_modules():
        if type(module) is nn.Linear and module.in_features % MULTIPLE == 0 and module.out_features % MULTIPLE == 0:
            yield f"blocks.{name}", module


def train_fp8(model: nn.Module) -> Scales:
    """Let the blocks' linear layers train in fp8, in place; the model must be on its device. Returns their scales."""
    layers = dict(layers_of(model))
    if not layers:
        raise UsageError(
            f"This model has no linear layer for fp8: it takes blocks, and sides that are multiples of {MULTIPLE}.",
            hint="train.precision=bf16",
        )
    check_hardware(next(iter(layers.values())).weight.device)
    for module in layers.values():
        module.__class__ = Fp8Linear
        module.register_buffer("scale", torch.ones(2, device=module.weight.device), persistent=False)
        module.probe = torch.zeros(2, device=module.weight.device, requires_grad=True)  # type: ignore[assignment]
    return Scales(layers)  # type: ignore[arg-type]


def check_hardware(device: torch.device) -> None:
    """A GPU without fp8 products is refused; a CPU computes the same numbers, slowly."""
    if device.type == "cuda" and torch.cuda.get_device_capability(device) < (8, 9):
        raise UsageError(
            f"{torch.cuda.get_device_name(device)} has no fp8 products (they came with Ada and Hopper).", hint="train.precision=bf16"
        )


class Scales:
    """The scales of a model's fp8 layers: what each step measured, and what the next will use. A part of every checkpoint."""

    def __init__(self, layers: Mapping[str, Fp8Linear]) -> None:
        self.layers = dict(layers)
        first = next(iter(self.layers.values())).weight
        self.past = torch.zeros(len(self.layers), 2, PAST, device=first.device)  # greatest magnitudes, the newest first
        self.settled = False  # whether there is a past
        for layer in self.layers.values():
            layer.probe.register_hook(functools.partial(keep_greatest, layer.probe))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around the forward and backward passes of a step."""
        for layer in self.layers.values():
            layer.probe.grad = None
        if self.settled:
            yield
        else:
            with measuring():
                yield

    @torch.no_grad()
    def update(self) -> None:
        """After a step's backward passes: remember what they measured, and settle the next step's scales."""
        unseen = self.past.new_zeros(2)
        found = torch.stack([unseen if layer.probe.grad is None else layer.probe.grad for layer in self.layers.values()])
        found = distributed.greatest_across(torch.nan_to_num(found, nan=torch.inf))  # a maximum may lose a NaN, never an infinity
        found = torch.where(torch.isfinite(found) & (found > 0), found, self.past[:, :, 0])
        self.past.copy_(torch.cat([found[:, :, None], self.past[:, :, :-1]], dim=2))
        self.settled = True
        self._settle()

    def _settle(self) -> None:
        greatest = self.past.amax(2)
        pair = torch.stack([scale_for(greatest[:, 0], E4M3, SPARE), scale_for(greatest[:, 1], E5M2, SPARE)], dim=1)
        pair = torch.where(greatest > 0, pair, 1.0)
        torch._foreach_copy_([layer.scale for layer in self.layers.values()], list(pair.unbind()))

    # ---- state, by name

    def state_dict(self) -> dict[str, Tensor]:
        return {"past": self.past, "settled": torch.tensor(self.settled)}

    @torch.no_grad()
    def load_state_dict(self, table: Mapping[str, Tensor]) -> None:
        if table["past"].shape != self.past.shape:
            raise CheckpointError(
                f"The saved fp8 scales are of {len(table['past'])} layers, this model has {len(self.past)}.",
                hint="resume with the recipe the run was started with",
            )
        self.past.copy_(table["past"])
        self.settled = bool(table["settled"])
        if self.settled:
            self._settle()


def keep_greatest(probe: Tensor, found: Tensor) -> Tensor:
    """Micro-batches add gradients up; of magnitudes the greatest counts: add only what is more than there is."""
    return found if probe.grad is None else (found - probe.grad).clamp_min(0)


# ---------------------------------------------------------------- inference


class FrozenFp8(nn.Module):
    """A linear layer for inference: weights in e4m3 with one scale an output, activations with one a token."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        weight = linear.weight.detach().float()
        inverse = (weight.abs().amax(1, keepdim=True) / torch.finfo(E4M3).max).clamp_min(TINY)
        self.register_buffer("weight", (weight / inverse).to(E4M3))
        self.register_buffer("inverse", inverse.t().contiguous())
        self.register_buffer("bias", None if linear.bias is None else linear.bias.detach().to(torch.bfloat16))

    def forward(self, x: Tensor) -> Tensor:
        flat = x.reshape(-1, x.shape[-1]).float()
        inverse = (flat.abs().amax(1, keepdim=True) / torch.finfo(E4M3).max).clamp_min(TINY)
        x8 = (flat / inverse).to(E4M3)  # within the type by construction; NaN stays NaN
        y = product(x8, self.weight.t(), inverse, self.inverse, torch.bfloat16, self.bias)  # type: ignore[operator, arg-type]
        return y.unflatten(0, x.shape[:-1]).to(wanted(x))


def freeze_fp8(model: nn.Module) -> nn.Module:
    """The blocks' linear layers in fp8 for inference, in place; the model is in bfloat16 otherwise."""
    for name, linear in list(layers_of(model)):
        parent, _, own = name.rpartition(".")
        setattr(model.get_submodule(parent), own, FrozenFp8(linear))
    return model
