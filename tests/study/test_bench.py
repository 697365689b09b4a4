"""`vitrail bench`: what is measured is what is said, failures are rows, and peers do the same work."""

import json
import time

import pytest
import torch

from vitrail.cli import main
from vitrail.errors import ResourceError, UsageError
from vitrail.model.cost import cost_of
from vitrail.model.variants import config_for
from vitrail.runtime.stopwatch import Timing, passes
from vitrail.study import bench as room
from vitrail.study.bench import bench
from vitrail.study.bench_peers import build_peer, comparable, installed
from vitrail.study.bench_report import as_markdown
from vitrail.study.bench_work import Case, prepare

CPU = torch.device("cpu")
QUICK = {"device": "cpu", "budget_s": 0.05, "runs": 3}


@pytest.fixture(autouse=True)
def small_products(monkeypatch):
    monkeypatch.setattr("vitrail.study.machine.SIDES", {"cpu": 64})


@pytest.fixture(scope="module")
def both():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitrail.study.machine.SIDES", {"cpu": 64})
        return bench(["mu/16@32"], work=("infer", "train"), batch_sizes=(2, 3), **QUICK)


def test_every_piece_of_work_gives_one_row_in_order(both):
    assert [(row.case.work, row.case.batch) for row in both.rows] == [("infer", 2), ("infer", 3), ("train", 2), ("train", 3)]
    assert all(row.timing.n >= 1 and not row.error for row in both.rows)


def test_the_figures_of_a_row_follow_from_its_median(both):
    macs = cost_of(config_for("mu/16@32")).macs
    for row in both.rows:
        passes_of_work = 3 if row.case.work == "train" else 1
        assert row.images_per_s == pytest.approx(row.case.batch / row.timing.median)
        assert row.tflops == pytest.approx(row.images_per_s * 2 * macs * passes_of_work / 1e12)
        assert row.share == pytest.approx(row.tflops / both.machine.products["fp32"])


def test_a_training_step_learns(both):
    losses = [row.losses for row in both.rows if row.case.work == "train"]
    assert all(later < first for first, later in losses)


def test_the_table_and_the_page_hold_every_row(both):
    text, page = str(both), as_markdown(both, "vitrail bench mu/16@32")
    for table in (text, page):
        assert table.count("mu/16@32") >= 4 and both.machine.device in table
    assert "$" not in page and "| model | batch |" in page and "vitrail bench mu/16@32" in page
    assert "memory" not in text  # nothing measured it here


def test_inference_runs_the_model_itself():
    config = config_for("mu/16@32")
    weights = room.weights_for(config)
    ready = prepare(Case("infer", "vitrail", "mu/16@32", 5), config, weights, CPU)
    again = prepare(Case("infer", "vitrail", "mu/16@32", 2), config, weights, CPU)
    assert ready.logits.shape == (4, 1000) and torch.equal(ready.logits[:2].argmax(1), again.logits.argmax(1))
    assert float(ready.logits.std()) > 0.01  # a zero head would make every system agree


def test_a_case_that_fails_is_a_row_with_its_reason(monkeypatch):
    def broken(case, *_args, **_options):
        raise torch.OutOfMemoryError("CUDA out of memory") if case.batch == 2 else RuntimeError("no kernel")

    monkeypatch.setattr(room, "prepare", broken)
    found = bench(["mu/16@32"], batch_sizes=(2, 4), **QUICK)
    assert [row.error for row in found.rows] == ["out of memory", "RuntimeError: no kernel"]
    assert "out of memory" in str(found) and "no kernel" in as_markdown(found)


def test_a_sweep_ends_where_it_brings_nothing_more(monkeypatch):
    def row_of(self, case):
        rate = {1: 10.0, 2: 19.0, 4: 30.0, 8: 30.1, 16: 30.2, 32: 90.0}[case.batch]
        return room.Row(case, Timing(3, case.batch / rate, 1.0, 1.0), rate)

    monkeypatch.setattr(room.Stand, "alone", row_of)
    found = bench(["mu/16@32"], sweep=True, device="cpu", budget_s=100.0)
    assert len(found.rows) == 1 and found.rows[0].images_per_s == pytest.approx(30.2)


