"""Whole training steps against the originals: the paper's fine-tuning (e01) and pre-training (e02), loss by loss."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.config import EmaSpec, ObjectiveSpec, OptimSpec, ScheduleSpec
from vitrail.data.batch import Batch
from vitrail.runtime.device import Precision
from vitrail.train.ema import Ema
from vitrail.train.objective import Supervised
from vitrail.train.optim import build_optimizer
from vitrail.train.scale import LossScale
from vitrail.train.schedule import schedule
from vitrail.train.step import TrainStep
from vitrail.weights.load import load_model

GOLDEN = Path(__file__).parents[1] / "golden"
RUNS = {
    "e01": (
        OptimSpec(name="sgd", momentum=0.9, clip_norm=1.0),
        ScheduleSpec(decay="cosine", warmup_steps=3),
        0.05,
        ObjectiveSpec(loss="softmax"),
    ),
    "e02": (
        OptimSpec(weight_decay=0.1, clip_norm=1.0),
        ScheduleSpec(decay="cosine", warmup_steps=4),
        3e-3,
        ObjectiveSpec(loss="sigmoid"),
    ),
}


class Case:
    def __init__(self, name, folder):
        self.about = json.loads((GOLDEN / name / "case.json").read_text())
        self.arrays = np.load(GOLDEN / name / "arrays.npz")
        self.folder = folder
        self.heads = self.about["config"].get("num_heads") or self.about["config"]["transformer"]["num_heads"]

    def model(self, which):
        """The parameters stored under `which:` as one of our models."""
        path = self.folder / f"{which}.npz"
        prefix = f"{which}:"
        table = {key.removeprefix(prefix): self.arrays[key] for key in self.arrays if key.startswith(prefix)}
        np.savez(path, **table)
        return load_model(path, heads=self.heads, image_size=tuple(self.about["image_hw"]))

    def batch(self, step):
        images = torch.from_numpy(self.arrays["images_uint8"][step]).permute(0, 3, 1, 2)
        count = len(images)
        place = torch.arange(count) + step * count
        return Batch(images, torch.from_numpy(self.arrays["labels"][step]), place, place, torch.ones(count, dtype=torch.bool))


@pytest.fixture(params=["e01", "e02"])
def case(request, tmp_path):
    return request.param, Case(request.param, tmp_path)


def trained(name, case, micro, steps=None):
    spec, plan, base, loss = RUNS[name]
    model = case.model("init")
    model.load_state_dict({key: value.clone() for key, value in model.state_dict().items()}, assign=True)
    model.requires_grad_(True).train()
    classes = case.arrays["labels"].shape[-1]
    around = Supervised(model, loss, Precision("fp32"), (0.5,) * 3, (0.5,) * 3, classes=classes)
    optimizer = build_optimizer(around.named(), spec)
    ema = Ema(model, EmaSpec(decay=case.about["ema"])) if case.about["ema"] else None
    step = TrainStep(
        around, optimizer, ema, LossScale(torch.device("cpu"), on=False), lambda batch: (batch.images, batch.labels),
        device=torch.device("cpu"), micro=micro, chunk=4, seed=0, draws_inside=False,
    )  # fmt: skip
    rate = schedule(plan, base=base, steps=case.about["steps"])
    losses, norms = [], []
    for number in range(steps or case.about["steps"]):
        outcome = step(case.batch(number), rate(number))
        assert outcome.applied
        losses.append(float(outcome.loss))
        norms.append(float(outcome.grad_norm))
    return model, ema, losses, norms


def apart(ours, theirs):
    """Largest difference of each tensor, relative to its largest value; without key biases, whose gradient is zero."""
    found = {}
    for name, value in theirs.items():
        mine, value = ours[name].detach(), value.detach()
        if name.endswith("qkv.bias"):
            third = len(value) // 3
            keep = torch.cat([torch.arange(third), torch.arange(2 * third, 3 * third)])
            mine, value = mine[keep], value[keep]
        found[name] = float((mine - value).abs().max() / value.abs().max().clamp_min(1e-30))
    return found


@pytest.mark.parametrize("micro", [4, 1])
def test_losses_norms_and_final_weights_are_the_originals(case, micro):
    name, case = case
    tolerance = case.about["tolerance"]
    model, ema, losses, norms = trained(name, case, micro)
    np.testing.assert_allclose(losses, case.arrays["loss_per_step"], rtol=tolerance["loss_rel"])
    np.testing.assert_allclose(norms, case.arrays["grad_norm_per_step"], rtol=1e-4)
    final = dict(case.model("final").named_parameters())
    assert max(apart(dict(model.named_parameters()), final).values()) <= tolerance["final_rel"]
    if ema is not None:
        stored = {
            "norm.weight": case.arrays["ema_final:params/Transformer/encoder_norm/scale"],
            "norm.bias": case.arrays["ema_final:params/Transformer/encoder_norm/bias"],
            "head.weight": case.arrays["ema_final:params/head/kernel"].T,
            "head.bias": case.arrays["ema_final:params/head/bias"],
        }
        average = {name: torch.from_numpy(value.copy()) for name, value in stored.items()}
        assert max(apart(ema.average(), average).values()) <= tolerance["final_rel"]


def test_first_gradients_are_the_originals(case):
    name, case = case
    model, *_ = trained(name, case, 4, steps=1)  # the rate of step 0 is 0: the weights have not moved
    clipped = min(1.0, 1.0 / float(case.arrays["grad_norm_per_step"][0]))
    assert clipped < 1.0
    gradients = {key: p.grad for key, p in model.named_parameters()}
    theirs = dict(case.model("grad0").named_parameters())
    assert max(apart(gradients, theirs).values()) <= case.about["tolerance"]["grad0_rel"]


@pytest.mark.parametrize(
    ("name", "mistake"), [("e01", {"momentum": 0.89}), ("e01", {"clip_norm": None}), ("e02", {"decay": "all"}), ("e02", {"eps": 1e-6})]
)
def test_a_typical_mistake_would_show(name, mistake, tmp_path, monkeypatch):
    case = Case(name, tmp_path)
    spec, *rest = RUNS[name]
    monkeypatch.setitem(RUNS, name, (replace(spec, **mistake), *rest))
    model, *_ = trained(name, case, 4)
    final = dict(case.model("final").named_parameters())
    assert max(apart(dict(model.named_parameters()), final).values()) > case.about["tolerance"]["final_rel"]
