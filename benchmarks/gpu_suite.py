"""Everything about speed that needs a GPU, in one command that may be cut into calls of a few minutes.

    python benchmarks/gpu_suite.py --out OUT                                    all of it
    python benchmarks/gpu_suite.py --out OUT --only tests latency --minutes 8   these parts, for so long
    python benchmarks/gpu_suite.py --out OUT2 --before OUT/results.json         go on: what is there is not run again
    python benchmarks/gpu_suite.py --list                                       the jobs by name

    tests      pytest -m gpu (the files that have such tests)
    train      ours, then each peer, a training step: B/16, L/16, H/14
    memory     our step as it is and in its memory-saving mode, beside timm's
    infer      large batches
    latency    one image
    profile    where our step's time goes beside timm's, by class of kernel, and what that is of the products' floor
    kernels    the optimizer's pass and the casts to fp8 by themselves: bytes a second, tile sizes, ways to multiply
    curves     the same seed trained plain, fused and in fp8 (needs --data)

Each job is a process of its own with a time limit: a kernel that fails takes nothing with it. Results
are in OUT/results.json after every job, OUT/report.md has the tables, OUT/log.txt what jobs said.
Peers are measured where they can be imported: PYTHONPATH may name a folder of pure-Python packages.
`--data` is any data source of vitrail; a folder of tar shards needs no further package.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
PARTS = ("tests", "train", "memory", "infer", "latency", "profile", "kernels", "curves")
MODELS = ("B/16", "L/16", "H/14")
TRAIN_BATCH = {"B/16": 256, "L/16": 128, "H/14": 64}
PEERS = ("timm", "hf", "torchvision", "vit-pytorch")
VARIANTS = {
    "plain": ["train.precision=bf16", "train.kernels=plain"],
    "fused": ["train.precision=bf16"],
    "fp8": ["train.precision=fp8"],
}
NEEDED = ("torch", "triton", "click", "rich", "safetensors", "huggingface_hub", "PIL", "pytest", "timm", "transformers", "torchvision",
          "vit_pytorch", "einops")  # fmt: skip
LEAST_S = 60  # a job is not begun with less


@dataclass(frozen=True)
class Job:
    name: str
    command: tuple[str, ...]  # prints JSON last
    limit_s: int = 300


# ---------------------------------------------------------------- the jobs


def bench(name: str, model: str, *options: str, limit_s: int = 300) -> Job:
    return Job(name, ("-m", "vitrail", "bench", model, "--device", "cuda", "--exact-gelu", "--json", *options), limit_s)


def jobs(given: argparse.Namespace) -> Iterator[Job]:
    """In order of importance within a part: ours and the best peer first, slow compilations last."""
    this = str(HERE / "gpu_suite.py")
    for part in given.only:
        if part == "tests":
            yield Job("tests", (this, "--job", "tests"), 540)
        elif part == "kernels":
            yield Job("kernels", (this, "--job", "kernels"), 240)
        elif part == "curves":
            for variant in VARIANTS if given.data else ():
                yield Job(f"curves {variant}", (this, "--job", "curves", variant, given.data, str(given.steps), given.curve_model), 420)
        elif part == "profile":
            for model in given.models:
                for system, precision in (("vitrail", "bf16"), ("timm", "bf16"), ("vitrail", "fp8")):
                    yield Job(f"profile {model} {system} {precision}", (this, "--job", "profile", model, system, precision), 240)
        else:
            for model in given.models:
                yield from measurements(part, model, given.peers)


def measurements(part: str, model: str, peers: Sequence[str]) -> Iterator[Job]:
    only = lambda peer: ("--peer", peer, "--only-peers")
    if part == "train":
        size = ("--work", "train", "--batch-size", str(TRAIN_BATCH[model]))
        for precision in ("bf16", "fp8"):
            modes = ("--mode", "compile", "--mode", "compile+bf16-residual")
            yield bench(f"train {model} vitrail {precision}", model, *size, "--precision", precision, *modes)
        for peer in peers:
            yield bench(f"train {model} {peer} compile", model, *size, *only(peer), "--precision", "bf16", "--mode", "compile")
        for peer in peers if model == "B/16" else peers[:1]:
            again = ("--precision", "bf16", "--mode", "max-autotune")
            yield bench(f"train {model} {peer} max-autotune", model, *size, *only(peer), *again, limit_s=540)
        yield bench(f"train {model} vitrail max-autotune", model, *size, "--precision", "bf16", "--mode", "max-autotune", limit_s=540)
    elif part == "memory":
        size = ("--work", "train", "--batch-size", str(TRAIN_BATCH[model]), "--precision", "bf16")
        modes = ("--mode", "compile+save-memory", "--mode", "compile+save-memory+bf16-residual", "--mode", "compile+plain")
        yield bench(f"memory {model} vitrail", model, *size, *modes)
    elif part == "infer":
        size = ("--work", "infer", "--batch-size", "256")
        for precision in ("bf16", "fp8"):
            modes = ("--mode", "compile", "--mode", "max-autotune")
            yield bench(f"infer {model} vitrail {precision}", model, *size, "--precision", precision, *modes)
        for peer in peers:
            yield bench(f"infer {model} {peer} compile", model, *size, *only(peer), "--precision", "bf16", "--mode", "compile")
        for peer in peers[:1]:
            yield bench(f"infer {model} {peer} max-autotune", model, *size, *only(peer), "--precision", "bf16", "--mode", "max-autotune")
    elif part == "latency":
        size = ("--work", "infer", "--batch-size", "1", "--precision", "bf16")
        yield bench(f"latency {model} vitrail", model, *size, "--mode", "graph", "--mode", "compile+graph", "--mode", "max-autotune+graph")
        for peer in (name for name in peers if name != "vit-pytorch"):
            yield bench(f"latency {model} {peer}", model, *size, *only(peer), "--mode", "reduce-overhead", "--mode", "max-autotune")


# ---------------------------------------------------------------- running them


def run_all(given: argparse.Namespace) -> None:
    out = Path(given.out)
    out.mkdir(parents=True, exist_ok=True)
    if absent := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        print(f"not importable here: {', '.join(absent)} (PYTHONPATH may name a folder that has them)", flush=True)
    done: dict[str, Any] = json.loads(Path(given.before).read_text()) if given.before else {}
    end = time.monotonic() + 60 * given.minutes
    for job in jobs(given):
        if job.name in done and not done[job.name].get("again"):
            continue
        left = end - time.monotonic()
        if left < LEAST_S:
            print(f"no time left for: {job.name}", flush=True)
            continue
        done[job.name] = run(job, min(job.limit_s, left - 5), out)
        (out / "results.json").write_text(json.dumps(done, indent=1))
        (out / "report.md").write_text(report(done))
    (out / "results.json").write_text(json.dumps(done, indent=1))
    (out / "report.md").write_text(report(done))
    print(report(done), flush=True)


def run(job: Job, limit_s: float, out: Path) -> dict[str, Any]:
    """The job's JSON, or why there is none ("again": worth another try)."""
    began = time.monotonic()
    paths = [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), "PYTHONUNBUFFERED": "1", "TOKENIZERS_PARALLELISM": "false"}
    # a group of its own: what is cut off is cut off with its children, which would go on using the GPU
    with subprocess.Popen(
        [sys.executable, *job.command], cwd=ROOT, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    ) as child:
        try:
            text, said = child.communicate(timeout=limit_s)
            failure = None if child.returncode == 0 else f"exit {child.returncode}"
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            text, said = child.communicate()
            failure = f"cut off after {limit_s:.0f} s"
    with (out / "log.txt").open("a") as log:
        log.write(f"==== {job.name} ({time.monotonic() - began:.0f} s{', ' + failure if failure else ''})\n{said[-6000:]}\n")
    result: dict[str, Any] = {"seconds": round(time.monotonic() - began, 1)}
    try:
        result |= json.loads(text[text.index("{") :])
    except ValueError:
        result |= {"error": failure or "no JSON", "again": True, "said": (text + said)[-500:]}
    if failure and job.name != "tests":
        result |= {"failure": failure}
    print(f"{job.name}: {brief(result)} ({result['seconds']} s)", flush=True)
    return result


