"""The same function with other parameters: what a format cannot write as it is, it may hold folded.

Each fold takes a configuration and its state, and gives both back with the sentences that
say what was done. Logits stay what they were.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from vitrail.model.config import ViTConfig
from vitrail.model.position import position_for

__all__ = ["Fold", "Folded", "chain", "head_bias", "patch_bias", "position_rows", "position_table"]

State = dict[str, Tensor]
Folded = tuple[ViTConfig, State, tuple[str, ...]]
Fold = Callable[[ViTConfig, State], Folded]


def chain(config: ViTConfig, state: State, *folds: Fold) -> Folded:
    """One fold after the other."""
    said: tuple[str, ...] = ()
    for fold in folds:
        config, state, more = fold(config, state)
        said += more
    return config, state, said


def position_table(config: ViTConfig, state: State) -> Folded:
    """sincos2d and learned2d at the stem -> the table of vectors that they add."""
    if config.position not in ("sincos2d", "learned2d") or config.position_at != "stem":
        return config, state, ()
    like = state["patch.weight"]
    module = position_for(config.position, config.width, config.grid, config.position_prefix, config.position_resample)
    assert module is not None
    own = {name.removeprefix("position."): state[name] for name in state if name.startswith("position.")}
    rest = {name: value for name, value in state.items() if not name.startswith("position.")}
    if own:
        module.load_state_dict(own, assign=True)
    with torch.no_grad():
        patches, prefix = module.patches().to(like), module.prefix()  # type: ignore[operator]
        rows = patches if prefix is None else torch.cat([prefix.to(like), patches])
    kept = config.position == "learned2d"
    changed = config.replace(
        position="learned",
        position_class=config.position_class and kept,
        position_registers=config.position_registers and kept,
    )
    return changed, {**rest, "position.table": rows}, (f"{config.position} positions written out as a table of {len(rows)} vectors",)


def position_rows(config: ViTConfig, state: State) -> Folded:
    """A position table without rows for (some of) the tokens before the patches -> with rows of zeros for them."""
    if config.position != "learned" or config.position_prefix == config.prefix:
        return config, state, ()
    table = state["position.table"]
    has = config.position_prefix
    registers = config.registers if config.position_registers else 0
    classes = table[: has - registers]
    zeros = table.new_zeros
    first = classes if len(classes) else zeros(config.prefix - config.registers, table.shape[1])
    second = table[has - registers : has] if registers else zeros(config.registers, table.shape[1])
    full = torch.cat([first, second, table[has:]])
    changed = config.replace(position_class=True, position_registers=config.registers > 0)
    return changed, {**state, "position.table": full}, (f"positions of zeros for {config.prefix - has} token(s) that had none",)


def patch_bias(config: ViTConfig, state: State) -> Folded:
    """A patch projection without bias -> with one of zeros."""
    if config.patch_bias:
        return config, state, ()
    zeros = state["patch.weight"].new_zeros(config.width)
    return config.replace(patch_bias=True), {**state, "patch.bias": zeros}, ("a bias of zeros for the patch projection",)


def head_bias(config: ViTConfig, state: State) -> Folded:
    """A head without bias -> with one of zeros."""
    if config.head_bias or not config.classes:
        return config, state, ()
    zeros = {
        name.replace(".weight", ".bias"): state[name].new_zeros(config.classes)
        for name in state
        if name in ("head.weight", "head_dist.weight")
    }
    return config.replace(head_bias=True), {**state, **zeros}, ("a bias of zeros for the head",)


def zero_positions(config: ViTConfig, state: State) -> Folded:
    """No positions -> positions of zeros."""
    if config.position != "none":
        return config, state, ()
    changed = config.replace(position="learned", position_class=True, position_registers=config.registers > 0)
    table = state["patch.weight"].new_zeros(changed.tokens, config.width)
    return changed, {**state, "position.table": table}, ("a table of zeros for the positions it does not have",)


def register_positions(config: ViTConfig, state: State) -> Folded:
    """Positions of the registers -> added into the registers (the same sum, made once)."""
    if config.position != "learned" or not config.position_registers or not config.registers:
        return config, state, ()
    table, last = state["position.table"], config.position_prefix
    first = last - config.registers
    changed = config.replace(position_registers=False)
    kept = {**state, "registers": state["registers"] + table[first:last], "position.table": torch.cat([table[:first], table[last:]])}
    return changed, kept, ("positions of the registers added into the registers",)


def class_rows(config: ViTConfig, state: State) -> Folded:
    """A position table without a row for the class token -> with one of zeros; registers stay without."""
    if config.position != "learned" or config.position_class or not config.class_token:
        return config, state, ()
    table = state["position.table"]
    rows = table.new_zeros(config.prefix - config.registers, table.shape[1])
    changed = config.replace(position_class=True)
    return changed, {**state, "position.table": torch.cat([rows, table])}, ("positions of zeros for the class token",)


def unit_scales(config: ViTConfig, state: State) -> Folded:
    """No LayerScale -> one of ones."""
    if config.layer_scale is not None:
        return config, state, ()
    ones = {f"blocks.{i}.scale{n}": state["patch.weight"].new_ones(config.width) for i in range(config.depth) for n in (1, 2)}
    return config.replace(layer_scale=1.0), {**state, **ones}, ("a LayerScale of ones",)


def dense_biases(config: ViTConfig, state: State) -> Folded:
    """Dense layers without bias in the blocks -> with biases of zeros."""
    if config.dense_bias:
        return config, state, ()
    names = [f"blocks.{i}.{layer}" for i in range(config.depth) for layer in ("attention.out", "mlp.fc1", "mlp.fc2")]
    zeros = {f"{name}.bias": state[f"{name}.weight"].new_zeros(state[f"{name}.weight"].shape[0]) for name in names}
    return config.replace(dense_bias=True), {**state, **zeros}, ("biases of zeros in the blocks",)


def qkv_bias(config: ViTConfig, state: State) -> Folded:
    """q, k and v without bias -> with biases of zeros."""
    if config.qkv_bias:
        return config, state, ()
    zeros = {f"blocks.{i}.attention.qkv.bias": state["patch.weight"].new_zeros(3 * config.width) for i in range(config.depth)}
    return config.replace(qkv_bias=True), {**state, **zeros}, ("biases of zeros for q, k and v",)
