"""Name tables: what is read is what was written, for every kind of rule."""

import pytest
import torch

from vitrail.weights.rules import (
    BATCHED,
    HWIO,
    KERNEL_1X1,
    SAME,
    TRANSPOSED,
    active,
    joined,
    per_block,
    rule,
    split,
    stacked,
    their_tensors,
)


@pytest.mark.parametrize(
    ("change", "shape"), [(SAME, (3,)), (TRANSPOSED, (3, 4)), (HWIO, (8, 3, 5, 7)), (BATCHED, (9, 4)), (KERNEL_1X1, (3, 4))]
)
def test_a_change_undoes_itself(change, shape):
    ours = torch.randn(shape)
    assert torch.equal(change.read(change.write(ours)), ours)


BLOCKS = {f"b.{i}.{name}": (4, 2) for i in range(3) for name in ("w", "kv")}


def back(rules, state):
    theirs = their_tensors(rules, state)
    return {name: tensor for r in active(rules, state) for name, tensor in zip(r.ours, r.read([theirs[n] for n in r.theirs]))}


@pytest.mark.parametrize(
    ("rules", "state"),
    [
        ([rule("a", "x", TRANSPOSED)], {"a": (2, 3)}),
        ([joined("qkv", ("q", "k", "v"), TRANSPOSED)], {"qkv": (12, 4)}),
        ([split(("a", "b"), "x", (1, 2))], {"a": (2, 3), "b": (4, 3)}),
        (per_block(3, [rule("b.{i}.w", "B/{i}/w"), joined("b.{i}.kv", ("B/{i}/k", "B/{i}/v"))]), BLOCKS),
        (stacked(3, [rule("b.{i}.w", "B/w", TRANSPOSED), joined("b.{i}.kv", ("B/k", "B/v"))]), BLOCKS),
    ],
)  # fmt: skip
def test_reading_is_the_inverse_of_writing(rules, state):
    tensors = {name: torch.randn(shape) for name, shape in state.items()}
    found = back(rules, tensors)
    assert found.keys() == tensors.keys()
    assert all(torch.equal(found[name], tensor) for name, tensor in tensors.items())


def test_rules_of_what_a_model_lacks_fall_away():
    rules = [rule("a", "x"), rule("b", "y"), split(("a", "c"), "z", (1, 1))]
    assert [r.theirs for r in active(rules, {"a": 1})] == [("x",)]


def test_without_memory_a_table_says_what_a_file_must_hold():
    state = {"qkv": torch.empty(12, 4, device="meta"), "n": torch.empty(7, device="meta")}
    rules = [joined("qkv", ("q", "k", "v"), TRANSPOSED), rule("n", "N", BATCHED)]
    assert {name: tuple(t.shape) for name, t in their_tensors(rules, state).items()} == {"q": (4, 4), "k": (4, 4), "v": (4, 4), "N": (1, 7)}


def test_shapes_without_memory_come_from_stacks_too():
    state = {f"b.{i}.w": torch.empty(4, 2, device="meta") for i in range(3)}
    found = their_tensors(stacked(3, [rule("b.{i}.w", "B/w", TRANSPOSED)]), state)
    assert found["B/w"].is_meta and found["B/w"].shape == (3, 2, 4)