def brief(result: dict[str, Any]) -> str:
    if "rows" in result:
        rows = [
            f"{row['mode']} {row['precision']} {row['images_per_s']:,.0f}/s" if not row["error"] else row["error"] for row in result["rows"]
        ]
        return "; ".join(rows)
    return str(result.get("error") or result.get("summary") or "done")


# ---------------------------------------------------------------- single jobs, each in its own process


def gpu_tests() -> dict[str, Any]:
    """pytest -m gpu over the files that have such tests."""
    files = sorted(str(path) for path in (ROOT / "tests").rglob("test_*.py") if "mark.gpu" in path.read_text())
    command = [sys.executable, "-m", "pytest", "-m", "gpu", "-q", "-p", "no:cacheprovider", "--durations=5", *files]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    tail = done.stdout[-8000:] + done.stderr[-2000:]
    last = next((line for line in reversed(done.stdout.splitlines()) if line.strip()), "pytest said nothing")
    return {
        "summary": last.strip("= "),
        "returncode": done.returncode,
        "failures": re.findall(r"^(?:FAILED|ERROR) .*", tail, re.M),
        "tail": tail,
    }


# how a kernel is recognised: the operation that launched it first, then its own name; the first that fits
CLASSES = (
    ("attention", r"vitrail::attention|scaled_dot_product|flash|fmha|sdpa|attention"),
    ("fp8 cast", r"fp8_quantise|quantise_kernel"),
    ("norm", r"vitrail::(residual_)?norm|layer_norm"),
    ("gelu", r"vitrail::gelu|gelu"),
    ("optimizer", r"adamw|multi_tensor|foreach|fused_adam|lpnorm"),
    ("products", r"gemm|nvjet|cutlass|cublas|xmma|scaled_mm|\bmm\b|addmm|convolution|conv|wgrad|dgrad|splitk"),
    ("copies", r"memcpy|memset|copy_|permute|transpose|cat\b"),
    ("sums", r"reduce|red_fused|::sum"),
)


