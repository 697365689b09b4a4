"""The Vision Transformer against a plain definition of eqs. 1-4, its heads, and its changes after building."""

import copy
import math

import pytest
import torch

from vitrail.errors import UsageError
from vitrail.model.config import ViTConfig
from vitrail.model.names import config_for
from vitrail.model.variants import build, create_model

TINY = ViTConfig(width=16, depth=2, heads=4, mlp_width=24, patch_size=4, image_size=(8, 12), classes=5)


def shaken(model, std=0.3, seed=1):
    """Every parameter away from 0 and 1, so that nothing can hide."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * std)
    return model


def picture(config, batch=2, dtype=torch.float32, seed=0):
    shape = (batch, config.channels, *config.image_size)
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def plain_vit(model, x):
    """Equations 1 to 8, one image, one head at a time, nothing clever."""
    c, (rows, columns) = model.config, model.config.patch_size

    def ln(z, norm):
        mean = z.mean(-1, keepdim=True)
        return (z - mean) / ((z - mean) ** 2).mean(-1, keepdim=True).add(c.eps).sqrt() * norm.weight + norm.bias

    def msa(z, attention):
        width, d = c.width, c.width // c.heads
        w, b = attention.qkv.weight, attention.qkv.bias
        heads = []
        for h in range(c.heads):
            part = [slice(j * width + h * d, j * width + (h + 1) * d) for j in range(3)]
            q, k, v = (z @ w[s].T + b[s] for s in part)
            heads.append(torch.softmax(q @ k.T / math.sqrt(d), dim=-1) @ v)
        return torch.cat(heads, dim=-1) @ attention.out.weight.T + attention.out.bias

    def mlp(z, m):
        u = z @ m.fc1.weight.T + m.fc1.bias
        gelu = 0.5 * u * (1 + torch.tanh(math.sqrt(2 / math.pi) * (u + 0.044715 * u**3)))
        return gelu @ m.fc2.weight.T + m.fc2.bias

    logits = []
    for image in x:
        patches = [
            image[:, i * rows : (i + 1) * rows, j * columns : (j + 1) * columns].reshape(-1)
            for i in range(c.grid[0])
            for j in range(c.grid[1])
        ]
        embedded = torch.stack(patches) @ model.patch.weight.flatten(1).T + model.patch.bias
        z = torch.cat([model.cls[0], embedded]) + model.position.table
        for block in model.blocks:
            z = msa(ln(z, block.norm1), block.attention) + z
            z = mlp(ln(z, block.norm2), block.mlp) + z
        y = ln(z[0], model.norm)
        logits.append(y @ model.head.weight.T + model.head.bias)
    return torch.stack(logits)


def test_float64_equals_the_plain_definition():
    model = shaken(build(TINY)).double()
    x = picture(TINY, dtype=torch.float64)
    torch.testing.assert_close(model(x), plain_vit(model, x), rtol=0, atol=1e-12)
    big = shaken(create_model("S/16", depth=3, classes=7), std=0.02).double()
    x = picture(big.config, batch=1, dtype=torch.float64)
    expected = plain_vit(big, x)
    assert (big(x) - expected).abs().max() <= 1e-12 * expected.abs().max()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"position": "relative", "qk_norm": True},
        {"mlp": "swiglu", "layer_scale": 0.1, "registers": 2, "pool": "map"},
        {"position": "learned2d", "position_at": "every", "pool": "token+gap", "fc_norm": True, "representation": 6},
    ],
)
def test_gradients_are_those_of_finite_differences(options):
    config = ViTConfig(width=8, depth=2, heads=2, mlp_width=6, patch_size=2, image_size=(4, 4), channels=1, classes=3, **options)
    model = shaken(build(config)).double()
    x = picture(config, batch=1, dtype=torch.float64).requires_grad_()
    names, values = zip(*model.named_parameters())

    def forward(x, *values):
        return torch.func.functional_call(model, dict(zip(names, values)), (x,))

    assert torch.autograd.gradcheck(forward, (x, *(value.detach().requires_grad_() for value in values)), fast_mode=True)


@pytest.mark.parametrize("pool", ["token", "gap", "map", "token+gap", "unpooled"])
@pytest.mark.parametrize("registers", [0, 3])
def test_every_head_reads_what_it_says(pool, registers):
    config = TINY.replace(pool=pool, registers=registers, class_token=None)
    model = shaken(build(config))
    x = picture(config)
    tokens, features, logits = model.tokens(x), model.features(x), model(x)
    assert tokens.shape == (2, config.tokens, 16)
    patches = tokens[:, config.prefix :]
    assert patches.shape[1] == 6
    expected = {
        "token": lambda: tokens[:, 0],
        "gap": lambda: patches.mean(1),
        "map": lambda: model.map(patches),
        "token+gap": lambda: torch.cat([tokens[:, 0], patches.mean(1)], 1),
        "unpooled": lambda: tokens,
    }[pool]()
    torch.testing.assert_close(features, expected)
    torch.testing.assert_close(logits, model.head(features))
    assert logits.shape == ((2, config.tokens, 5) if pool == "unpooled" else (2, 5))


def test_map_pooling_is_one_probe_that_attends():
    model = shaken(build(TINY.replace(pool="map", class_token=None)))
    y = torch.randn(2, 6, 16)
    pool = model.map
    heads = []
    for h in range(4):
        s = slice(4 * h, 4 * h + 4)
        q = pool.q(pool.probe)[0, :, s]
        k, v = pool.kv(y)[..., s], pool.kv(y)[..., 16:][..., s]
        heads.append(torch.softmax(q @ k.transpose(1, 2) / 2, -1) @ v)
    z = pool.out(torch.cat(heads, -1))
    torch.testing.assert_close(pool(y), (z + pool.mlp(pool.norm(z)))[:, 0])


def test_without_a_head_the_normalised_tokens_come_out():
    model = shaken(build(TINY.replace(classes=0)))
    x = picture(TINY)
    torch.testing.assert_close(model(x), model.tokens(x))
    assert model.features(x).shape == (2, 16)


def test_two_heads_give_their_mean():
    model = shaken(build(TINY.replace(distilled=True)))
    x = picture(TINY)
    first, second = model.two_heads(model.tokens(x))
    torch.testing.assert_close(model(x), (first + second) / 2)
    torch.testing.assert_close(first, model.head(model.tokens(x)[:, 0]))
    torch.testing.assert_close(second, model.head_dist(model.tokens(x)[:, 1]))


def test_the_pre_training_head_is_a_tanh_layer():
    model = shaken(build(TINY.replace(representation=7, head_bias_init=-10.0)))
    x = picture(TINY)
    torch.testing.assert_close(model.features(x), torch.tanh(model.pre_logits(model.tokens(x)[:, 0])))
    assert torch.equal(build(TINY.replace(representation=7, head_bias_init=-10.0)).head.bias, torch.full((5,), -10.0))


def test_the_gated_mlp():
    model = shaken(build(TINY.replace(mlp="swiglu")))
    mlp, x = model.blocks[0].mlp, torch.randn(2, 3, 16)
    w, b = mlp.fc1.weight, mlp.fc1.bias
    gate, value = x @ w[:24].T + b[:24], x @ w[24:].T + b[24:]
    torch.testing.assert_close(mlp(x), mlp.fc2(gate * torch.sigmoid(gate) * value))


def test_an_option_that_is_off_has_no_module_and_no_parameter():
    plain = {name for name, _ in build(TINY, init=False).named_parameters()}
    options = {"registers": 2, "layer_scale": 1e-4, "qk_norm": True, "representation": 8, "distilled": False}
    for option, value in options.items():
        more = {name for name, _ in build(TINY.replace(**{option: value}), init=False).named_parameters()}
        assert plain <= more
        assert (more == plain) == (not value)
    for module in build(TINY).modules():
        assert not hasattr(module, "rate") or module.rate == 0.0


def test_layer_scale_and_registers_change_what_they_should():
    x = picture(TINY)
    off = shaken(build(TINY.replace(layer_scale=0.0)), std=0.0)
    z = off.embed(x)
    torch.testing.assert_close(off.encode(z), off.norm(z))  # branches scaled by 0 add nothing
    with_registers = build(TINY.replace(registers=2))
    assert with_registers.tokens(x).shape[1] == TINY.tokens + 2
    assert with_registers.position.table.shape[0] == TINY.tokens  # registers have no position


def test_attention_maps_come_from_the_same_products():
    model = shaken(build(TINY.replace(position="relative")))
    attention, z = model.blocks[0].attention, torch.randn(2, TINY.tokens, 16)
    q, k = attention.qk(z)
    weights = torch.softmax(attention.logits(q, k), -1)
    v = attention.project(z)[2]
    torch.testing.assert_close(attention.out((weights @ v).transpose(1, 2).flatten(2)), attention(z))
    rows = torch.cat([attention.logits(q, k, start, start + 2) for start in (0, 2, 4)] + [attention.logits(q, k, 6, 7)], 2)
    torch.testing.assert_close(rows, attention.logits(q, k))


def test_only_visible_patches_are_kept_with_their_own_positions():
    model = shaken(build(TINY))
    patches = model.embed_patches(picture(TINY))
    keep = torch.tensor([[0, 3], [5, 1]])
    z = model.assemble(patches, keep)
    assert z.shape == (2, 3, 16)
    torch.testing.assert_close(z[1, 1], patches[1, 5] + model.position.table[6])


def test_the_fine_tuning_head_is_one_zero_layer():
    model = shaken(build(TINY.replace(representation=8)))
    tokens = model.tokens(picture(TINY))
    model.reset_head(3)
    assert model.config.classes == 3 and model.config.representation is None and model.pre_logits is None
    assert not model.head.weight.any() and not model.head.bias.any() and model.head.weight.shape == (3, 16)
    torch.testing.assert_close(model.tokens(picture(TINY)), tokens)
    kept = shaken(build(TINY.replace(representation=8))).reset_head(3, keep_representation=True)
    assert kept.pre_logits is not None and kept.head.weight.shape == (3, 8)
    assert build(TINY).reset_head(0)(picture(TINY)).shape == (2, 7, 16)
    assert build(TINY.replace(distilled=True)).reset_head(3).head_dist.weight.shape == (3, 16)


def test_another_image_size_changes_the_positions_alone():
    model = shaken(build(TINY))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.resize((16, 12))
    assert model.grid == (4, 3) and model(picture(model.config)).shape == (2, 5)
    changed = {
        name for name, value in model.state_dict().items() if not torch.equal(value, before[name]) or value.shape != before[name].shape
    }
    assert changed == {"position.table"}
    torch.testing.assert_close(model.position.table[0], before["position.table"][0])  # the class token's row stays
    with pytest.raises(UsageError, match="does not divide"):
        model.resize(17)


def test_a_picture_of_another_size_is_refused_with_the_way_out():
    with pytest.raises(UsageError, match="resize"):
        build(TINY)(torch.zeros(1, 3, 12, 8))


def test_a_copy_shares_nothing_and_shared_positions_stay_shared():
    model = build(TINY.replace(position_at="shared"))
    twin = copy.deepcopy(model)
    assert twin.blocks[1].shared_position[0] is twin.position is not model.position
    assert sum(1 for _ in model.parameters()) == sum(1 for _ in build(TINY).parameters())


def test_a_batch_of_one_equals_its_row_of_a_larger_batch():
    model = create_model("mu/16", image_size=32).eval()
    shaken(model, 0.1)
    x = picture(config_for("mu/16", image_size=32), batch=4)
    torch.testing.assert_close(model(x)[2:3], model(x[2:3]), rtol=1e-5, atol=1e-6)
