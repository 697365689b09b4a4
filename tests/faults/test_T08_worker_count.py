"""T08 (and T06 from a run's side): other numbers of workers, one of them killed; the run's bits do not change."""

import os
import signal
from pathlib import Path


def processes_below(pid):
    """The fork server and the decode workers, parents before children."""
    found, layer = [], [pid]
    while layer:
        layer = [int(c) for p in layer for c in Path(f"/proc/{p}/task/{p}/children").read_text().split()]
        found += layer
    return found


def test_from_no_worker_to_one_that_is_killed_on_the_way(tiny, tmp_path):
    out = tmp_path / "run"
    assert tiny.run(out, "data.workers=0", "train.log_every_steps=1", env={"VITRAIL_FAULT": "step.done:5=term"}).code == 75
    child = tiny.start(out, "data.workers=1", "train.log_every_steps=1")
    while not tiny.lines(out)[-1]["step"] >= 6:
        assert child.alive(), child.text
    os.kill(processes_below(child.pid)[-1], signal.SIGKILL)
    done = child.wait()
    assert done.code == 0, done.text
    assert tiny.state(out) == tiny.state(tiny.golden("train.log_every_steps=1"))
