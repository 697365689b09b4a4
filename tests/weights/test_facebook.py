"""Original .pth files of DeiT, DINO, MAE and DINOv2: the same function as under timm's names, and nothing executed."""

import argparse
import importlib.util
import os
from collections import OrderedDict
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import vitrail
from vitrail.data.transform import IMAGENET_MEAN
from vitrail.errors import CheckpointError, UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.variants import build

_spec = importlib.util.spec_from_file_location("golden", Path(__file__).with_name("golden.py"))
golden = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(golden)
Case, distance = golden.Case, golden.distance

PLAIN = ViTConfig(width=64, depth=2, heads=1, mlp_width=96, patch_size=8, image_size=32, classes=4, activation="gelu")


def released(config, tmp_path, seed=1):
    """(a model with random weights, its state under timm's names)."""
    model = build(config, seed=seed).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed)))
    vitrail.convert(model, tmp_path / "timm", to="timm")
    return model, load_file(tmp_path / "timm" / "model.safetensors")


def agree(path, model, **options):
    found = vitrail.load_model(path, **options)
    x = torch.randn(2, 3, *model.config.image_size)
    with torch.inference_mode():
        assert distance(found(x), model(x)) <= 1e-6
    return found


def test_deit_wrapped_with_an_inert_namespace_gives_timm_s_logits(tmp_path):
    case = Case("t01_timm_vit_token")
    wrapped = {"model": OrderedDict(case.weights), "args": argparse.Namespace(lr=1e-3, output_dir="/x"), "epoch": 299}
    torch.save(wrapped, tmp_path / "deit.pth")
    model = vitrail.load_model(tmp_path / "deit.pth", heads=4)
    with torch.inference_mode():
        assert distance(model(case.arrays["input"]), case.arrays["expected"]) <= case.tolerance
    assert model.card.origin == "facebook" and model.config.position_resample == "bicubic"
    assert model.card.transform().mean == IMAGENET_MEAN


def test_deit_distilled_has_two_heads(tmp_path):
    model, state = released(PLAIN.replace(distilled=True), tmp_path)
    torch.save({"model": state}, tmp_path / "deit_distilled.pth")
    found = agree(tmp_path / "deit_distilled.pth", model)
    assert found.config.distilled and found.config.prefix == 2


def test_deit_iii_scales_its_blocks_and_has_no_class_position(tmp_path):
    model, state = released(PLAIN.replace(layer_scale=1e-4, position_class=False), tmp_path)
    renamed = {name.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2"): value for name, value in state.items()}
    torch.save({"model": renamed}, tmp_path / "deit_3.pth")
    found = agree(tmp_path / "deit_3.pth", model)
    assert not found.config.position_class and found.card.transform().resize == 32


def test_dino_teachers_lose_their_projection_head(tmp_path):
    model, state = released(PLAIN.replace(classes=0), tmp_path)
    head = {"head.mlp.0.weight": torch.zeros(8, 64), "head.last_layer.weight_g": torch.zeros(9, 1)}
    teacher = {**{f"backbone.{name}": value for name, value in state.items()}, **head}
    student = {f"module.{name}": value for name, value in teacher.items()}
    torch.save({"student": student, "teacher": teacher, "args": argparse.Namespace(arch="vit_small")}, tmp_path / "dino.pth")
    found = agree(tmp_path / "dino.pth", model)
    assert found.config.position_resample == "bicubic_offset"
    torch.save(state, tmp_path / "backbone.pth")
    agree(tmp_path / "backbone.pth", model)


def test_mae_encoders_lose_their_decoder(tmp_path):
    model, state = released(PLAIN.replace(classes=0), tmp_path)
    decoder = {
        "mask_token": torch.zeros(1, 1, 16),
        "decoder_embed.weight": torch.zeros(16, 64),
        "decoder_blocks.0.norm1.weight": torch.ones(16),
    }
    torch.save({"model": {**state, **decoder}}, tmp_path / "mae.pth")
    found = agree(tmp_path / "mae.pth", model)
    assert found.config.position_resample == "bicubic" and any("decoder" in note for note in found.card.notes)


def test_fine_tuned_mae_pools_then_normalises(tmp_path):
    model, state = released(PLAIN.replace(pool="gap", class_token=True, final_norm=False, fc_norm=True), tmp_path)
    torch.save({"model": state}, tmp_path / "mae_finetuned.pth")
    assert agree(tmp_path / "mae_finetuned.pth", model).config.pool == "gap"


@pytest.mark.parametrize("registers", [0, 1, 4])
@pytest.mark.parametrize("mlp", ["plain", "swiglu"])
def test_dinov2_with_and_without_registers_and_gates(registers, mlp, tmp_path):
    config = PLAIN.replace(classes=0, layer_scale=1e-5, registers=registers, mlp=mlp)
    model = build(config, seed=2).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn(parameter.shape))
    from vitrail.weights.format import format_named

    rules = format_named("timm").rules(config)
    state, ours = {}, dict(model.named_parameters())
    for rule in rules:
        if all(name in ours for name in rule.ours):
            state.update(zip(rule.theirs, (t.detach().contiguous() for t in rule.write([ours[n] for n in rule.ours]))))
    state["mask_token"] = torch.zeros(1, 64)
    if registers:
        state["register_tokens"] = state.pop("reg_token")
    if mlp == "swiglu":
        state = {name.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3"): value for name, value in state.items()}
    torch.save(state, tmp_path / "dinov2.pth")
    found = agree(tmp_path / "dinov2.pth", model)
    assert found.config.registers == registers and found.config.mlp == mlp
    assert found.config.position_resample == ("bicubic_antialias" if registers else "bicubic_offset")
    chunked = {name.replace("blocks.0.", "blocks.0.0.").replace("blocks.1.", "blocks.0.1."): value for name, value in state.items()}
    torch.save({"teacher": {f"backbone.{name}": value for name, value in chunked.items()}}, tmp_path / "training.pth")
    agree(tmp_path / "training.pth", model)


def test_a_pth_file_that_calls_something_is_refused_and_nothing_runs(tmp_path):
    class Payload:
        def __reduce__(self):
            return os.system, (f"touch {tmp_path / 'canary'}",)

    torch.save({"model": {"cls_token": torch.zeros(1, 1, 8)}, "args": Payload()}, tmp_path / "deit.pth")
    with pytest.raises(CheckpointError, match=r"posix\.system|os\.system"):
        vitrail.load_model(tmp_path / "deit.pth")
    assert not (tmp_path / "canary").exists()


def test_these_files_are_read_and_not_written(tmp_path):
    with pytest.raises(UsageError, match="to timm"):
        vitrail.convert(build(PLAIN), tmp_path / "x", to="facebook")
