"""Replayed forward passes: the plain call's answers, and the plain call itself where nothing can be recorded."""

import pytest
import torch

from vitrail.model.variants import create_model
from vitrail.runtime.graph import Graphed
from vitrail.ship.predictor import Predictor, rounded_once

needs_gpu = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")]


def tiny(seed=0):
    model = create_model("mu/16@32", classes=7, seed=seed).eval()
    with torch.no_grad():
        model.head.weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    return model


def test_on_a_cpu_the_plain_call_answers():
    asked = []
    graphed = Graphed(lambda images: asked.append(len(images)) or images * 2, eager=True)
    assert torch.equal(graphed(torch.ones(3, 1)), torch.full((3, 1), 2.0))
    assert asked == [3] and graphed.recorded == 0 and graphed.failure is None


@pytest.mark.parametrize("name", ["mu/16@32", "R26+ViT-S/32@64"])
def test_weights_rounded_once_give_the_bits_of_autocast(name):
    options = {"width": 32, "heads": 2, "depth": 1, "mlp_width": 64} if "R26" in name else {}
    model = create_model(name, classes=7, **options).eval()
    with torch.no_grad():
        model.head.weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    images = torch.randn(2, 3, *model.config.image_size, generator=torch.Generator().manual_seed(2))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(rounded_once(model, torch.bfloat16)(images), model(images))
    assert model.head.weight.dtype == torch.float32


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_predictor_answers_as_its_model(precision):
    model = tiny()
    predictor = Predictor(model, device="cpu", precision=precision)
    images = torch.randn(2, 3, 32, 32)
    with torch.no_grad(), predictor.precision.autocast(torch.device("cpu")):
        assert torch.equal(predictor.logits(images), model(images).float())


@pytest.mark.parametrize("precision", [pytest.param("fp32", marks=needs_gpu), pytest.param("bf16", marks=needs_gpu)])
def test_on_a_gpu_replays_are_the_plain_calls_bit_for_bit(precision):
    model = tiny().cuda()
    predictor = Predictor(model, device="cuda", precision=precision)
    for size in (1, 3, 1, 3, 1, 3):
        images = torch.randn(size, 3, 32, 32, device="cuda")
        with torch.inference_mode(), predictor.precision.autocast(predictor.device):
            expected = model(images).float()
            assert torch.equal(predictor.logits(images), expected)
    assert predictor._replayed[1].recorded == 2 and predictor._replayed[1].failure is None


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_what_cannot_be_recorded_is_called_plainly():
    graphed = Graphed(lambda images: images * float(images.sum()), eager=True)  # waits for the host
    images = torch.ones(2, 2, device="cuda")
    with torch.inference_mode():
        assert torch.equal(graphed(images), images * 4) and torch.equal(graphed(images), images * 4)
    assert graphed.failure and graphed.recorded == 0
