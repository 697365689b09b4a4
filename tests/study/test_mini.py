"""The small studies: the paper's factors, matched compute, cells that are not run twice, verdicts by intervals."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from vitrail.cli import vitrail
from vitrail.data.decode import pixels
from vitrail.data.source import open_source
from vitrail.errors import DataError, UsageError
from vitrail.model.variants import create_model
from vitrail.study.mini import run as running
from vitrail.study.mini.cells import cell_file, changed
from vitrail.study.mini.design import at_least, compare
from vitrail.study.mini.designs import DESIGNS, PARTS, design
from vitrail.study.mini.halves import halves, held_back
from vitrail.study.mini.run import study
from vitrail.study.mini.scale import SCALES, bit, config, hybrid, macs_of, scale_of, vit
from vitrail.study.reproduce import reproduce

SHAPES = "builtin:shapes?n=96&test=48&size=20&classes=8"


# ---------------------------------------------------------------- designs


@pytest.mark.parametrize("size", SCALES)
@pytest.mark.parametrize("name", DESIGNS)
def test_every_design_has_models_that_can_be_built_and_names_of_its_own(name, size):
    found = design(name, scale_of(size))
    names = [cell.name for cell in found.cells]
    assert len({cell_file(cell, 0, Path("out")) for cell in found.cells}) == len(names) >= 3
    assert all(macs_of(cell.model) > 0 for cell in found.cells)
    verdicts = found.judge({name: [50.0 + k, 51.0 + k, 52.0 + k] for k, name in enumerate(names)})
    assert verdicts and all(verdict.found for verdict in verdicts)


@pytest.mark.parametrize("size", SCALES)
def test_every_model_of_every_design_sees_an_image(size):
    scale = scale_of(size)
    models = {repr(cell.model): cell.model for name in DESIGNS for cell in design(name, scale).cells}
    image = torch.zeros(1, 3, scale.side, scale.side)
    with torch.no_grad():
        for model in models.values():
            built = create_model(model.name, classes=5, image_size=model.image_size, **model.options)
            assert built(image).shape == (1, 5)


@pytest.mark.parametrize("size", SCALES)
def test_vit_hybrid_and_bit_are_matched_in_compute(size):
    scale = scale_of(size)
    macs = macs_of(vit(scale))
    assert macs_of(hybrid(scale, macs)) == pytest.approx(macs, rel=0.1)
    assert macs_of(bit(scale, macs)) == pytest.approx(macs, rel=0.1)
    assert config(hybrid(scale, macs)).tokens == config(vit(scale)).tokens


def test_positions_are_the_cells_of_table_8():
    cells = design("positions", scale_of("cpu")).cells
    assert [cell.name for cell in cells] == [
        "none", "1-D, stem", "1-D, every layer", "1-D, shared", "2-D, stem", "2-D, every layer", "2-D, shared", "relative, stem",
    ]  # fmt: skip
    assert [config(cell.model).position for cell in cells][::3] == ["none", "learned", "learned2d"]
    others = [{**cell.model.options, "position": 0, "position_at": 0} for cell in cells]
    assert all(options == others[0] for options in others)


def test_data_size_takes_the_paper_s_parts_of_the_data():
    cells = design("data-size", scale_of("gpu")).cells
    assert PARTS == (3, 10, 30, 100) and {cell.percent for cell in cells} == set(PARTS)
    assert {cell.series for cell in cells} == {"ViT", "hybrid", "BiT"}


def test_pooling_has_the_paper_s_two_rates():
    token, gap, lower = design("pooling", scale_of("cpu")).cells
    recipe = scale_of("cpu").recipe
    assert config(token.model).representation and config(gap.model).pool == config(lower.model).pool == "gap"
    assert changed(recipe, lower.changes).optim.lr / recipe.optim.lr == pytest.approx(3e-4 / 8e-4)


def test_the_sgd_of_the_resnets_is_that_of_the_recipe_table_7():
    from vitrail.config import load_recipe

    cell = next(cell for cell in design("resnet-optimizer", scale_of("cpu")).cells if "SGD" in cell.name)
    ours, theirs = changed(scale_of("cpu").recipe, cell.changes), load_recipe("table-7:R50x1-sgd")
    for key in ("name", "lr", "lr_batch", "momentum", "weight_decay", "coupled_decay", "decay"):
        assert getattr(ours.optim, key) == getattr(theirs.optim, key), key
    assert (ours.schedule.stair_fractions, ours.schedule.stair_factors) == (theirs.schedule.stair_fractions, theirs.schedule.stair_factors)


def test_the_shapes_cost_what_figure_8_scales():
    cells = {cell.name: cell for cell in design("shape", scale_of("cpu")).cells}
    assert cells["base"].x == 1.0
    assert cells["depth x4"].x == pytest.approx(4, rel=0.1)
    assert all(cell.x > 1 for name, cell in cells.items() if name != "base")


def test_an_unknown_study_gets_its_nearest():
    with pytest.raises(UsageError, match="did you mean 'positions'"):
        design("position", scale_of("cpu"))


# ---------------------------------------------------------------- verdicts


def test_a_claim_holds_fails_or_stays_open_by_its_interval():
    assert compare("", "a", [70.0, 71.0, 70.5], "b", [60.0, 61.0, 60.5]).word == "holds"
    assert compare("", "a", [60.0, 61.0, 60.5], "b", [70.0, 71.0, 70.5]).word == "does not hold"
    assert compare("", "a", [60.0, 71.0, 65.0], "b", [61.0, 70.0, 66.0]).word == "not decided"
    one = compare("", "a", [70.0], "b", [60.0])
    assert one.word == "not decided" and "one seed" in one.found


def test_as_good_as_allows_a_margin():
    assert at_least("", "a", [69.9, 70.0, 70.1], "b", [70.2, 70.3, 70.4], margin=1.0).word == "holds"
    assert at_least("", "a", [60.0, 60.1, 60.2], "b", [70.2, 70.3, 70.4], margin=1.0).word == "does not hold"
    assert at_least("", "a", [65.0, 70.0, 75.0], "b", [70.2, 70.3, 70.4], margin=1.0).word == "not decided"


# ---------------------------------------------------------------- upstream and downstream


def test_held_back_classes_are_spread_and_enough():
    assert held_back(10) == [1, 3, 6, 8]
    assert len(held_back(200)) == 40 and np.diff(held_back(200)).tolist() == [5] * 39
    with pytest.raises(DataError, match="too few to hold some back"):
        held_back(5)


def labelled_pixels(source):
    """(class name, pixels) of every image."""
    records = map(source.read, range(len(source)))
    return sorted((source.classes[r.label], pixels(r.data, where=r.id).tobytes()) for r in records)


def test_the_halves_share_no_class_and_lose_no_image(tmp_path):
    up, down = halves(SHAPES, None, tmp_path)
    for train, split in ((True, "train"), (False, "test")):
        parts = [half.opened(train) for half in (up, down)]
        assert not set(parts[0].classes) & set(parts[1].classes)
        assert sorted([*labelled_pixels(parts[0]), *labelled_pixels(parts[1])]) == labelled_pixels(open_source(SHAPES, split))


def test_halves_that_are_there_are_used_as_they_are(tmp_path):
    halves(SHAPES, None, tmp_path)
    before = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tar")}
    halves(SHAPES, None, tmp_path)
    assert before and before == {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*.tar")}


def test_with_other_images_to_transfer_to_nothing_is_held_back(tmp_path):
    up, down = halves("builtin:fashion", SHAPES, tmp_path)
    assert len(up.opened(train=True).classes) == 10 and down.what == SHAPES
    assert not list(tmp_path.iterdir())


# ---------------------------------------------------------------- running


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("pooling")
    return folder, study("pooling", data=SHAPES, steps=2, seeds=2, size="cpu", out=folder, device="cpu", progress=False)


def test_a_study_gives_a_table_a_figure_and_verdicts(small):
    folder, found = small
    assert [len(line.results) for line in found.lines] == [2, 2, 2]
    assert all(0 <= result.accuracy <= 100 and result.exaflops > 0 and result.images == 128 for result in found.results)
    assert all(line.accuracy.low <= line.accuracy.value <= line.accuracy.high for line in found.lines)
    assert {verdict.word for verdict in found.verdicts} <= {"holds", "does not hold", "not decided"}
    told = json.loads((folder / "result.json").read_text())
    assert told["study"] == "pooling" and len(told["cells"]) == 3
    page = (folder / "report.md").read_text()
    assert "4 of the 8 classes" in page and all(f"| {line.cell.name} |" in page for line in found.lines)
    assert (folder / "figure.png").stat().st_size > 5000
    assert "GAP, 3/8 of the rate" in str(found)


def test_each_seed_is_another_run(small):
    _, found = small
    assert len({result.upstream for result in found.results} | {result.accuracy for result in found.results}) > 3


def test_a_finished_cell_is_not_run_again(small, monkeypatch):
    folder, found = small

    def refuse(*_args, **_options):
        raise AssertionError("trained again")

    monkeypatch.setattr("vitrail.study.mini.cells.train", refuse)
    again = reproduce("figure-9", scale="mini", data=SHAPES, seeds=2, size="cpu", out=folder, device="cpu", progress=False)
    assert again.to_dict() == found.to_dict()
    cell = folder / "cells" / "GAP-s1.json"
    kept = cell.rename(folder / "kept.json")
    with pytest.raises(AssertionError, match="trained again"):
        study("pooling", data=SHAPES, seeds=2, size="cpu", out=folder, device="cpu", progress=False)
    kept.rename(cell)


def test_another_study_in_the_same_folder_is_refused(small):
    folder, _ = small
    with pytest.raises(UsageError, match=r"holds another study: steps 2, now 3"):
        study("pooling", data=SHAPES, steps=3, size="cpu", out=folder, device="cpu", progress=False)


def test_checkpoints_go_when_a_cell_is_done(small):
    folder, _ = small
    assert list(folder.glob("runs/*/pretrain/best.safetensors")) and not list(folder.glob("runs/*/*/checkpoints"))


def test_masked_pre_training_is_fine_tuned_beside_scratch_and_supervised(tmp_path):
    found = study("masked", data=SHAPES, steps=2, seeds=1, size="cpu", out=tmp_path, device="cpu", progress=False)
    seen = {result.cell: result.images for result in found.results}
    assert seen == {"from scratch": 64, "masked patches": 192, "supervised": 192}  # 1 step, or 2 and 1, of 64 images
    recipe = json.loads((tmp_path / "runs" / "masked-patches-s0" / "finetune" / "run.json").read_text())["recipe"]
    assert recipe["model"]["weights"].endswith("best.safetensors") and recipe["optim"]["lr"] == pytest.approx(0.3 * 2e-3)
    assert {verdict.word for verdict in found.verdicts} == {"not decided"}  # one seed decides nothing


def test_minutes_settle_the_steps_from_trial_runs(monkeypatch, tmp_path):
    monkeypatch.setattr(running, "_seconds", lambda cell, setting, steps: 2.0 + 0.01 * steps)
    setting = running.Setting(design("pooling", scale_of("cpu")), scale_of("cpu"), None, None, 1, tmp_path, None)
    with running.Progress(quiet=True) as line:
        steps = running.steps_for(setting, 1.0, 2, line)
        assert 2 * 3 * (2.0 + 0.01 * steps) == pytest.approx(60, abs=0.1)
        with pytest.raises(UsageError, match=r"do not fit into 0\.1 minutes"):
            running.steps_for(setting, 0.1, 2, line)


def test_minutes_and_steps_together_are_refused(tmp_path):
    with pytest.raises(UsageError, match="say one"):
        study("pooling", minutes=1, steps=1, out=tmp_path)


def test_the_command_runs_a_study(small):
    folder, found = small
    arguments = ["reproduce", "figure-9", "--scale", "mini", "--data", SHAPES, "--seeds", "2", "--size", "cpu", "--out", str(folder)]
    done = CliRunner().invoke(vitrail, [*arguments, "--device", "cpu", "--quiet", "--json"], standalone_mode=False)
    assert done.exception is None, done.exception
    assert json.loads(done.stdout) == json.loads(json.dumps(found.to_dict()))
