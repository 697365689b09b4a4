"""Position embeddings: kinds and places, the relative kind against loops, resampling against plain definitions."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from vitrail.model.config import POSITION_RESAMPLING, ViTConfig
from vitrail.model.position import RelativePosition, resample_grid, sincos2d
from vitrail.model.variants import build

GOLDEN = Path(__file__).parents[1] / "golden" / "positions"
TINY = ViTConfig(width=16, depth=3, heads=4, mlp_width=24, patch_size=4, image_size=(8, 12), classes=5)
PLACES = [("none", "stem"), ("relative", "stem")] + [
    (kind, place) for kind in ("learned", "learned2d", "sincos2d") for place in ("stem", "every", "shared")
]


def random_model(config, seed=0):
    model, generator = build(config), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(generator=generator)
    return model


# ---- kinds and places (appendix D.4) ----


@pytest.mark.parametrize(("kind", "place"), PLACES)
@pytest.mark.parametrize("pool", ["token", "gap"])
def test_each_kind_is_added_where_it_says(kind, place, pool):
    config = TINY.replace(position=kind, position_at=place, pool=pool, class_token=None)
    model, patches = random_model(config), torch.randn(2, 6, 16)
    z = model.assemble(patches)
    start = torch.zeros(config.tokens, 16)
    if pool == "token":
        start[0] += model.cls[0, 0]
    if model.position is not None:
        if model.position.prefix() is not None:
            start[: config.prefix] += model.position.prefix()
        start[config.prefix :] += model.position.patches()
    start = start.expand(2, -1, -1).clone()
    start[:, config.prefix :] += patches
    torch.testing.assert_close(z, start)
    # a layer that adds positions turns z into layer(z + positions)
    for index, block in enumerate(model.blocks):
        added = model.position if place == "shared" and index else block.position
        assert (added is not None) == (place != "stem" and index > 0)
        if added is not None:
            rows = torch.zeros(config.tokens, 16)
            rows[config.prefix :] = added.patches()
            if added.prefix() is not None:
                rows[: config.prefix] = added.prefix()
            held, block.position, block.shared_position = (block.position, block.shared_position), None, (None,)
            expected = block(z + rows)
            block.position, block.shared_position = held
            torch.testing.assert_close(block(z), expected)


def test_the_number_of_tables_follows_the_place():
    def tables(**options):
        names = [name for name, _ in build(TINY.replace(**options), init=False).named_parameters()]
        return sum(name.endswith((".table", ".rows", ".columns", ".first")) for name in names)

    assert [tables(position_at=place) for place in ("stem", "every", "shared")] == [1, 3, 1]
    assert [tables(position="learned2d", position_at=place) for place in ("stem", "every", "shared")] == [3, 9, 3]
    assert tables(position="none") == tables(position="sincos2d", position_at="every") == 0
    assert tables(position="relative") == 3


def test_two_dimensional_positions_are_a_column_half_and_a_row_half():
    model = random_model(TINY.replace(position="learned2d"))
    position, table = model.position, model.position.patches()
    for row in range(2):
        for column in range(3):
            expected = torch.cat([position.columns[column], position.rows[row]])
            assert torch.equal(table[3 * row + column], expected)


def test_relative_positions_are_q_times_the_embedding_of_the_offset():
    tokens, d = 5, 4
    module = RelativePosition(tokens, d)
    torch.nn.init.normal_(module.table)
    q = torch.randn(2, 3, tokens, d)
    expected = torch.empty(2, 3, tokens, tokens)
    for i in range(tokens):
        for j in range(tokens):
            expected[:, :, i, j] = q[:, :, i] @ module.table[i - j + tokens - 1]
    torch.testing.assert_close(module(q), expected)
    for start, stop in ((0, 1), (1, 4), (4, 5)):
        torch.testing.assert_close(module(q[:, :, start:stop], start), expected[:, :, start:stop])


def test_sines_and_cosines_are_those_of_big_vision():
    rows, columns, width = 3, 5, 16
    y, x = np.mgrid[:rows, :columns]
    omega = 1.0 / 10_000.0 ** (np.arange(width // 4) / (width // 4 - 1))
    y, x = np.einsum("m,d->md", y.flatten(), omega), np.einsum("m,d->md", x.flatten(), omega)
    expected = np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)
    np.testing.assert_allclose(sincos2d((rows, columns), width).numpy(), expected, atol=1e-7)


# ---- resampling (section 3.2) ----


def linear_weights(old, new, aligned):
    """(new, old) matrix of a one-dimensional linear resize, written out."""
    matrix = np.zeros((new, old))
    for i in range(new):
        at = i * (old - 1) / (new - 1) if aligned and new > 1 else (0.0 if aligned else (i + 0.5) * old / new - 0.5)
        at = min(max(at, 0.0), old - 1.0)
        low = min(int(at), old - 1)
        matrix[i, low] += 1 - (at - low)
        matrix[i, min(low + 1, old - 1)] += at - low
    return matrix


def cubic(t, a):
    t = abs(t)
    if t < 1:
        return (a + 2) * t**3 - (a + 3) * t**2 + 1
    return a * t**3 - 5 * a * t**2 + 8 * a * t - 4 * a if t < 2 else 0.0


def cubic_weights(old, new, position):
    """(new, old) of Keys' cubic with a = -0.75, edge pixels repeated."""
    matrix = np.zeros((new, old))
    for i in range(new):
        at = position(i)
        for tap in range(math.floor(at) - 1, math.floor(at) + 3):
            matrix[i, min(max(tap, 0), old - 1)] += cubic(at - tap, -0.75)
    return matrix


