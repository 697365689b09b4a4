"""What fits into a device, known before anything is moved there."""

import pytest
import torch

from vitrail.config import Recipe, override
from vitrail.errors import UsageError
from vitrail.model.variants import create_model
from vitrail.runtime.device import Precision
from vitrail.train import memory
from vitrail.train.memory import first_micro_batch, question_memory, state_bytes

CPU, FP32 = torch.device("cpu"), Precision("fp32")
MODEL = create_model("mu/8", classes=4, image_size=32)
WEIGHTS = sum(p.numel() for p in MODEL.parameters())


def recipe(*assignments):
    return override(Recipe(), assignments)


@pytest.mark.parametrize(
    ("assignments", "bytes_each"),
    [
        ((), 16),
        (("optim.momentum_dtype=bfloat16",), 14),
        (("ema.decay=0.9",), 20),
        (("optim.name=sgd",), 12),
        (("optim.name=adafactor", "optim.momentum_dtype=bfloat16"), 10),
    ],
)
def test_a_weight_costs_what_its_optimizer_keeps_of_it(assignments, bytes_each):
    assert state_bytes(recipe(*assignments), MODEL.config, FP32) == bytes_each * WEIGHTS


def test_a_model_that_cannot_fit_is_questioned(monkeypatch):
    monkeypatch.setattr(memory, "room_on", lambda device: 15 * WEIGHTS)
    with pytest.raises(UsageError, match="GiB free") as refused:
        question_memory(recipe(), MODEL.config, CPU, FP32)
    assert "train.parallel=fsdp" in refused.value.hint
    question_memory(recipe("optim.name=sgd"), MODEL.config, CPU, FP32)
    question_memory(recipe("train.sure=true"), MODEL.config, CPU, FP32)


def test_a_batch_goes_through_in_the_largest_equal_parts_that_fit(monkeypatch):
    one = memory.activation_bytes(MODEL.config, FP32, flash=False)
    found = []
    for images in (100, 40, 7, 0.5):
        monkeypatch.setattr(memory, "free_bytes", lambda device, images=images: images * one)
        found.append(first_micro_batch(recipe(), MODEL.config, 60, CPU, FP32))
    assert found == [60, 30, 6, 1]
    assert first_micro_batch(recipe("train.micro_batch_size=25"), MODEL.config, 60, CPU, FP32) == 20
    with pytest.raises(UsageError, match="at least 1"):
        first_micro_batch(recipe("train.micro_batch_size=0"), MODEL.config, 60, CPU, FP32)


def test_half_precision_and_recomputed_blocks_hold_less():
    config = MODEL.config.replace(depth=4)
    whole = memory.activation_bytes(config, FP32, flash=True)
    assert memory.activation_bytes(config, Precision("bf16"), flash=True) == whole // 2
    assert memory.activation_bytes(config, FP32, flash=True, recompute=True) < whole
