"""BiT ResNets against plain definitions of their units, and the interface they share with the ViT."""

import pytest
import torch
import torch.nn.functional as F

from vitrail.errors import UsageError
from vitrail.model.config import ResNetConfig, ResNetStem, ViTConfig
from vitrail.model.resnet import StdConv, pad_same
from vitrail.model.variants import build

V2 = ResNetConfig(layers=(2, 1), width_factor=0.5, image_size=(40, 24), classes=5)
V1 = V2.replace(version="v1")


def random_model(config, seed=0):
    model, generator = build(config), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator).mul_(0.5).add_(0.2)
    return model.double()


def standardised(weight, config):
    mean, std = weight.mean((1, 2, 3), keepdim=True), weight.std((1, 2, 3), correction=0, keepdim=True)
    return (weight - mean) / ((std**2 + config.conv_eps).sqrt() if config.conv_eps_in else std + config.conv_eps)


def same(x, size, stride, value=0.0):
    """TensorFlow's SAME by counting windows."""
    pads = []
    for side in (x.shape[3], x.shape[2]):
        windows = -(-side // stride)
        total = max(0, (windows - 1) * stride + size - side)
        pads += [total // 2, total - total // 2]
    return F.pad(x, pads, value=value)


def plain(model, x):
    """The published definitions, unit by unit."""
    c = model.config

    def conv(x, module, stride=1):
        size = module.weight.shape[2]
        padded = same(x, size, stride) if c.padding == "same" else F.pad(x, [size // 2] * 4)
        return F.conv2d(padded, standardised(module.weight, c), stride=stride)

    def gn(x, module):
        groups = x.unflatten(1, (32, -1)).flatten(2)
        mean, var = groups.mean(2, keepdim=True), groups.var(2, correction=0, keepdim=True)
        return ((groups - mean) / (var + c.norm_eps).sqrt()).view_as(x) * module.weight[:, None, None] + module.bias[:, None, None]

    x = conv(x, model.root.conv, 2)
    if c.version == "v1":
        x = F.relu(gn(x, model.root.norm))
    outside = 0.0 if c.pool_pad == "zero" else -1e30
    x = F.max_pool2d(same(x, 3, 2, outside) if c.padding == "same" else F.pad(x, [1] * 4, value=outside), 3, 2)
    for index, stage in enumerate(model.stages):
        for number, unit in enumerate(stage):
            stride = 2 if index and not number else 1
            if c.version == "v1":
                shortcut = x if unit.projection is None else gn(conv(x, unit.projection, stride), unit.projection_norm)
                y = F.relu(gn(conv(x, unit.conv1), unit.norm1))
                y = F.relu(gn(conv(y, unit.conv2, stride), unit.norm2))
                x = F.relu(gn(conv(y, unit.conv3), unit.norm3) + shortcut)
            else:
                y = F.relu(gn(x, unit.norm1))
                shortcut = x if unit.projection is None else conv(y, unit.projection, stride)
                y = conv(F.relu(gn(conv(y, unit.conv1), unit.norm2)), unit.conv2, stride)
                x = conv(F.relu(gn(y, unit.norm3)), unit.conv3) + shortcut
    x = x if c.version == "v1" else F.relu(gn(x, model.norm))
    return x.mean((2, 3)) @ model.head.weight.T + model.head.bias


@pytest.mark.parametrize("config", [V2, V2.replace(pool_pad="inf"), V2.replace(padding="same"), V1, V1.replace(padding="fixed")])
def test_logits_equal_the_plain_definition(config):
    model = random_model(config)
    for size in ((40, 24), (33, 47)):  # odd sides too
        x = torch.randn(2, 3, *size, dtype=torch.float64)
        torch.testing.assert_close(model(x), plain(model, x), rtol=1e-10, atol=1e-10)


def test_what_surrounds_the_pool_matters_without_a_relu_before_it():
    x = torch.randn(1, 3, 40, 24, dtype=torch.float64)
    zero, inf = (random_model(V2.replace(pool_pad=pad))(x) for pad in ("zero", "inf"))
    assert not torch.allclose(zero, inf, rtol=1e-5)
    zero, inf = (random_model(V1.replace(pool_pad=pad))(x) for pad in ("zero", "inf"))
    torch.testing.assert_close(zero, inf)


def test_kernels_have_mean_0_and_deviation_1():
    conv = StdConv(7, 4, 3, 1, V2).double()
    torch.nn.init.normal_(conv.weight, 3.0, 0.2)
    kernel = conv.standardised()
    torch.testing.assert_close(kernel.mean((1, 2, 3)), torch.zeros(4).double(), atol=1e-12, rtol=0)
    torch.testing.assert_close(kernel.std((1, 2, 3), correction=0), torch.ones(4).double(), atol=1e-7, rtol=0)


def test_half_precision_kernels_are_standardised_in_float32():
    conv = StdConv(64, 4, 3, 1, V2)
    torch.nn.init.normal_(conv.weight, 1.0, 0.02)
    reference = StdConv(64, 4, 3, 1, V2)
    reference.load_state_dict(conv.bfloat16().float().state_dict())
    torch.testing.assert_close(conv.bfloat16().standardised().float(), reference.standardised(), rtol=2**-8, atol=2**-8)


@pytest.mark.parametrize(
    ("side", "size", "stride", "before", "after"),
    [(224, 7, 2, 2, 3), (112, 3, 2, 0, 1), (7, 3, 2, 1, 1), (14, 3, 1, 1, 1), (14, 1, 2, 0, 0)],
)
def test_same_padding_is_tensorflows(side, size, stride, before, after):
    padded = pad_same(torch.ones(1, 1, side, side), size, stride, 0.0)[0, 0, side // 2]
    assert padded.shape[0] == side + before + after
    assert padded[:before].sum() == 0 and padded[before : before + side].sum() == side


@pytest.mark.parametrize("config", [V1, V2])
def test_the_interface_is_that_of_a_vit(config):
    model = random_model(config)
    x = torch.randn(2, 3, 40, 24, dtype=torch.float64)
    tokens, features = model.tokens(x), model.features(x)
    assert tokens.shape == (2, model.config.tokens, 256) and model.grid == (5, 3)
    torch.testing.assert_close(tokens.transpose(1, 2).unflatten(2, model.grid), model.feature_map(x))
    torch.testing.assert_close(features, tokens.mean(1))
    torch.testing.assert_close(model(x), model.head(features))
    assert model.resize((64, 64)).config.image_size == (64, 64) and model.grid == (8, 8)
    assert model.reset_head(7)(x).shape == (2, 7) and not model.head.weight.any()
    torch.testing.assert_close(model.reset_head(0)(x), tokens)
    with pytest.raises(UsageError, match="input of shape"):
        model(torch.zeros(1, 4, 40, 24, dtype=torch.float64))


def test_a_root_for_small_pictures():
    model = build(ResNetConfig(layers=(1, 1), width_factor=0.5, root="small", image_size=32, classes=3))
    assert model.grid == (16, 16) and model.tokens(torch.randn(1, 3, 32, 32)).shape == (1, 256, 256)


def test_a_v1_unit_begins_as_its_shortcut():
    model = build(V1)
    unit = model.stages[0][1]
    x = torch.rand(1, 128, 6, 6)
    torch.testing.assert_close(unit(x), x)


def test_a_hybrid_is_its_stem_and_a_vit_on_the_feature_map():
    config = ViTConfig(
        width=16, depth=1, heads=2, mlp_width=8, patch_size=1, image_size=(64, 32), classes=3, stem=ResNetStem(layers=(1, 1), width=32)
    )
    model = random_model(config)
    x = torch.randn(2, 3, 64, 32, dtype=torch.float64)
    feature_map = model.stem(x)
    assert feature_map.shape == (2, 256, 8, 4) and config.grid == (8, 4)
    torch.testing.assert_close(
        model.embed_patches(x), feature_map.flatten(2).transpose(1, 2) @ model.patch.weight.flatten(1).T + model.patch.bias
    )


def test_evaluation_in_float32_on_the_cpu_sums_the_root_in_float64():
    model = random_model(V1).float()
    x = torch.randn(1, 3, 64, 64)
    exact = random_model(V1).root(x.double())

    def error(model):
        return (model.root(x).double() - exact).abs().max() / exact.abs().max()

    assert error(model.eval()) < error(model.train()) < 1e-5


def test_the_stem_of_a_hybrid_is_summed_in_float64_where_a_small_picture_leaves_a_group_few_pixels():
    config = ViTConfig(
        width=16, depth=1, heads=2, mlp_width=8, patch_size=1, image_size=(96, 64), classes=3, stem=ResNetStem(layers=(2, 2, 2), width=32)
    )
    exact = random_model(config)
    model = random_model(config).float().eval()
    x = torch.randn(2, 3, 96, 64)
    torch.testing.assert_close(model.stem(x).double(), exact.stem(x.double()), rtol=1e-5, atol=1e-6)
    model.stem(x).sum().backward()
    assert all(parameter.grad is not None and parameter.grad.dtype == torch.float32 for parameter in model.stem.parameters())
