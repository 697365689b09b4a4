"""T24: the wall clock steps back an hour: no negative duration; everything is ordered by step."""

import json
import time
from pathlib import Path

import vitrail
from vitrail.config import from_dict
from vitrail.train.loop import train


def test_durations_do_not_follow_the_wall_clock(tmp_path, monkeypatch):
    real, calls = time.time, [0]

    def backwards():
        calls[0] += 1
        return real() - 3600 * calls[0]

    monkeypatch.setattr(time, "time", backwards)
    table = {
        "model": {"name": "mu/8", "image_size": [32, 32]},
        "data": {"train": "builtin:shapes?n=64&size=32&classes=2&test=8", "workers": 0, "resident": False},
        "train": {"batch_size": 8, "steps": 4, "log_every_steps": 1, "save_every_steps": 2},
    }
    result = train(from_dict(table), tmp_path / "run", progress=False, device="cpu")
    assert result.seconds > 0 and result.device_hours > 0
    lines = [json.loads(line) for line in (tmp_path / "run/metrics.jsonl").read_text().splitlines()]
    seconds = [line["time"]["seconds"] for line in lines]
    assert seconds == sorted(seconds) and all(line["time"].get("images_per_s", 1) > 0 for line in lines)


def test_no_room_of_training_reads_the_wall_clock():
    source = Path(vitrail.__file__).parent
    for room in ("train", "runtime"):
        for path in (source / room).glob("*.py"):
            text = path.read_text()
            assert "time.time()" not in text and "datetime.now" not in text, path.name
