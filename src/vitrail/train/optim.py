"""Optimizers, written so that one bad gradient cannot touch a weight.

Each step measures the norm of all gradients once. If it is not finite, nothing changes: not a
weight, not a moment, not the step count. The decision stays on the device (a 0-d tensor), so no
step waits for it. All arithmetic is element by element or in a fixed order, and repeats bit for bit.

    optimizer = build_optimizer(model.named_parameters(), recipe.optim)
    info = optimizer.step(lr)          # info.grad_norm, info.applied: 0-d tensors on the device

State is a flat table of named tensors ("blocks.0.norm1.weight/m"), fit for safetensors.

    AdamW      p <- p - lr (m^ / (sqrt(v^) + eps) + wd p)            decoupled, times the rate
    Sgd        m <- momentum m + g;  p <- p - lr m                   heavy ball
    Adafactor  as AdamW without v^'s correction, v factored in rows and columns ("Scaling ViT")
    Lamb       AdamW's direction, each tensor at the rate |p| / |direction|  (DeiT-III)
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.optim.adamw import adamw as fused_adamw
from torch.optim.sgd import sgd as fused_sgd

from vitrail.config import OptimSpec
from vitrail.errors import CheckpointError, UsageError, nearest
from vitrail.kernels.fp8 import has_triton

if TYPE_CHECKING:
    from vitrail.train.ema import Ema

__all__ = [
    "Adafactor",
    "AdamW",
    "Group",
    "Lamb",
    "Optimizer",
    "Sgd",
    "StepInfo",
    "build_optimizer",
    "decays",
    "depth_of",
    "global_norm",
    "groups_of",
]


class StepInfo(NamedTuple):
    grad_norm: Tensor  # of all gradients, before clipping, without the loss scale
    applied: Tensor  # 0-d bool: False means that nothing at all was changed


@dataclass(frozen=True)
class Group:
    """Parameters that share a rate and a decay."""

    names: tuple[str, ...]
    params: tuple[nn.Parameter, ...]
    rate: float  # times the step's learning rate
    weight_decay: float


# ---------------------------------------------------------------- which parameter gets what

_BLOCK = re.compile(r"(?:.*\.)?blocks\.(\d+)\.")
_ABOVE = re.compile(r"(norm|fc_norm|map|pre_logits|head|head_dist)\.")
_HEAD = re.compile(r"(head|head_dist)\.")


def decays(name: str, parameter: Tensor) -> bool:
    """Whether weight decay applies: kernels only, as big_vision's mask `.*/kernel$`.

    A kernel is a `.weight` of two or more dimensions; class, distillation and register tokens,
    position tables, the probe of a pooling head, norms, scales and biases are left alone.
    """
    return parameter.ndim >= 2 and name.rsplit(".", 1)[-1] == "weight"


def depth_of(name: str, blocks: int) -> int:
    """How many layers lie below a parameter: 0 for the stem, 1 … blocks, blocks + 1 for the head."""
    if found := _BLOCK.match(name):
        return int(found[1]) + 1
    return blocks + 1 if _ABOVE.match(name) else 0


def is_head(name: str) -> bool:
    return _HEAD.match(name) is not None


def groups_of(named: Iterable[tuple[str, nn.Parameter]], spec: OptimSpec) -> tuple[Group, ...]:
    """Trainable parameters by (rate, decay), each group in the model's own order."""
    trainable = [(name, p) for name, p in named if p.requires_grad]
    if not trainable:
        raise UsageError("No weight is left to train.", hint="set adapt.train to all, head or lora")
    blocks = max((int(found[1]) + 1 for name, _ in trainable if (found := _BLOCK.match(name))), default=0)
    table: dict[tuple[float, float], list[tuple[str, nn.Parameter]]] = defaultdict(list)
    for name, p in trainable:
        rate = spec.layer_decay ** (blocks + 1 - depth_of(name, blocks)) * (spec.head_lr if is_head(name) else 1.0)
        decay = spec.weight_decay
        if is_head(name) and spec.head_weight_decay is not None:
            decay = spec.head_weight_decay
        table[rate, decay if spec.decay == "all" or decays(name, p) else 0.0].append((name, p))
    return tuple(Group(tuple(n for n, _ in members), tuple(p for _, p in members), rate, decay) for (rate, decay), members in table.items())


