"""The memory-saving mode: the same losses and gradients, with half of the activations or less."""

import pytest
import torch

from vitrail.config import from_dict
from vitrail.kernels import draws
from vitrail.model.variants import create_model
from vitrail.train.memory import activation_bytes
from vitrail.train.start import starting_model

IMAGES = torch.randn(3, 3, 64, 64, generator=torch.Generator().manual_seed(0))


def built(**options):
    model = create_model("Ti/16", classes=5, image_size=64, depth=2, **options).double().train()
    with torch.no_grad():
        model.head.weight.normal_(0, 0.1, generator=torch.Generator().manual_seed(1))
    return model


def gradients(model, forward=None, images=IMAGES):
    """Losses and gradients, and the bytes of activations that waited for them."""
    key = draws.sample_keys(draws.key(3, "model"), torch.arange(len(images)))
    model.zero_grad()
    kept = {}

    def pack(tensor):
        if not isinstance(tensor, torch.nn.Parameter):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        loss = (model if forward is None else forward)(images.double(), key).square().sum()
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    loss.backward()
    return [loss.detach(), *(p.grad for p in model.parameters())], sum(size for at, size in kept.items() if at not in weights)


@pytest.mark.parametrize(
    "options",
    [{}, {"drop_path": 0.5, "dropout": 0.2}, {"layer_scale": 0.1, "mlp": "swiglu"}, {"position": "relative"}, {"qk_norm": True},
     {"position_at": "every"}],
    ids=lambda options: ",".join(options) or "plain",
)  # fmt: skip
def test_the_same_loss_and_gradients(options):
    model = built(**options)
    expected, much = gradients(model)
    model.recompute = "parts"
    found, little = gradients(model)
    assert all(torch.allclose(a, b, rtol=1e-10, atol=1e-12) for a, b in zip(found, expected))
    assert little < 0.75 * much


def test_half_of_the_activations_or_less():
    model = built()
    images = torch.randn(16, 3, 64, 64)
    _, much = gradients(model, images=images)
    model.recompute = "parts"
    _, little = gradients(model, images=images)
    model.recompute = True
    _, least = gradients(model, images=images)
    assert least < little < 0.5 * much


def test_the_compiler_computes_the_same():
    model = built()
    expected, _ = gradients(model)
    model.recompute = "parts"
    found, _ = gradients(model, torch.compile(model, backend="aot_eager"))
    assert all(torch.allclose(a, b, rtol=1e-9, atol=1e-11) for a, b in zip(found, expected))


def test_evaluation_and_other_models_are_not_concerned():
    model = built().eval()
    expected = model(IMAGES.double())
    model.recompute = "parts"
    assert torch.equal(model(IMAGES.double()), expected)
    axial = create_model("AxialViT-B/16", classes=5, image_size=64, width=64, heads=2, depth=1, mlp_width=64).train()
    axial.recompute = "parts"
    axial(IMAGES).sum().backward()


def test_a_recipe_asks_for_it_and_the_estimate_follows():
    from vitrail.data.source import open_source
    from vitrail.runtime.device import Precision

    source = open_source("builtin:shapes?n=8&size=32&classes=4", split="train")
    recipe = from_dict({"model": {"name": "mu/8", "image_size": [32, 32]}, "train": {"save_memory": True}})
    model = starting_model(recipe, source)
    assert model.recompute == "parts"
    config, bf16 = create_model("B/16", init=False).config, Precision("bf16")
    whole, lean, least = (activation_bytes(config, bf16, flash=True, **options) for options in ({}, {"lean": True}, {"recompute": True}))
    assert least < lean < whole / 2