def profiled(model: str, system: str, precision: str) -> dict[str, Any]:
    """Milliseconds of GPU time a step, by class of kernel."""
    import torch
    from torch.profiler import ProfilerActivity, profile

    from vitrail.model.cost import cost_of
    from vitrail.model.variants import config_for
    from vitrail.study.bench import weights_for
    from vitrail.study.bench_work import Case, prepare
    from vitrail.study.machine import product_rate

    device, batch, steps = torch.device("cuda", 0), TRAIN_BATCH[model], 5
    config: Any = config_for(model, activation="gelu")
    once = prepare(Case("train", system, model, batch, "compile", precision), config, weights_for(config), device).once
    for _ in range(8):
        once()
    torch.cuda.synchronize()
    begun = time.perf_counter()
    with profile(activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]) as found:
        for _ in range(steps):
            once()
        torch.cuda.synchronize()
    wall = 1e3 * (time.perf_counter() - begun) / steps
    kernels = by_class(found.events(), steps)
    classes: dict[str, float] = {}
    for (named, _), (ms, _count) in kernels.items():
        classes[named] = classes.get(named, 0.0) + ms
    flops = 6 * cost_of(config).macs * batch
    rate = product_rate(device, "fp8" if precision == "fp8" else "bf16")
    largest = sorted(kernels.items(), key=lambda item: -item[1][0])[:25]
    return {
        "model": model, "system": system, "precision": precision, "batch": batch, "step_ms": wall, "gpu_ms": sum(classes.values()),
        "classes": {name: round(ms, 3) for name, ms in sorted(classes.items(), key=lambda item: -item[1])},
        "floor_ms": flops / (rate * 1e12) * 1e3, "product_tflops": rate, "device": torch.cuda.get_device_name(0),
        "kernels": [{"class": named, "name": name[:90], "ms": round(ms, 3), "launches": round(n, 1)} for (named, name), (ms, n) in largest],
        "summary": f"{sum(classes.values()):.1f} ms of kernels",
    }  # fmt: skip


def by_class(events: Any, steps: int) -> dict[tuple[str, str], tuple[float, float]]:
    """(class, kernel) -> milliseconds and launches a step. What an operation launched is classed by the operation too;
    what no operation owns up to, by the kernel's name alone."""
    from torch.autograd import DeviceType

    found: dict[tuple[str, str], tuple[float, float]] = {}
    unclaimed: dict[str, tuple[float, float]] = {}

    def add(table: dict[Any, tuple[float, float]], key: Any, us: float, count: float) -> None:
        ms, n = table.get(key, (0.0, 0.0))
        table[key] = ms + us / 1e3 / steps, n + count / steps

    for event in events:
        if event.device_type == DeviceType.CUDA and not getattr(event, "is_user_annotation", False):
            add(unclaimed, event.name, event.time_range.elapsed_us(), 1)
        for kernel in event.kernels if event.device_type == DeviceType.CPU else ():
            add(found, (class_of(event.name, kernel.name), kernel.name), kernel.duration, 1)
    for (_, name), (ms, n) in list(found.items()):
        left_ms, left_n = unclaimed.get(name, (0.0, 0.0))
        unclaimed[name] = left_ms - ms, left_n - n
    for name, (ms, n) in unclaimed.items():
        if n > 0.5:
            add(found, (class_of("", name), name), 1e3 * steps * ms, steps * n)
    return found


