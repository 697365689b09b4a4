"""Axial attention: every row for itself, then every column."""

import torch

from vitrail.model.config import AxialConfig
from vitrail.model.variants import build, create_model

CONFIG = AxialConfig(width=16, depth=2, heads=4, mlp_width=24, patch_size=4, image_size=(12, 20), classes=5)


def random_model(config):
    model, generator = build(config).double(), torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator).mul_(0.4)
    return model


def test_each_row_and_then_each_column_attends_to_itself():
    model = random_model(CONFIG)
    block, z = model.blocks[0], torch.randn(2, 15, 16, dtype=torch.float64)
    grid = z.view(2, 3, 5, 16)
    for half, lines in ((block.rows, range(3)), (block.columns, range(5))):
        by_row = half is block.rows
        normed = half.norm1(grid)
        attended = [plain_attend(half.attention, normed[:, i] if by_row else normed[:, :, i]) for i in lines]
        grid = grid + torch.stack(attended, dim=1 if by_row else 2)
        grid = grid + half.mlp(half.norm2(grid))
    torch.testing.assert_close(block(z), grid.flatten(1, 2), rtol=1e-10, atol=1e-10)


def plain_attend(attention, line):
    """One line through ordinary attention with the same matrices."""
    q, k, v = attention.project(line)
    weights = torch.softmax(q @ k.transpose(2, 3) * attention.scale, -1)
    return attention.out((weights @ v).transpose(1, 2).flatten(2))


def test_a_token_sees_its_row_and_column_in_one_block_and_everything_in_two():
    model = random_model(CONFIG)
    z = torch.randn(1, 15, 16, dtype=torch.float64, requires_grad=True)
    model.blocks[0].rows(z)[0, 7].sum().backward()
    assert z.grad[0].abs().sum(1).nonzero().flatten().tolist() == [5, 6, 7, 8, 9]
    z.grad = None
    model.blocks[0](z)[0, 7].sum().backward()
    assert (z.grad[0].abs().sum(1) > 0).all()


def test_two_attentions_and_two_mlps_a_layer():
    axial = sum(p.numel() for p in create_model("AxialViT-B/16", init=False).blocks.parameters())
    plain = sum(p.numel() for p in create_model("B/16", init=False).blocks.parameters())
    assert axial == 2 * plain


def test_pooling_heads_and_sizes():
    for pool in ("gap", "map", "unpooled"):
        model = random_model(CONFIG.replace(pool=pool))
        x = torch.randn(2, 3, 12, 20, dtype=torch.float64)
        assert model(x).shape == ((2, 15, 5) if pool == "unpooled" else (2, 5))
        assert model.tokens(x).shape == (2, 15, 16)
        assert model.config.prefix == 0
    model = random_model(CONFIG)
    assert type(model.resize((20, 8)).config) is AxialConfig
    assert model(torch.randn(1, 3, 20, 8, dtype=torch.float64)).shape == (1, 5)
    torch.testing.assert_close(model.features(x := torch.randn(1, 3, 20, 8, dtype=torch.float64)), model.tokens(x).mean(1))


def test_one_row_of_patches_is_a_plain_vit_along_it():
    """On a grid of one row the row half is ordinary attention, and the column half attends to itself alone."""
    config = CONFIG.replace(image_size=(4, 20))
    model = random_model(config)
    rows = model.blocks[0].rows
    z = torch.randn(2, 5, 16, dtype=torch.float64)
    torch.testing.assert_close(rows.attention(z), plain_attend(rows.attention, z))
    columns = model.blocks[0].columns.attention
    v = columns.project(z)[2].transpose(1, 2).flatten(2)
    torch.testing.assert_close(columns(z), columns.out(v))