def test_the_largest_batch_is_found_to_one_part_in_sixteen(monkeypatch):
    stand = object.__new__(room.Stand)
    asked = []

    def fits(case):
        asked.append(case.batch)
        return case.batch <= 1000

    stand.fits = fits
    found = room.Stand.largest(stand, Case("infer", "vitrail", "B/16", 1, "compile"), at_least=64)
    assert 1000 - 1000 // 16 <= found <= 1000
    assert len(asked) < 12


def test_ours_is_set_against_the_best_mode_of_the_best_peer():
    def row(system, mode, rate):
        return room.Row(Case("train", system, "B/16", 8, mode), Timing(3, 8 / rate, 1, 1), rate)

    rows = [row("vitrail", "compile", 150.0), row("timm", "eager", 80.0), row("timm", "compile", 100.0), row("hf", "compile", 90.0)]
    first, *rest = room.with_ratios(rows)
    assert first.ratio == pytest.approx(1.5) and all(peer.ratio is None for peer in rest)


def test_peers_that_are_not_here_are_a_clear_error(monkeypatch):
    monkeypatch.setattr(room, "installed", lambda: ())
    with pytest.raises(ResourceError, match="None of timm"):
        bench(["mu/16@32"], peers=True, **QUICK)
    with pytest.raises(ResourceError, match="timm is not installed"):
        bench(["mu/16@32"], peers=("timm",), **QUICK)
    with pytest.raises(UsageError, match="did you mean 'timm'"):
        bench(["mu/16@32"], peers=("tim",), **QUICK)


def test_only_plain_models_have_peers():
    assert comparable(config_for("B/16")) == ""
    assert comparable(config_for("R50x1")) and comparable(config_for("AxialViT-B/16")) and comparable(config_for("B/16", registers=4))
    assert comparable(config_for("B/16", pool="gap")) and comparable(config_for("B/16@224x448"))


@pytest.mark.parametrize("argument", [{"work": ("trian",)}, {"modes": ("compil",)}, {"precisions": ("bf61",)}])
def test_a_misspelt_choice_gets_the_nearest(argument):
    with pytest.raises(UsageError, match="did you mean"):
        bench(["mu/16@32"], **argument, **QUICK)


def test_the_command_prints_json_and_writes_its_page(tmp_path, capsys):
    page = tmp_path / "results" / "page.md"
    arguments = ["bench", "mu/16@32", "--batch-size", "2", "--seconds", "0.02", "--device", "cpu", "--json", "--out", str(page)]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"][0]["model"] == "mu/16@32" and found["rows"][0]["images_per_s"] > 0
    assert page.read_text().startswith("# Speed on ")


def test_processor_time_counts_this_process_alone_and_one_thread_only():
    def asleep():
        time.sleep(0.05)

    assert max(passes(asleep, CPU, runs=3, clock=time.process_time)) < 0.04 < min(passes(asleep, CPU, runs=3))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with pytest.raises(UsageError, match="one CPU thread"):
            bench(["mu/16@32"], shared=True, **QUICK)
    finally:
        torch.set_num_threads(threads)


def test_timing_keeps_the_median_and_its_spread():
    timing = Timing.of([1.0, 9.0, 1.1, 1.2, 1.0, 1.1, 1.1, 1.0, 1.2, 1.1, 1.1])
    assert timing.median == 1.1 and timing.low == 1.0 and timing.high == 1.2 and timing.n == 11
    assert timing.spread == pytest.approx(0.1 / 1.1)
    assert len(passes(lambda: None, CPU, runs=7, budget_s=1.0)) == 7
    assert len(passes(lambda: None, CPU, runs=7, budget_s=0.0)) == 3


@pytest.mark.parity
@pytest.mark.parametrize("name", ["timm", "hf", "torchvision"])
def test_a_peer_computes_our_logits_and_losses(name):
    if name not in installed():
        pytest.skip(f"{name} is not installed")
    found = bench(["mu/16@32"], work=("infer", "train"), batch_sizes=(2,), peers=(name,), **QUICK)
    assert len(found.rows) == 4 and not [row.error for row in found.rows if row.error]
    assert all(row.agrees < 1e-5 for row in found.rows)
    assert isinstance(
        build_peer(name, config_for("mu/16@32", activation="gelu"), room.weights_for(config_for("mu/16@32"))), torch.nn.Module
    )