def class_of(operation: str, kernel: str) -> str:
    for text in (operation, kernel):
        for name, pattern in CLASSES:
            if re.search(pattern, text, re.I):
                return name
    return "elementwise"  # what the compiler fused: norms, activations, casts, residual sums


def single_kernels() -> dict[str, Any]:
    """(what, milliseconds, TB/s or TFLOP/s) of the passes around the fused blocks."""
    import torch

    found: list[dict[str, Any]] = []

    def timed(what: str, once: Any, *, gigabytes: float = 0.0, teraflops: float = 0.0) -> None:
        from vitrail.runtime.stopwatch import Timing, passes

        try:
            ms = 1e3 * Timing.of(passes(once, torch.device("cuda", 0), warm_up=5, runs=50, budget_s=1.0)).median
        except Exception as error:  # one that does not compile must not hide the others
            found.append({"what": what, "error": " ".join(f"{type(error).__name__}: {error}".split())[:160]})
            return
        found.append({"what": what, "ms": round(ms, 4), "TB/s": round(gigabytes / ms, 3), "TFLOP/s": round(1e3 * teraflops / ms, 1)})

    optimizer_passes(timed)
    casts(timed)
    products(timed)
    good = sum("ms" in row for row in found)
    return {"kernels_alone": found, "device": torch.cuda.get_device_name(0), "summary": f"{good} of {len(found)} timed"}


def optimizer_passes(timed: Any) -> None:
    """B/16's 86.6 million weights: one pass, and torch's fused AdamW with the average beside it."""
    import torch

    from vitrail.config import EmaSpec, OptimSpec
    from vitrail.model.variants import create_model
    from vitrail.train.ema import Ema
    from vitrail.train.optim import AdamW, build_optimizer

    one_pass = AdamW._one_pass
    for way in ("one pass", "torch fused"):
        model = create_model("B/16").cuda()
        for p in model.parameters():
            p.grad = torch.randn_like(p)
        weights = sum(p.numel() for p in model.parameters())
        for averaged in (False, True):
            AdamW._one_pass = one_pass if way == "one pass" else property(lambda self: False)  # type: ignore[method-assign, assignment]
            optimizer = build_optimizer(model.named_parameters(), OptimSpec(weight_decay=0.1, clip_norm=1.0))
            ema = Ema(model, EmaSpec(decay=0.999)) if averaged else None
            if ema is not None:
                optimizer.carry(ema)

            def once(optimizer: Any = optimizer, ema: Any = ema, model: Any = model) -> None:
                info = optimizer.step(1e-4)
                if ema is not None:
                    ema.update(model, info.applied, optimizer.carried)

            least = (4 + 28 + (8 if averaged else 0)) * weights / 1e9  # norm; p, g, m, v in and p, m, v out; average in and out
            timed(f"norm, clip and AdamW{' and average' if averaged else ''}: {way}", once, gigabytes=least)
        AdamW._one_pass = one_pass  # type: ignore[method-assign]


def casts(timed: Any) -> None:
    """bfloat16 (tokens of a B/16 batch, width) to fp8, as it is and turned."""
    import torch

    from vitrail.kernels import quantise

    scale = torch.ones((), device="cuda")
    for width in (768, 3072):
        x = torch.randn(50432, width, device="cuda", dtype=torch.bfloat16)
        for rows, columns, warps in ((128, 64, 8), (128, 128, 8), (64, 64, 4), (64, 128, 4), (128, 64, 4), (256, 64, 8)):
            quantise.ROWS, quantise.COLUMNS, quantise.WARPS = rows, columns, warps
            for sums in (False, True):
                once = lambda x=x, sums=sums: quantise.quantise_tiles(x, scale, torch.float8_e4m3fn, len(x), sums)
                what = f"cast {tuple(x.shape)}{', sums' if sums else ''}: tiles {rows} x {columns}, {warps} warps"
                timed(what, once, gigabytes=4 * x.numel() / 1e9)