def build_optimizer(named: Iterable[tuple[str, nn.Parameter]], spec: OptimSpec) -> Optimizer:
    """The optimizer of a recipe over the trainable ones of named parameters."""
    kinds: dict[str, type[Optimizer]] = {"adamw": AdamW, "sgd": Sgd, "adafactor": Adafactor, "lamb": Lamb}
    if spec.name not in kinds:
        raise UsageError(f"There is no optimizer {spec.name!r}{nearest(spec.name, kinds)}.")
    return kinds[spec.name](groups_of(named, spec), spec)


# ---------------------------------------------------------------- sharded tensors


def _wide(t: Tensor) -> Tensor:
    """float32, or float64 where it already is."""
    return t if t.dtype == torch.float64 else t.float()


def _local(t: Tensor) -> Tensor:
    """This rank's part of a sharded tensor (FSDP2), or the tensor itself."""
    to_local = getattr(t, "to_local", None)
    return to_local() if to_local is not None else t


def _full(t: Tensor) -> Tensor:
    full = getattr(t, "full_tensor", None)
    return full() if full is not None else t


def global_norm(grads: Iterable[Tensor]) -> Tensor:
    """The 2-norm over all gradients, in float32 at least, over all shards."""
    total = torch.nn.utils.get_total_norm([_wide(g) for g in grads])
    return _full(total)


# ---------------------------------------------------------------- optimizers


