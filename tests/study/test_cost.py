"""What a run costs, in the paper's unit and in others."""

import json

import pytest
import torch

from vitrail.errors import UsageError
from vitrail.runtime import energy
from vitrail.study.cost import RunCost, core_days, cost_of_run


def test_core_days_give_the_paper_s_rows_back():
    assert core_days(4262)[1] == pytest.approx(2500)
    assert core_days(1567)[0] == pytest.approx(680)
    low, high = core_days(100)
    assert low < high


def test_a_run_tells_its_cost_from_its_record(tmp_path):
    (tmp_path / "run.json").write_text(json.dumps({"images": 1000, "exaflops": 2.0, "seconds": 60, "device_seconds": 7200}))
    cost = cost_of_run(tmp_path)
    assert (cost.images, cost.device_hours, cost.mfu, cost.joules) == (1000, 2.0, None, None)
    assert "2 exaFLOPs" in str(cost) and "TPUv3-core-days" in str(cost)
    assert cost.to_dict()["tpuv3_core_days"] == list(cost.core_days)


def test_mfu_is_the_part_of_the_device_s_peak(monkeypatch):
    monkeypatch.setattr("vitrail.study.cost.peak_flops", lambda device: 100e12)
    cost = RunCost.of(10, 1.0, 50.0, 20_000.0, "cpu", joules=7.2e6)
    assert cost.mfu == pytest.approx(1e18 / (20_000 * 100e12))
    assert "MFU 50 %" in str(cost) and "2 kWh" in str(cost)


def test_a_folder_without_a_run_is_said(tmp_path):
    with pytest.raises(UsageError, match="holds no run"):
        cost_of_run(tmp_path)


def test_energy_is_none_where_there_is_no_counter(monkeypatch):
    monkeypatch.setattr(energy, "_nvml", lambda: None)
    assert energy.joules(torch.device("cuda", 0)) is None


class Counter:
    """NVML as it answers: handles by index, millijoules."""

    def __init__(self):
        self.asked = []

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        self.asked.append(index)
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, used):
        used._obj.value = 2500
        return 0


def test_energy_is_read_in_joules_of_the_gpu_that_is_visible(monkeypatch):
    counter = Counter()
    monkeypatch.setattr(energy, "_nvml", lambda: counter)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3,5")
    assert energy.joules(torch.device("cuda", 1)) == 2.5 and counter.asked == [5]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert energy.joules(torch.device("cuda", 0)) == 2.5 and counter.asked == [5, 0]
    assert energy.joules(torch.device("cpu")) is None


def test_ranks_of_one_machine_are_summed_and_of_several_not_guessed(monkeypatch):
    monkeypatch.setattr(energy, "_nvml", Counter)
    monkeypatch.setenv("WORLD_SIZE", "4")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")
    assert energy.joules(torch.device("cuda", 2)) == 10.0
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    assert energy.joules(torch.device("cuda", 1)) is None


def test_a_training_run_counts_the_joules_of_every_process_it_had(monkeypatch, tmp_path):
    from vitrail.config import load_recipe
    from vitrail.train import journal
    from vitrail.train.loop import train

    used = iter(range(0, 10_000, 7))
    monkeypatch.setattr(journal, "joules", lambda device: float(next(used)))
    recipe = load_recipe("mini:cpu", ["train.steps=2", "train.batch_size=16", "data.eval_split=test[:20]", "data.workers=0"])
    first = train(recipe, tmp_path, progress=False)
    again = train(recipe, tmp_path, progress=False)
    assert 0 < first.joules <= again.joules
    assert cost_of_run(tmp_path).joules == pytest.approx(again.joules, abs=7.1)