def products(timed: Any) -> None:
    """fc1 of B/16 forward, and its weight gradient: bf16, fp8 with fast and with full accumulation, one scale a row."""
    import torch

    m, k, n = 50432, 768, 3072
    x, w, g = (torch.randn(*shape, device="cuda", dtype=torch.bfloat16) for shape in ((m, k), (n, k), (m, n)))
    x8, w8, one = x.to(torch.float8_e4m3fn), w.to(torch.float8_e4m3fn), torch.ones((), device="cuda")
    of_rows, of_columns = torch.ones(m, 1, device="cuda"), torch.ones(1, n, device="cuda")
    g8t, x8t = g.t().contiguous().to(torch.float8_e5m2), x.t().contiguous().to(torch.float8_e4m3fn)
    flops = {"teraflops": 2 * m * k * n / 1e12}
    timed("fc1 bf16", lambda: x @ w.t(), **flops)
    for fast in (True, False):
        how = "fast" if fast else "full"
        timed(
            f"fc1 fp8, {how}",
            lambda fast=fast: torch._scaled_mm(x8, w8.t(), one, one, out_dtype=torch.bfloat16, use_fast_accum=fast),
            **flops,
        )
        rows = lambda fast=fast: torch._scaled_mm(x8, w8.t(), of_rows, of_columns, out_dtype=torch.bfloat16, use_fast_accum=fast)
        timed(f"fc1 fp8, a scale a row, {how}", rows, **flops)
        for out in (torch.float32, torch.bfloat16):
            gradient = lambda fast=fast, out=out: torch._scaled_mm(g8t, x8t.t(), one, one, out_dtype=out, use_fast_accum=fast)
            timed(f"fc1's weight gradient fp8, {how}, {out}", gradient, **flops)
    timed("fc1's weight gradient bf16", lambda: g.t() @ x, **flops)


