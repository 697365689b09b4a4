"""T11: a loss a hundred times the usual is written down with its images; training goes on."""

import json

import torch

from vitrail.config import load_recipe
from vitrail.runtime.progress import Progress
from vitrail.train.journal import Journal
from vitrail.train.plan import plan_run
from vitrail.train.reports import Report
from vitrail.train.rundir import RunDirectory
from vitrail.train.state import TrainState


class Source:
    def id(self, i):
        return f"image-{i}"


def journal(tmp_path):
    from vitrail.model.variants import config_for

    recipe = load_recipe("fashion-quick")
    state = TrainState({})
    return Journal(
        recipe, RunDirectory(tmp_path), plan_run(recipe, 10_000), state, config_for("mu/16"), torch.device("cpu"), Progress(quiet=True)
    )


def report(step, loss):
    return Report(step, loss, 1.0, True, False, torch.arange(4), torch.full((4,), loss))


def test_a_spike_is_recorded_once_with_its_images(tmp_path):
    book = journal(tmp_path)
    for step in range(20):
        book.note([report(step, 2.0 + 0.01 * step)], Source())
    book.note([report(20, 200.0), report(21, 2.1)], Source())
    entry = json.loads((tmp_path / "spikes.json").read_text())["steps"]
    assert [e["step"] for e in entry] == [20] and entry[0]["samples"] == [f"image-{i}" for i in range(4)]
    assert book.state.pending[-1] == 2.1


def test_a_noisy_loss_is_no_spike(tmp_path):
    book = journal(tmp_path)
    for step in range(60):
        book.note([report(step, 3.0 - 0.04 * step + (step % 5) * 0.3)], Source())
    assert not (tmp_path / "spikes.json").exists()