def antialiased_weights(old, new):
    """(new, old) as Pillow does it: a = -0.5, the kernel stretched when shrinking, weights normalised."""
    scale, matrix = old / new, np.zeros((new, old))
    stretch = max(1.0, scale)
    for i in range(new):
        centre = (i + 0.5) * scale
        for j in range(old):
            matrix[i, j] = cubic((j + 0.5 - centre) / stretch, -0.5)
        matrix[i] /= matrix[i].sum()
    return matrix


WEIGHTS = {
    "bilinear": lambda old, new: linear_weights(old, new, True),
    "bilinear_unaligned": lambda old, new: linear_weights(old, new, False),
    "bicubic": lambda old, new: cubic_weights(old, new, lambda i: (i + 0.5) * old / new - 0.5),
    "bicubic_antialias": antialiased_weights,
    "bicubic_aligned": lambda old, new: cubic_weights(old, new, lambda i: i * (old - 1) / (new - 1)),
    "bicubic_offset": lambda old, new: cubic_weights(old, new, lambda i: (i + 0.5) * old / (new + 0.1) - 0.5),
}


@pytest.mark.parametrize("mode", POSITION_RESAMPLING)
@pytest.mark.parametrize(
    ("old", "new"), [((14, 14), (24, 24)), ((7, 7), (12, 12)), ((24, 24), (14, 14)), ((3, 5), (4, 9)), ((4, 6), (4, 3))]
)
def test_resampling_equals_its_plain_definition(mode, old, new):
    table = torch.randn(old[0] * old[1], 8, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    vertical, horizontal = (WEIGHTS[mode](before, after) for before, after in zip(old, new))
    expected = np.einsum("ir,jc,rcd->ijd", vertical, horizontal, table.numpy().reshape(*old, 8)).reshape(-1, 8)
    np.testing.assert_allclose(resample_grid(table, old, new, mode).numpy(), expected, atol=1e-10)


@pytest.mark.parametrize("mode", ["bilinear_unaligned", "bicubic", "bicubic_antialias", "bicubic_offset"])
@pytest.mark.parametrize(("old", "new"), [((5, 4), (2, 1)), ((3, 3), (7, 1)), ((5, 1), (3, 1)), ((1, 5), (1, 3)), ((2, 2), (1, 1))])
def test_resampling_to_one_row_or_column_equals_its_plain_definition(mode, old, new):
    test_resampling_equals_its_plain_definition(mode, old, new)


@pytest.mark.parametrize("case", sorted(path.stem for path in GOLDEN.glob("*.npz")))
def test_resampling_equals_the_authors_code(case):
    file = np.load(GOLDEN / f"{case}.npz")
    old, new = json.loads((GOLDEN / "about.json").read_text())["cases"][case]
    config = ViTConfig(
        width=file["before"].shape[1], depth=1, heads=1, mlp_width=1, patch_size=1, image_size=old,
        pool="token" if len(file["before"]) > old[0] * old[1] else "gap",
    )  # fmt: skip
    model = build(config)
    model.position.table.data.copy_(torch.from_numpy(file["before"]))
    model.resize(new)
    np.testing.assert_allclose(model.position.table.detach().numpy(), file["after"], atol=1e-6 * np.abs(file["after"]).max())


@pytest.mark.parametrize(
    "options", [{}, {"position": "learned2d"}, {"position": "sincos2d"}, {"position": "relative"}, {"position_at": "every"}]
)
def test_a_resized_model_runs_and_the_same_size_changes_nothing(options):
    model = random_model(TINY.replace(**options))
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.resize((8, 12))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    model.resize((16, 20))
    assert model(torch.randn(1, 3, 16, 20)).shape == (1, 5)
    fresh = build(TINY.replace(image_size=(16, 20), **options), init=False)
    assert {n: p.shape for n, p in model.named_parameters()} == {n: p.shape for n, p in fresh.named_parameters()}


def test_relative_offsets_stay_around_zero():
    module = RelativePosition(3, 1)
    module.table.data.copy_(torch.arange(-2.0, 3.0)[:, None])
    module.resize(5)
    np.testing.assert_allclose(module.table.detach().numpy()[:, 0], np.linspace(-2, 2, 9), atol=1e-6)


def test_sincos_positions_are_no_state_and_follow_the_grid():
    model = build(TINY.replace(position="sincos2d", pool="gap", class_token=None))
    assert not [name for name in model.state_dict() if "position" in name]
    model.double().resize((16, 12))
    assert model.position.table.dtype == torch.float64
    torch.testing.assert_close(model.position.table.float(), sincos2d((4, 3), 16))
