"""Dropout and stochastic depth: where they are, how often, and that draws follow the sample."""

import pytest
import torch

from vitrail.kernels.draws import key, sample_keys
from vitrail.model.axial import AxialVisionTransformer
from vitrail.model.config import AxialConfig, ViTConfig
from vitrail.model.drop import Dropout, DropPath
from vitrail.model.variants import build

VIT = ViTConfig(width=16, depth=3, heads=4, mlp_width=24, patch_size=4, image_size=(8, 12), classes=5, dropout=0.2, drop_path=0.3)
AXIAL = AxialConfig(width=16, depth=2, heads=4, mlp_width=24, patch_size=4, image_size=(8, 12), classes=5, dropout=0.2, drop_path=0.3)


def awake(config):
    """A model in training mode whose head does something."""
    model = build(config).train()
    torch.nn.init.normal_(model.head.weight, generator=torch.Generator().manual_seed(0))
    return model


def keys(index, step=0):
    return sample_keys(key(3, "dropout", step), torch.as_tensor(index))


@pytest.mark.parametrize("config", [VIT, AXIAL], ids=["vit", "axial"])
def test_draws_are_the_same_for_any_split_of_the_batch(config):
    model, x = awake(config), torch.randn(6, 3, 8, 12)
    whole = model(x, keys(range(6)))
    parts = torch.cat([model(x[part], keys(part)) for part in ([0], [1, 2, 3], [4, 5])])
    torch.testing.assert_close(parts, whole, rtol=1e-5, atol=1e-5)
    order = [5, 3, 1, 0, 2, 4]
    torch.testing.assert_close(model(x[order], keys(order)), whole[order], rtol=1e-5, atol=1e-5)
    assert torch.equal(model(x, keys(range(6))), whole)
    assert not torch.allclose(model(x, keys(range(6), step=1)), whole, atol=1e-3)
    assert not torch.allclose(model(x, keys(range(6, 12))), whole, atol=1e-3)


def test_a_mask_is_the_same_to_the_bit_for_any_split():
    for module in (Dropout(0.4, site=2), DropPath(0.4, site=2)):
        whole = module(torch.ones(5, 3, 4), keys(range(5)))
        assert torch.equal(torch.cat([module(torch.ones(1, 3, 4), keys([i])) for i in range(5)]), whole)


@pytest.mark.parametrize("keyed", [True, False])
def test_recomputation_gives_equal_values_and_gradients(keyed):
    model, x = awake(VIT), torch.randn(2, 3, 8, 12)
    results = []
    for recompute in (False, True):
        model.recompute = recompute
        model.zero_grad()
        torch.manual_seed(0)
        loss = model(x, keys([7, 8]) if keyed else None).square().sum()
        loss.backward()
        results.append((loss, [parameter.grad.clone() for parameter in model.parameters()]))
    assert torch.equal(results[0][0], results[1][0])
    assert all(torch.equal(a, b) for a, b in zip(results[0][1], results[1][1]))


def test_recomputation_of_a_resnet_and_of_axial_attention_is_equal_too():
    from vitrail.model.config import ResNetConfig

    for config in (AXIAL, ResNetConfig(layers=(1, 1), width_factor=0.5, image_size=32, classes=4)):
        model, results = awake(config), []
        x = torch.randn(2, 3, *config.image_size)
        for recompute in (False, True):
            model.recompute = recompute
            model.zero_grad()
            model(x, keys([0, 1])).square().sum().backward()
            results.append([parameter.grad.clone() for parameter in model.parameters()])
        assert all(torch.equal(a, b) for a, b in zip(*results))


def test_every_site_of_a_model_draws_for_itself():
    for config in (VIT, AXIAL):
        sites = [module.site for module in build(config).modules() if isinstance(module, (Dropout, DropPath))]
        assert len(sites) == len(set(sites))


def test_dropout_is_where_the_paper_has_it():
    """After every dense layer but q, k, v, and after adding positions; nowhere in the head (B.1)."""
    names = {name for name, module in build(VIT).named_modules() if isinstance(module, Dropout)}
    places = ("attention.drop", "mlp.drop1", "mlp.drop2")
    assert names == {"drop"} | {f"blocks.{index}.{place}" for index in range(3) for place in places}


def test_stochastic_depth_rises_from_zero_or_is_the_same_everywhere():
    def rates(model):
        return [round(module.rate, 6) for module in model.modules() if isinstance(module, DropPath)]

    assert rates(build(VIT)) == [0.0, 0.0, 0.15, 0.15, 0.3, 0.3]
    assert rates(build(VIT.replace(drop_path_uniform=True))) == [0.3] * 6
    axial = build(AXIAL)
    assert isinstance(axial, AxialVisionTransformer)
    assert rates(axial) == [0.0, 0.0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.3]


@pytest.mark.parametrize("keyed", [True, False])
def test_rates_are_kept_and_the_mean_stays(keyed):
    words = keys(range(64)) if keyed else None
    drop = Dropout(0.1, site=3)
    y = drop(torch.ones(64, 50, 40), words)
    assert abs((y == 0).float().mean().item() - 0.1) < 5 * (0.09 / y.numel()) ** 0.5
    torch.testing.assert_close(y[y != 0], torch.full_like(y[y != 0], 1 / 0.9))
    words = keys(range(20_000)) if keyed else None
    path = DropPath(0.25, site=4)(torch.ones(20_000, 2, 2), words)
    assert torch.equal(path[:, 0, 0], path[:, 1, 1])  # a sample's whole branch, or nothing of it
    assert abs((path[:, 0, 0] == 0).float().mean().item() - 0.25) < 5 * (0.1875 / 20_000) ** 0.5


def test_evaluation_drops_nothing():
    model, x = awake(VIT).eval(), torch.randn(2, 3, 8, 12)
    assert torch.equal(model(x, keys([0, 1])), model(x))
