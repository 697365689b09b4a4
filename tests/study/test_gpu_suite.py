"""benchmarks/gpu_suite.py where no GPU is: jobs, their time limits, classes of kernels, and the report."""

import importlib.util
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from torch.autograd import DeviceType

PATH = Path(__file__).parents[2] / "benchmarks" / "gpu_suite.py"


@pytest.fixture(scope="module")
def suite():
    spec = importlib.util.spec_from_file_location("gpu_suite", PATH)
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_suite"] = module  # its dataclasses look themselves up there
    spec.loader.exec_module(module)
    yield module
    del sys.modules["gpu_suite"]


def given(suite, **changes):
    return SimpleNamespace(
        **{
            "only": list(suite.PARTS),
            "models": list(suite.MODELS),
            "peers": list(suite.PEERS),
            "data": "images",
            "steps": 500,
            "curve_model": "B/16",
        }
        | changes
    )


def test_jobs_have_names_of_their_own_and_none_takes_longer_than_nine_minutes(suite):
    found = list(suite.jobs(given(suite)))
    names = [job.name for job in found]
    assert len(names) == len(set(names)) > 60
    assert max(job.limit_s for job in found) <= 540
    assert not [job for job in suite.jobs(given(suite, data=None)) if job.name.startswith("curves")]


def test_only_the_peers_that_are_asked_for_are_measured(suite):
    of = lambda peers: [name for job in suite.jobs(given(suite, peers=peers, only=["train", "infer", "latency"])) for name in suite.PEERS
                        if f" {name}" in job.name]  # fmt: skip
    assert set(of(["timm"])) == {"timm"} and set(of(list(suite.PEERS))) == set(suite.PEERS) and of([]) == []


def test_every_mode_and_option_of_a_job_is_one_that_bench_knows(suite):
    from vitrail.commands.bench import command
    from vitrail.study.bench_work import parts_of

    for job in suite.jobs(given(suite)):
        if "bench" in job.command:
            options = command.make_context("bench", list(job.command[3:])).params
            work = options["work"]
            assert options["models"][0] in suite.MODELS and options["as_json"] and options["exact_gelu"]
            assert all(parts_of(mode, work) for mode in options["modes"])


def test_a_job_gives_its_json_or_its_reason_and_is_cut_off_in_time(suite, tmp_path):
    script = lambda text: suite.Job("job", ("-c", text), 60)
    good = suite.run(script("import sys; print('noise', file=sys.stderr); print('{\"rows\": []}')"), 60, tmp_path)
    bad = suite.run(script("raise SystemExit('no GPU')"), 60, tmp_path)
    slow = suite.run(script("import time; time.sleep(60)"), 1, tmp_path)
    assert good["rows"] == [] and "error" not in good
    assert bad["error"] == "exit 1" and bad["again"] and "no GPU" in bad["said"]
    assert slow["error"].startswith("cut off after 1 s")
    assert "noise" in (tmp_path / "log.txt").read_text()


def test_kernels_are_classed_by_the_operation_that_launched_them_and_counted_once(suite):
    cpu = lambda name, *kernels: SimpleNamespace(
        device_type=DeviceType.CPU, name=name, kernels=[SimpleNamespace(name=k, duration=us) for k, us in kernels]
    )
    gpu = lambda name, us: SimpleNamespace(
        device_type=DeviceType.CUDA, name=name, kernels=[], time_range=SimpleNamespace(elapsed_us=lambda: us)
    )
    events = [
        cpu("vitrail::attention_forward", ("forward_kernel", 100.0)),
        cpu("vitrail::gelu_forward", ("forward_kernel", 50.0)),
        cpu("aten::mm", ("nvjet_sm90_tst", 500.0)),
        *(gpu(name, us) for name, us in (("forward_kernel", 100.0), ("forward_kernel", 50.0), ("nvjet_sm90_tst", 500.0))),
        gpu("triton_red_fused_native_layer_norm_3", 70.0),
        gpu("triton_poi_fused_add_7", 30.0),
    ]
    found = {named: ms for (named, _), (ms, _count) in suite.by_class(events, 1).items()}
    assert found == pytest.approx({"attention": 0.1, "gelu": 0.05, "products": 0.5, "norm": 0.07, "elementwise": 0.03})


def test_the_report_sets_jobs_of_one_machine_side_by_side(suite):
    from vitrail.runtime.stopwatch import Timing
    from vitrail.study.bench import Bench, Row
    from vitrail.study.bench_work import Case
    from vitrail.study.machine import Machine

    def job(system, rate, losses):
        row = Row(Case("train", system, "B/16", 256, "compile", "bf16"), Timing(15, 256 / rate, 0.1, 0.1), rate, losses=losses)
        machine = Machine("NVIDIA H200", "cuda", "2.11", "3.12", "Linux", 139.0, {"bf16": 786.0})
        return json.loads(json.dumps(Bench(machine, (row,), {}, (), 1.0, "2026-11-19").to_dict()))

    profile = {"model": "B/16", "batch": 256, "system": "timm", "precision": "bf16", "classes": {"products": 36.0}, "gpu_ms": 72.0,
               "step_ms": 73.0, "floor_ms": 34.5}  # fmt: skip
    done = {
        "a": job("vitrail", 5000.0, (7.0, 6.9)),
        "b": job("timm", 3479.0, (7.0, 6.93)),
        "profile B/16 timm bf16": profile,
        "curves plain": {"variant": "plain", "model": "B/16", "losses": [5.0] * 100, "eval": {"top1": 0.1}},
        "curves fp8": {"variant": "fp8", "model": "B/16", "losses": [5.25] * 100, "eval": {}},
        "tests": {"summary": "12 passed", "failures": []},
        "late": {"error": "cut off after 300 s"},
    }
    text = suite.report(done)
    assert "1.44 times" in text and "| 1.44 |" in text and "| 4e-03 |" in text
    assert "| 36.00 | 72.0 | 73.0 | 34.5 |" in text and "12 passed" in text and "| 0.2500 |" in text and "late: cut off" in text
