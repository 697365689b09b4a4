"""S07: an exception in the model costs its batch; a crash of the process costs a few seconds."""

import time

from serving_harness import png


def test_an_exception_costs_one_batch_and_a_crash_is_repaired(start):
    # the second call raises; a fault counts only the calls that no earlier fault ended, so the fourth exits
    server = start(env={"VITRAIL_FAULT": "predict.forward:2=raise:EIO,predict.forward:3=exit"})
    expected = server.post("/predict", png()).json()

    began = time.monotonic()
    failed = server.post("/predict", png())
    assert (failed.status, failed.json()["error"]) == (500, "internal")
    assert time.monotonic() - began <= 1
    assert server.post("/predict", png()).json() == expected, "the next batch is served"

    first = server.worker
    assert server.post("/predict", png()).status == 0, "the crash closed the connection; no client waits for ever"
    began = time.monotonic()
    server.ready(within_s=15)
    assert time.monotonic() - began <= 15
    assert server.worker != first
    assert server.post("/predict", png()).json() == expected
    assert "starting another" in server.log.read_text()


def test_a_worker_without_its_parent_leaves(start):
    server = start()
    worker = server.worker
    server.process.kill()
    server.process.wait()
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            with open(f"/proc/{worker}/stat") as stat:
                if stat.read().split()[2] == "Z":
                    return
        except FileNotFoundError:
            return
        time.sleep(0.1)
    raise AssertionError("the worker holds the port for ever")
