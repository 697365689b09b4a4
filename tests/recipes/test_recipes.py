"""The packaged recipes: every one loads, says where it comes from, and holds its paper's numbers."""

import re

import pytest

from vitrail.config import RECIPES, from_dict, list_recipes, load_recipe, to_dict, to_toml
from vitrail.errors import UsageError

NAMES = list_recipes()
# Table 3: models, data, epochs, base rate, decay, weight decay, dropout
TABLE_3 = {
    "jft-B/16-7ep": (7, 8e-4, "linear", 0.1, 0.0),
    "jft-L/32-7ep": (7, 6e-4, "linear", 0.1, 0.0),
    "jft-L/16-14ep": (14, 4e-4, "linear", 0.1, 0.0),
    "jft-H/14-14ep": (14, 3e-4, "linear", 0.1, 0.0),
    "jft-R50x2-7ep": (7, 1e-3, "linear", 0.1, 0.0),
    "jft-R101x1-7ep": (7, 8e-4, "linear", 0.1, 0.0),
    "jft-R152x2-7ep": (7, 6e-4, "linear", 0.1, 0.0),
    "jft-R50+ViT-L/32-7ep": (7, 2e-4, "linear", 0.1, 0.0),
    "jft-R50+ViT-L/16-14ep": (14, 4e-4, "linear", 0.1, 0.0),
    "imagenet21k-B/32-90ep": (90, 1e-3, "linear", 0.03, 0.1),
    "imagenet21k-L/16-30ep": (30, 1e-3, "linear", 0.03, 0.1),
    "imagenet-L/16": (300, 3e-3, "cosine", 0.3, 0.1),
}


@pytest.mark.parametrize("name", NAMES)
def test_every_recipe_loads_names_its_source_and_survives_a_round_trip(name):
    recipe = load_recipe(name)
    assert recipe.paper
    assert from_dict(to_dict(recipe)) == recipe
    assert recipe.expected == () or all(figure.metric and figure.value and figure.source for figure in recipe.expected)


@pytest.mark.parametrize("path", sorted(RECIPES.rglob("*.toml")), ids=lambda p: p.stem)
def test_every_document_opens_with_what_it_is_and_how_to_run_it(path):
    head = re.match(r"(?:#.*\n)+", path.read_text())
    assert head and "#   command   " in head[0] and "vitrail train " in head[0]


@pytest.mark.parametrize(("row", "said"), TABLE_3.items())
def test_table_3_says_what_the_paper_says(row, said):
    recipe = load_recipe(f"table-3:{row}")
    found = (recipe.train.epochs, recipe.optim.lr, recipe.schedule.decay, recipe.optim.weight_decay)
    assert (*found, recipe.model.options.get("dropout", 0.0)) == said
    assert (recipe.train.batch_size, recipe.schedule.warmup_steps, recipe.optim.betas) == (4096, 10_000, (0.9, 0.999))
    assert recipe.optim.clip_norm == (1.0 if row.startswith("imagenet-") else None)


def test_every_row_that_the_authors_report_has_its_figure():
    """Pre-training on JFT is reported by Table 6; two rows on ImageNet-21k and the ablations by nobody."""
    unreported = {"imagenet21k-L/16-30ep", "imagenet21k-L/32-30ep"}
    rows = {name.partition(":")[2]: load_recipe(name).expected for name in NAMES if name.startswith("table-3:")}
    assert {row for row, expected in rows.items() if not expected} == unreported
    assert [rows[row][0].value for row in ("jft-B/16-7ep", "jft-H/14-14ep", "jft-R152x2-7ep")] == [84.15, 88.08, 84.97]
    assert all(load_recipe(f"{name}:{size}").expected for name in ("mae", "deit3") for size in "BLH")


def test_the_length_of_a_run_is_what_the_authors_ran():
    assert load_recipe("table-3:jft-B/16-7ep").total_steps() == 517_822
    assert load_recipe("table-3:imagenet-B/16").total_steps() == 93_835
    assert load_recipe("plain-s16:90ep").total_steps() == 112_603


@pytest.mark.parametrize(
    ("row", "steps", "grid"),
    [
        ("imagenet", 20_000, (0.003, 0.01, 0.03)),
        ("imagenet-resnet", 20_000, (0.003, 0.01, 0.03, 0.06)),
        ("cifar10", 10_000, (0.001, 0.003, 0.01, 0.03)),
        ("cifar100", 10_000, (0.001, 0.003, 0.01, 0.03)),
        ("pets", 500, (0.001, 0.003, 0.01, 0.03)),
        ("flowers", 500, (0.001, 0.003, 0.01, 0.03)),
    ],
)
def test_table_4_says_what_the_paper_says(row, steps, grid):
    recipe = load_recipe(f"table-4:{row}")
    assert (recipe.train.steps, recipe.train.batch_size, recipe.select.grid["optim.lr"]) == (steps, 512, grid)
    assert (recipe.optim.clip_norm, recipe.optim.weight_decay, recipe.schedule.decay) == (1.0, 0.0, "cosine")
    assert recipe.model.image_size == (384, 384)


def test_the_high_resolution_rows_average_their_weights():
    for row, side in (("imagenet-L/16@512", 512), ("imagenet-H/14@518", 518)):
        recipe = load_recipe(f"table-4:{row}")
        assert recipe.model.image_size == (side, side) and recipe.ema.decay == 0.9999


def test_augreg_has_seven_levels_times_two_regularisations_times_two_decays():
    rows = [name for name in NAMES if name.startswith("augreg:")]
    assert len(rows) == 28
    strong = load_recipe("augreg:strong2-do_0.1-sd_0.1-wd_0.03")
    assert (strong.augment.randaugment_magnitude, strong.augment.mixup) == (20.0, 0.8)
    assert strong.model.options == {"head_bias_init": -6.9, "dropout": 0.1, "drop_path": 0.1}


def test_a_wrong_row_names_the_nearest():
    with pytest.raises(UsageError, match="did you mean 'jft-B/16-7ep'"):
        load_recipe("table-3:jft-B/16-7eq")


def test_a_recipe_can_be_written_down_and_read_again(tmp_path):
    recipe = load_recipe("deit:S-distilled", ["optim.lr=0.001"])
    path = tmp_path / "mine.toml"
    path.write_text(to_toml(recipe))
    assert load_recipe(path) == recipe
