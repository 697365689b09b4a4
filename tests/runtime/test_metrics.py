"""metrics.jsonl is appended line by line and cut back to the checkpoint a run resumes from."""

import pytest

from vitrail.runtime.faults import arm
from vitrail.runtime.metrics import MetricsLog, read_metrics


def test_lines_are_read_back(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.append({"step": 1, "loss": 0.1 + 0.2})
    log.append({"step": 2, "loss": float("nan")})
    assert list(read_metrics(log.path)) == [{"step": 1, "loss": 0.1 + 0.2}, {"step": 2, "loss": "nan"}]


def test_resume_drops_lines_of_lost_work_and_torn_ones(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    for step in (10, 20, 30):
        log.append({"step": step})
    with open(log.path, "a") as file:
        file.write('{"step": 40, "lo')
    log.cut_after(20)
    assert [line["step"] for line in read_metrics(log.path)] == [10, 20]
    assert log.path.read_text() == '{"step": 10}\n{"step": 20}\n'


def test_a_log_that_cannot_be_written_warns_once_and_counts(tmp_path):
    log = MetricsLog(tmp_path / "gone" / "metrics.jsonl")
    with pytest.warns(UserWarning, match="training goes on") as warned:
        log.append({"step": 1})
        log.append({"step": 2})
    assert len(warned) == 1 and log.failures == 2


def test_an_injected_io_error_is_absorbed(tmp_path):
    log = MetricsLog(tmp_path / "metrics.jsonl")
    arm("log.before:1=raise:EIO")
    try:
        with pytest.warns(UserWarning):
            log.append({"step": 1})
        log.append({"step": 2})
    finally:
        arm(None)
    assert [line["step"] for line in read_metrics(log.path)] == [2] and log.failures == 1
