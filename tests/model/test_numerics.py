"""Compilation without a graph break, and how far bf16 and fp16 may be from fp32."""

import copy

import pytest
import torch

from vitrail.kernels.draws import key, sample_keys
from vitrail.model.config import AxialConfig, ResNetConfig, ResNetStem, ViTConfig
from vitrail.model.variants import build, create_model

TINY = {"width": 16, "depth": 2, "heads": 4, "mlp_width": 24, "patch_size": 4, "image_size": (8, 12), "classes": 5}
CONFIGS = {
    "plain": ViTConfig(**TINY, dropout=0.1, drop_path=0.1),
    "map, registers, gated": ViTConfig(**TINY, pool="map", registers=2, mlp="swiglu", layer_scale=0.1, qk_norm=True, representation=6),
    "relative": ViTConfig(**TINY, position="relative", distilled=True),
    "2-d, every layer": ViTConfig(**TINY, position="learned2d", position_at="every", pool="gap"),
    "1-d, shared": ViTConfig(**TINY, position_at="shared", pool="token+gap"),
    "hybrid": ViTConfig(**{**TINY, "patch_size": 1, "image_size": 32}, stem=ResNetStem(layers=(1, 1), width=32)),
    "axial": AxialConfig(**TINY, dropout=0.1),
    "bit v2": ResNetConfig(layers=(1, 1), width_factor=0.5, image_size=32, classes=5),
    "bit v1": ResNetConfig(layers=(1, 1), width_factor=0.5, image_size=32, classes=5, version="v1"),
}


def prepared(config, training):
    model, generator = build(config).train(training), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    x = torch.randn(2, config.channels, *config.image_size, generator=generator)
    return model, (x, sample_keys(key(0, "dropout"), torch.arange(2)) if training else None)


def same_compiled(config, training, backend):
    torch._dynamo.reset()
    model, inputs = prepared(config, training)
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    torch.testing.assert_close(compiled(*inputs), model(*inputs), rtol=1e-4, atol=1e-5)
    return model, compiled, inputs


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_no_family_breaks_the_graph(config):
    for training in (False, True):
        same_compiled(config, training, "eager")


@pytest.mark.parametrize("name", ["plain", "bit v1"])
def test_gradients_go_through_the_compiled_graph(name):
    model, compiled, inputs = same_compiled(CONFIGS[name], True, "aot_eager")
    gradients = []
    for forward in (model, compiled):
        model.zero_grad()
        forward(*inputs).square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in model.parameters()])
    for plain, graph in zip(*gradients):
        torch.testing.assert_close(graph, plain, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["map, registers, gated", "hybrid"])
def test_an_exported_graph_takes_any_batch_and_holds_no_float64(name):
    model, (x, _) = prepared(CONFIGS[name], training=False)
    program = torch.export.export(model, (x,), dynamic_shapes=({0: torch.export.Dim("batch")},))
    values = [node.meta.get("val") for node in program.graph.nodes]
    assert not [value for value in values if isinstance(value, torch.Tensor) and value.dtype == torch.float64]
    more = torch.cat([x, x.flip(3), x * 0.5])
    torch.testing.assert_close(program.module()(more), model(more), rtol=1e-4, atol=1e-5)


@pytest.mark.scorecard
@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS.keys())
def test_inductor_compiles_each_family_whole(config):
    for training in (False, True):
        same_compiled(config, training, "inductor")


# ---- half precision ----

# max|half - fp32| / max|fp32| of the logits, about twice what was measured (docs/papers.md states them)
HYBRID = ViTConfig(
    width=96, depth=4, heads=3, mlp_width=192, patch_size=1, image_size=32, classes=50, stem=ResNetStem(layers=(1, 1, 1), width=32)
)  # fmt: skip
MODELS = {
    "ViT, twelve layers": (lambda: create_model("Ti/16", image_size=64, classes=50), 2.5e-2, 3e-3),
    "hybrid": (lambda: build(HYBRID), 7e-2, 1.2e-2),
    "axial": (lambda: create_model("AxialViT-Ti/16", depth=4, image_size=64, classes=50), 2.5e-2, 3e-3),
    "BiT": (lambda: build(ResNetConfig(layers=(1, 1, 1), width_factor=0.5, image_size=32, classes=50)), 5e-2, 7e-3),
}


@pytest.mark.parametrize(("make", "bf16", "fp16"), MODELS.values(), ids=MODELS.keys())
def test_half_precision_stays_within_its_bound_of_fp32(make, bf16, fp16):
    reference_model, generator = make().eval(), torch.Generator().manual_seed(0)
    torch.nn.init.normal_(reference_model.head.weight, std=0.05, generator=generator)
    for name, parameter in reference_model.named_parameters():
        if "norm3" in name:  # a v1 unit that is more than its shortcut
            torch.nn.init.ones_(parameter)
    x = torch.rand(2, 3, *reference_model.config.image_size, generator=generator) * 2 - 1
    with torch.no_grad():
        reference = reference_model(x)
        for dtype, bound in ((torch.bfloat16, bf16), (torch.float16, fp16)):
            with torch.autocast("cpu", dtype):
                mixed = reference_model(x)
            whole = copy.deepcopy(reference_model).to(dtype)(x.to(dtype))
            assert whole.dtype == dtype
            for logits in (mixed, whole):
                assert (logits.float() - reference).abs().max() <= bound * reference.abs().max(), dtype