def curve(variant: str, data: str, steps: str, model: str) -> dict[str, Any]:
    """Losses of a run, step by step, and what it reached."""
    keys = [
        f"model.name={model}", f"data.train={data}", f"train.steps={steps}", "train.batch_size=256", "train.seed=0",
        "optim.lr=1e-3", "optim.weight_decay=0.1", "optim.clip_norm=1.0", "schedule.warmup_steps=100", "train.log_every_steps=1",
        "train.save_every_steps=100000", f"eval.every_steps={steps}", "train.sure=true", *VARIANTS[variant],
    ]  # fmt: skip
    with tempfile.TemporaryDirectory() as folder:
        recipe = Path(folder, "curve.toml")
        recipe.write_text('name = "curve"\n')
        command = [sys.executable, "-m", "vitrail", "train", str(recipe), *keys, "--out", f"{folder}/run", "--json"]
        begun = time.perf_counter()
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(done.stderr[-3000:])
        lines = [json.loads(line) for line in Path(folder, "run", "metrics.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if "loss" in line]
    held = next((line["eval"] for line in reversed(lines) if "eval" in line), {})
    said = f"{len(losses)} steps, last loss {losses[-1]:.4f}" if losses else "no losses"
    return {"variant": variant, "model": model, "losses": losses, "eval": held, "wall_s": time.perf_counter() - begun, "summary": said}


# ---------------------------------------------------------------- the report


def report(done: dict[str, Any]) -> str:
    parts = ["# Speed on a GPU", "", "Made by `python benchmarks/gpu_suite.py`; every job in a process of its own on one machine."]
    parts += tables(done) + tests_said(done) + profiles(done) + kernels_said(done) + curves(done)
    failed = {name: job for name, job in done.items() if job.get("error") or job.get("failure")}
    if failed:
        parts += ["", "## Did not finish", "", *(f"- {name}: {job.get('error') or job.get('failure')}" for name, job in failed.items())]
    return "\n".join(parts) + "\n"


def tables(done: dict[str, Any]) -> list[str]:
    """All timed rows as one benchmark, ratios taken anew over all jobs."""
    sys.path.insert(0, str(ROOT / "src"))
    from vitrail.study.bench import Bench, joined
    from vitrail.study.bench_report import as_markdown

    found = [Bench.from_dict(job) for job in done.values() if "rows" in job]
    return ["", *as_markdown(joined(found)).splitlines()[2:]] if found else []


def tests_said(done: dict[str, Any]) -> list[str]:
    job = done.get("tests")
    return ["", "## Tests on the GPU", "", str(job.get("summary")), *(f"- {line}" for line in job.get("failures", []))] if job else []


def profiles(done: dict[str, Any]) -> list[str]:
    found = [job for name, job in done.items() if name.startswith("profile") and "classes" in job]
    if not found:
        return []
    names = list(dict.fromkeys(name for job in found for name in job["classes"]))
    lines = [
        "",
        "## Where a training step goes (ms of GPU time)",
        "",
        "| | " + " | ".join(names) + " | all kernels | step | floor: all as products |",
    ]
    lines += ["|" + " --- |" * (len(names) + 4)]
    for job in found:
        cells = [f"{job['classes'].get(name, 0):.2f}" for name in names]
        label = f"{job['model']} batch {job['batch']}, {job['system']} {job['precision']}"
        lines.append(f"| {label} | {' | '.join(cells)} | {job['gpu_ms']:.1f} | {job['step_ms']:.1f} | {job['floor_ms']:.1f} |")
    return [
        *lines,
        "",
        "floor: the step's multiply-accumulates at the rate of a large matrix product in the same precision, measured by the job",
    ]


def kernels_said(done: dict[str, Any]) -> list[str]:
    rows = done.get("kernels", {}).get("kernels_alone", [])
    lines = ["", "## Passes by themselves", "", "| | ms | TB/s | TFLOP/s |", "| --- | --- | --- | --- |"] if rows else []
    for row in rows:
        figures = (row["error"], "", "") if "error" in row else (row["ms"], row["TB/s"] or "", row["TFLOP/s"] or "")
        lines.append(f"| {row['what']} | {' | '.join(map(str, figures))} |")
    return lines


def curves(done: dict[str, Any]) -> list[str]:
    found = {job["variant"]: job for name, job in done.items() if name.startswith("curves") and job.get("losses")}
    if not found:
        return []
    base = found.get("plain") or next(iter(found.values()))
    lines = ["", "## The same seed, trained three ways", "", f"{base['model']}, batch 256. Mean training loss over windows of steps."]
    count = min(len(job["losses"]) for job in found.values())
    cuts = [(k * count // 5, (k + 1) * count // 5) for k in range(5)]
    lines += ["", "| | " + " | ".join(f"{a} to {b}" for a, b in cuts) + " | largest distance from plain, smoothed | held-out top-1 |"]
    lines += ["|" + " --- |" * (len(cuts) + 3)]
    for name, job in found.items():
        means = [f"{sum(job['losses'][a:b]) / (b - a):.4f}" for a, b in cuts]
        apart = max(abs(x - y) for x, y in zip(smooth(job["losses"][:count]), smooth(base["losses"][:count])))
        top1 = job["eval"].get("top1")
        lines.append(f"| {name} | {' | '.join(means)} | {apart:.4f} | {'' if top1 is None else f'{100 * top1:.2f} %'} |")
    return lines


def smooth(values: list[float], window: int = 25) -> list[float]:
    return [sum(values[k : k + window]) / window for k in range(max(1, len(values) - window))]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default="gpu-suite", help="folder for results.json, report.md and log.txt")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument(
        "--peers",
        nargs="*",
        choices=PEERS,
        default=list(PEERS),
        help="whom to set ours beside (L/16 and H/14: the first one alone under max-autotune)",
    )
    parser.add_argument("--minutes", type=float, default=1e6, help="begin nothing that cannot end in time")
    parser.add_argument("--before", default=None, help="results.json of an earlier call: its jobs are not run again")
    parser.add_argument("--data", default=None, help="images for the curves")
    parser.add_argument("--steps", type=int, default=500, help="of the curves")
    parser.add_argument("--curve-model", default="B/16")
    parser.add_argument("--list", action="store_true", help="print the jobs and stop")
    parser.add_argument("--job", nargs="+", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.list:
        print("\n".join(f"{job.name:40} at most {job.limit_s} s" for job in jobs(given)))
    elif given.job:
        work = {"tests": gpu_tests, "profile": profiled, "kernels": single_kernels, "curves": curve}[given.job[0]]
        print(json.dumps(work(*given.job[1:])))
    else:
        run_all(given)


if __name__ == "__main__":
    main()
