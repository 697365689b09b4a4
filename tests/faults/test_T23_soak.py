"""T23: twenty thousand steps: memory, open files and threads stay constant."""

import os
from pathlib import Path

import pytest
import torch

from vitrail.config import from_dict
from vitrail.train.loop import train


def recipe(steps):
    return from_dict(
        {
            "model": {"name": "mu/16", "image_size": [16, 16], "options": {"width": 8, "heads": 1, "mlp_width": 8}},
            "data": {"train": "builtin:shapes?n=64&size=16&classes=2&test=8", "eval_split": "test", "workers": 0, "resident": False},
            "ema": {"decay": 0.9},
            "eval": {"every_steps": 500},
            "train": {"batch_size": 4, "steps": steps, "log_every_steps": 20, "save_every_steps": 500, "sure": True},
        }
    )


class Watch:
    """Resident memory, files and threads of this process, noted at each checkpoint."""

    def __init__(self, monkeypatch):
        from vitrail.train.saver import Saver

        self.notes, save = [], Saver.save

        def noted(saver, state):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            threads = len(os.listdir("/proc/self/task"))
            self.notes.append((state.step, pages * os.sysconf("SC_PAGE_SIZE"), len(os.listdir("/proc/self/fd")), threads))
            return save(saver, state)

        monkeypatch.setattr(Saver, "save", noted)


@pytest.mark.scorecard
def test_nothing_grows(tmp_path, monkeypatch):
    torch.set_num_threads(1)
    watch = Watch(monkeypatch)
    train(recipe(20_000), tmp_path / "run", progress=False, device="cpu")
    settled = [note for note in watch.notes if note[0] >= 5000]
    steps, memory, files, threads = zip(*settled)
    slope = (memory[-1] - memory[0]) / (steps[-1] - steps[0]) * 1000
    assert slope < 2**20, f"{slope / 2**20:.2f} MiB in 1000 steps"
    assert len(set(files)) == 1 and len(set(threads)) == 1