class Optimizer:
    """What all share: the norm, the gate, the clip, and named state. `_update` does the rest."""

    slots: tuple[str, ...] = ()  # names of the tensors kept for a parameter
    carried: frozenset[str] = frozenset()  # weights whose average a step moves; `Ema.update` leaves them alone

    def __init__(self, groups: Iterable[Group], spec: OptimSpec) -> None:
        self.groups = tuple(groups)
        self.spec = spec
        first = _local(self.groups[0].params[0])
        self.count = torch.zeros((), dtype=torch.float32, device=first.device)  # steps that were applied
        self._state: dict[str, dict[str, Tensor]] = {}
        with torch.no_grad():
            for name, p in self.named_parameters():
                self._state[name] = self._fresh(p.detach())

    def named_parameters(self) -> Iterable[tuple[str, nn.Parameter]]:
        for group in self.groups:
            yield from zip(group.names, group.params)

    @torch.no_grad()
    def step(self, lr: float, *, loss_scale: Tensor | float = 1.0, ok: Tensor | None = None) -> StepInfo:
        """One step at the rate `lr`. Gradients may carry a loss scale; `ok` False skips the step as NaN does."""
        missing = [name for name, p in self.named_parameters() if p.grad is None]
        if missing:
            raise UsageError(
                f"{len(missing)} trainable weights got no gradient, the first is {missing[0]!r}.",
                hint="freeze what the loss does not reach, or call backward before step",
            )
        norm = global_norm(p.grad for _, p in self.named_parameters()) / loss_scale  # type: ignore[misc]
        applied = torch.isfinite(norm)
        if ok is not None:
            applied = applied & ok.to(applied.device)
        # g min(1, clip / |g|) as a divisor, so that the loss scale and the clip cost one pass.
        divisor = torch.as_tensor(loss_scale, dtype=torch.float32, device=norm.device)
        if self.spec.clip_norm is not None:
            divisor = divisor * torch.clamp_min(norm / self.spec.clip_norm, 1.0)
        self.count += applied
        self._update_all(lr, divisor, applied)
        return StepInfo(norm, applied)

    def carry(self, average: Ema) -> None:
        """Ask for the average to be moved in the same pass, where the kind and the device can: see `carried`."""

    def zero_grad(self) -> None:
        for _, p in self.named_parameters():
            p.grad = None

    # ---- state, by name

    def state_dict(self) -> dict[str, Tensor]:
        """Flat: '<parameter>/<slot>', and 'count'. The tensors are the live ones; save before the next step."""
        flat = {f"{name}/{slot}": t for name, state in self._state.items() for slot, t in state.items()}
        return flat | {"count": self.count}

    @torch.no_grad()
    def load_state_dict(self, table: Mapping[str, Tensor]) -> None:
        """Copies a saved state in; refuses one of other parameters, shapes or kinds before it changes anything."""
        own = self.state_dict()
        missing, extra = own.keys() - table.keys(), table.keys() - own.keys()
        if missing or extra:
            example = sorted(missing or extra)[0]
            raise CheckpointError(
                f"The saved optimizer state does not fit this {type(self).__name__}: "
                f"{len(missing)} tensors missing, {len(extra)} unknown, for example {example!r}.",
                hint="resume with the recipe the run was started with",
            )
        for name, t in own.items():
            if t.shape != table[name].shape or t.dtype != table[name].dtype:
                raise CheckpointError(
                    f"Optimizer state {name!r} is {tuple(table[name].shape)} {table[name].dtype} in the checkpoint "
                    f"and {tuple(t.shape)} {t.dtype} here.",
                    hint="resume with the recipe the run was started with",
                )
        for name, t in own.items():
            t.copy_(table[name])

    # ---- for the kinds

    def _fresh(self, p: Tensor) -> dict[str, Tensor]:
        """Zero state for one parameter: moments in float32 (float64 for float64), the first one as the spec says."""
        kept = _wide(p).dtype
        first = kept if self.spec.momentum_dtype == "float32" else getattr(torch, self.spec.momentum_dtype)
        return {slot: torch.zeros_like(p, dtype=first if slot == "m" else kept) for slot in self.slots}

    def _update_all(self, lr: float, divisor: Tensor, applied: Tensor) -> None:
        for group in self.groups:
            self._update(group, lr * group.rate, divisor, applied)

    def _update(self, group: Group, lr: float, divisor: Tensor, applied: Tensor) -> None:
        """One tensor after another; `_direction` says where to go. Written for exactness, not for speed."""
        for name, parameter in zip(group.names, group.params):
            p, g = _local(parameter), _local(parameter.grad)  # type: ignore[arg-type]
            state = {slot: _local(t) for slot, t in self._state[name].items()}
            # 0 where skipped: the arithmetic below stays finite, and `where` keeps every old bit.
            g = torch.where(applied, _wide(g) / divisor, 0.0)
            direction, new = self._direction(_wide(p), g, state, group.weight_decay)
            p.copy_(torch.where(applied, (p - lr * direction).to(p.dtype), p))
            for slot, value in new.items():
                state[slot].copy_(torch.where(applied, value.to(state[slot].dtype), state[slot]))

    def _direction(self, p: Tensor, g: Tensor, state: dict[str, Tensor], weight_decay: float) -> tuple[Tensor, dict[str, Tensor]]:
        """What the rate multiplies, weight decay included, and the state to keep."""
        raise NotImplementedError

    def _fusable(self, group: Group) -> bool:
        """Whether torch's fused kernels serve: float32 throughout, on CUDA. (The CPU kernel takes 1 - beta2
        in float32, 5e-5 off: it misses the reference trajectories, the plain path meets them.)"""
        kinds = {(p.dtype, p.device.type) for p in group.params}
        return self.spec.momentum_dtype == "float32" and kinds == {(torch.float32, "cuda")}

    def _adam(self, g: Tensor, state: dict[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """m^ / (sqrt(v^) + eps), the moments updated first; the stored m may be bfloat16, the used one never is."""
        beta1, beta2 = self.spec.betas
        m = _held(beta1, state["m"]) + (1 - beta1) * g
        v = beta2 * state["v"] + (1 - beta2) * g * g
        m_hat, v_hat = m / (1 - beta1**self._at_least_one), v / (1 - beta2**self._at_least_one)
        return m_hat / (v_hat.sqrt() + self.spec.eps), {"m": m, "v": v}

    @property
    def _at_least_one(self) -> Tensor:
        """The count for bias corrections; a skipped very first step must not divide by zero."""
        return torch.clamp_min(self.count, 1.0)


class AdamW(Optimizer):
    """Adam (Kingma and Ba, 2015) with decoupled decay. All-float32 state takes one pass (`kernels/adamw.py`), or torch's
    fused kernel where there is no Triton."""

    slots = ("m", "v")
    _average: Ema | None = None
    _tables: Any = None

    def carry(self, average: Ema) -> None:
        if self._one_pass:
            self._average, self._tables = average, None
            self.carried = frozenset(name for name, _ in self.named_parameters() if name in average.names)

    @property
    def _one_pass(self) -> bool:
        return has_triton() and all(self._fusable(group) for group in self.groups)

    def _update_all(self, lr: float, divisor: Tensor, applied: Tensor) -> None:
        if not self._one_pass:
            return super()._update_all(lr, divisor, applied)
        from vitrail.kernels.adamw import adamw_step

        named = list(self.named_parameters())
        params = [_local(p) for _, p in named]
        if not self._tables or not all(tables.still([params[k] for k in members]) for members, tables in self._tables):
            self._tables = list(self._lay_out(named, params))
        beta1, beta2 = self.spec.betas
        count = self._at_least_one.double()
        rest = 1.0 - self._average.decay_at(self._average.now) if self._average is not None else torch.zeros_like(count)
        numbers = torch.stack([applied.double(), divisor.double(), 1 - beta1**count, 1 - beta2**count, rest]).float()
        for members, tables in self._tables:
            gradients = [_local(named[k][1].grad) for k in members]  # type: ignore[arg-type]
            adamw_step(tables, gradients, numbers, lr, self.spec.betas, self.spec.eps)

    def _lay_out(self, named: list[tuple[str, nn.Parameter]], params: list[Tensor]) -> Iterator[tuple[list[int], Any]]:
        """The tables of those with an average, and of those without."""
        from vitrail.kernels.adamw import AdamWTables

        of_group = {name: (group.rate, group.weight_decay) for group in self.groups for name in group.names}
        for carried in (True, False):
            members = [k for k, (name, _) in enumerate(named) if (name in self.carried) is carried]
            if not members:
                continue
            names = [named[k][0] for k in members]
            rates, decays = zip(*(of_group[name] for name in names))
            m, v = ([_local(self._state[name][slot]) for name in names] for slot in self.slots)
            averages = [_local(self._average.tensor(name)) for name in names] if carried and self._average is not None else []
            yield members, AdamWTables([params[k] for k in members], m, v, averages, rates, decays)

    def _update(self, group: Group, lr: float, divisor: Tensor, applied: Tensor) -> None:
        if not self._fusable(group):
            return super()._update(group, lr, divisor, applied)
        states = [self._state[name] for name in group.names]
        # The kernel counts by itself: it adds one to each of these, and takes it back where found_inf says so.
        before = (self.count - applied.to(torch.float32)).expand(len(states)).clone()
        fused_adamw(
            [_local(p) for p in group.params],
            [_local(p.grad) for p in group.params],  # type: ignore[arg-type]
            [_local(s["m"]) for s in states],
            [_local(s["v"]) for s in states],
            [],
            list(before.unbind()),
            fused=True,
            grad_scale=divisor,
            found_inf=(~applied).to(torch.float32),
            amsgrad=False,
            beta1=self.spec.betas[0],
            beta2=self.spec.betas[1],
            lr=lr,
            weight_decay=group.weight_decay,
            eps=self.spec.eps,
            maximize=False,
        )

    def _direction(self, p: Tensor, g: Tensor, state: dict[str, Tensor], weight_decay: float) -> tuple[Tensor, dict[str, Tensor]]:
        direction, new = self._adam(g, state)
        return direction + weight_decay * p, new


class Sgd(Optimizer):
    """Heavy-ball momentum; the accumulator in bfloat16 as in the paper's code, or float32."""

    slots = ("m",)

    def _update(self, group: Group, lr: float, divisor: Tensor, applied: Tensor) -> None:
        if not self._fusable(group) or (group.weight_decay and not self.spec.coupled_decay):
            return super()._update(group, lr, divisor, applied)
        fused_sgd(
            [_local(p) for p in group.params],
            [_local(p.grad) for p in group.params],  # type: ignore[arg-type]
            [_local(self._state[name]["m"]) for name in group.names],
            fused=True,
            grad_scale=divisor,
            found_inf=(~applied).to(torch.float32),
            weight_decay=group.weight_decay,
            momentum=self.spec.momentum,
            lr=lr,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )

    def _direction(self, p: Tensor, g: Tensor, state: dict[str, Tensor], weight_decay: float) -> tuple[Tensor, dict[str, Tensor]]:
        if self.spec.coupled_decay:
            m = g + weight_decay * p + _held(self.spec.momentum, state["m"])
            return m, {"m": m}
        m = g + _held(self.spec.momentum, state["m"])
        return m + weight_decay * p, {"m": m}


class Adafactor(Optimizer):
    """The variant of "Scaling Vision Transformers", 3.4: no parameter scaling, momentum kept (in bfloat16),
    the second moment as row and column means over the two longest axes, its decay 1 - t ** -0.8 up to a cap.
    """

    slots = ("m", "v")
    least_factored = 32  # both axes at least this long, else v is kept whole (big_vision)
    exponent = 0.8
    floor = 1e-30  # added to squared gradients

    def __init__(self, groups: Iterable[Group], spec: OptimSpec) -> None:
        super().__init__(groups, spec)
        _refuse_shards(self)

    @classmethod
    def axes(cls, shape: torch.Size) -> tuple[int, int] | None:
        """(second longest, longest) axis to factor over, or None."""
        order = sorted(range(len(shape)), key=lambda axis: shape[axis])
        return (order[-2], order[-1]) if len(order) >= 2 and shape[order[-2]] >= cls.least_factored else None

    def _fresh(self, p: Tensor) -> dict[str, Tensor]:
        state, axes = super()._fresh(p), self.axes(p.shape)
        if axes is not None:
            whole = state.pop("v")
            state |= {"v_rows": whole.mean(axes[1]), "v_columns": whole.mean(axes[0])}
        return state

    def _direction(self, p: Tensor, g: Tensor, state: dict[str, Tensor], weight_decay: float) -> tuple[Tensor, dict[str, Tensor]]:
        beta1, cap = self.spec.betas
        beta2 = torch.clamp_max(1.0 - self._at_least_one**-self.exponent, cap)
        square = g * g + self.floor
        new: dict[str, Tensor] = {}
        axes = self.axes(p.shape)
        if axes is None:
            new["v"] = beta2 * state["v"] + (1 - beta2) * square
            scaled = g * new["v"].rsqrt()
        else:
            short, long = axes
            rows = new["v_rows"] = beta2 * state["v_rows"] + (1 - beta2) * square.mean(long)
            columns = new["v_columns"] = beta2 * state["v_columns"] + (1 - beta2) * square.mean(short)
            left = short - 1 if short > long else short  # where the shorter axis is once the longer is gone
            rows = rows / rows.mean(left, keepdim=True)
            scaled = g * rows.rsqrt().unsqueeze(long) * columns.rsqrt().unsqueeze(short)
        new["m"] = _held(beta1, state["m"]) + (1 - beta1) * scaled
        return new["m"] + weight_decay * p, new


class Lamb(Optimizer):
    """LAMB (You et al., 2020) as DeiT-III runs it: the trust ratio only where weight decay applies."""

    slots = ("m", "v")

    def __init__(self, groups: Iterable[Group], spec: OptimSpec) -> None:
        super().__init__(groups, spec)
        _refuse_shards(self)

    def _direction(self, p: Tensor, g: Tensor, state: dict[str, Tensor], weight_decay: float) -> tuple[Tensor, dict[str, Tensor]]:
        direction, new = self._adam(g, state)
        if not weight_decay:
            return direction, new
        direction = direction + weight_decay * p
        size, length = p.norm(), direction.norm()
        trust = torch.where((size > 0) & (length > 0), size / length, 1.0)
        return trust * direction, new


def _held(beta: float, m: Tensor) -> Tensor:
    """beta * m in m's own precision, then float32. For a bfloat16 moment beta itself is rounded, as in JAX
    (0.9 becomes 0.8984): with it, the paper's trajectories are met to the last digits, without it to 1 %."""
    return _wide(torch.tensor(beta, dtype=m.dtype).item() * m)


def _refuse_shards(optimizer: Optimizer) -> None:
    """Means over rows and norms of whole tensors are not what one rank's shard can tell."""
    if any(hasattr(p, "to_local") for _, p in optimizer.named_parameters()):
        raise UsageError(
            f"{type(optimizer).__name__} needs whole tensors and cannot run on FSDP shards.",
            hint="use optim.name=adamw, or data parallelism without sharding",
        )
