"""The promises of training that need a GPU, kept or not, in one command; and a real run with its curve.

    python benchmarks/train_on_gpu.py --data /data/tiny-imagenet-200 --minutes 10 --out results/
    python benchmarks/train_on_gpu.py --out results/ --only resume distil          without a data set, in a few minutes

    overhead   the loop beyond its bare step, and images a second           (loop_overhead.py)
    resume     compiled, in bf16: a run that is stopped and gone on with, and one that is killed, end with the
               same bits as one that was left alone
    distil     a student under a compiled teacher: images a second beside those without one
    curve      the recipe for so many minutes from scratch, its loss, its accuracy

Writes DATE-DEVICE.md with every figure and the command; and of the real run curve.png, metrics.jsonl, run.json and
best.safetensors (in float16). To go on with a long one in another call: --only curve --run DIR and the same keys,
with train.stop_after_minutes=9.
Exit 1 when a promise is broken.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch

from vitrail.runtime.device import describe_device, pick_device
from vitrail.runtime.metrics import read_metrics

PARTS = ("overhead", "resume", "distil", "curve")
STEPS, STOP, KILL = 60, 23, 41  # of the run that is interrupted: in the middle of an epoch, and between two checkpoints
SHAPES = "builtin:shapes?n=20000&size=64&classes=20&test=512"
INTERRUPTED = [
    f"train.steps={STEPS}", "train.batch_size=256", "train.save_every_steps=10", "train.log_every_steps=5", "train.precision=bf16",
    "train.deterministic=true", "eval.every_steps=30", "model.options.dropout=0.1", "train.sure=true",
]  # fmt: skip
LEFT = ("curve.png", "metrics.jsonl", "run.json", "best.safetensors")  # of the real run, copied to --out
HERE = Path(__file__).parent


class Suite:
    def __init__(self, given: argparse.Namespace, folder: Path) -> None:
        self.given, self.folder = given, folder
        self.lines: list[str] = []
        self.broken: list[str] = []

    # ---- saying

    def say(self, text: str = "") -> None:
        print(text, flush=True)
        self.lines.append(text)

    def promise(self, kept: bool, text: str) -> None:
        self.say(f"- {'kept' if kept else '**BROKEN**'}: {text}")
        if not kept:
            self.broken.append(text)

    # ---- running

    def vitrail(self, out: Path, *keys: str, env: dict[str, str] | None = None, expect: tuple[int, ...] = (0,)) -> None:
        command = [sys.executable, "-m", "vitrail", "train", *keys, "--out", str(out)]
        if self.given.device:
            command += ["--device", self.given.device]
        done = subprocess.run(command, env={**os.environ, **(env or {})}, capture_output=True, text=True, check=False)
        if done.returncode not in expect:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-4000:]}")

    def quick(self) -> list[str]:
        small = [
            "model.name=mu/8",
            "model.image_size=32",
            "train.batch_size=32",
            "data.train=builtin:shapes?n=640&size=32&classes=4&test=32",
        ]
        return small if self.given.quick else []

    # ---- the parts

    def overhead(self) -> None:
        out = self.folder / "overhead.json"
        keys = [f"data.train={self.given.data or SHAPES}", *self.given.keys, *self.quick()]
        command = [sys.executable, str(HERE / "loop_overhead.py"), "--recipe", self.given.recipe, "--steps", str(self.given.steps)]
        device = ["--device", self.given.device] if self.given.device else []
        subprocess.run([*command, *device, "--out", str(out), *keys], check=True, stdout=subprocess.DEVNULL)
        found = json.loads(out.read_text())
        rate = found["batch_size"] / (sorted(found["loop_ms"])[1] / 1000)
        self.say(
            f"loop {found['loop_ms']} ms a step, bare {found['bare_ms']} ms, the feed alone {found['feed_ms']} ms; {rate:,.0f} images/s"
        )
        self.promise(found["overhead"] < 0.03, f"the loop costs {100 * found['overhead']:.1f} % beyond the bare step (under 3 %)")

    def resume(self) -> None:
        keys = [self.given.recipe, "model.image_size=64", f"data.train={SHAPES}", *INTERRUPTED, *self.quick()]
        whole, cut = self.folder / "whole", self.folder / "cut"
        self.vitrail(whole, *keys)
        self.vitrail(cut, *keys, env={"VITRAIL_FAULT": f"step.done:{STOP}=term"}, expect=(75,))
        self.vitrail(cut, *keys, env={"VITRAIL_FAULT": f"step.done:{KILL - STOP}=kill"}, expect=(-9,))
        self.vitrail(cut, *keys)
        ours, theirs = digest(cut), digest(whole)
        odd = sorted(name for name in theirs if ours.get(name) != theirs[name])
        self.promise(
            not odd, f"stopped after {STOP} steps and killed after {KILL} of {STEPS}: the same bits{f', but for {odd}' if odd else ''}"
        )
        same = lines(cut) == lines(whole)
        self.promise(same, f"and the same {len(lines(whole))} lines of metrics.jsonl")

    def distil(self) -> None:
        base = [
            self.given.recipe, f"data.train={SHAPES}", "train.steps=300", "train.log_every_steps=50", "data.eval_split=nothing",
            "schedule.warmup_epochs=1", "train.sure=true", *self.quick(),
        ]  # fmt: skip
        teacher = self.folder / "teacher"
        large = "mu/8" if self.given.quick else "B/8"
        self.vitrail(teacher, *base, f"model.name={large}", "train.steps=10", "train.log_every_steps=10")
        rates = {}
        for name, extra in (("alone", []), ("taught", [f"objective.teacher={teacher / 'last.safetensors'}", "objective.distill=soft"])):
            self.vitrail(self.folder / name, *base, *extra)
            rates[name] = max(line["time"]["images_per_s"] for line in read_metrics(self.folder / name / "metrics.jsonl") if "loss" in line)
        self.say(f"with a {large} teacher {rates['taught']:,.0f} images/s, without {rates['alone']:,.0f}")

    def curve(self) -> None:
        if not self.given.data:
            self.say("no --data: no real run")
            return
        out = self.given.run or self.folder / "run"
        begin = time.monotonic()
        keys = [
            self.given.recipe,
            "train.publish_dtype=float16",
            f"data.train={self.given.data}",
            f"train.max_minutes={self.given.minutes:g}",
            *self.given.keys,
        ]
        self.vitrail(out, *keys, expect=(0, 75))
        for left in LEFT:
            if (out / left).is_file():
                shutil.copy(out / left, self.given.out / left)
        summary = json.loads((out / "run.json").read_text())
        self.say(f"`vitrail train {' '.join(keys)}`: {summary['step']:,} steps, {(time.monotonic() - begin) / 60:.1f} minutes in all")
        found = list(read_metrics(out / "metrics.jsonl"))
        shown = [line for line in found if "eval" in line]
        self.say("\n| step | held-out top-1, % | loss |\n| --- | --- | --- |")
        every = max(1, len(shown) // 12)
        for line in shown[(len(shown) - 1) % every :: every]:  # a dozen, the last among them
            self.say(f"| {line['step']:,} | {100 * line['eval']['top1']:.2f} | {line['eval']['loss']:.4f} |")
        rates = sorted(line["time"]["images_per_s"] for line in found if "loss" in line)
        mfu = sorted(line["time"].get("mfu", 0.0) for line in found if "loss" in line)
        self.say(f"\n{rates[len(rates) // 2]:,.0f} images/s, MFU {100 * mfu[len(mfu) // 2]:.0f} % (medians over the lines)")
        if best := summary["best"]:
            self.say(f"best {100 * best['top1']:.2f} % at step {best['step']:,}; {summary['exaflops']:.4g} exaFLOPs")


def digest(out: Path) -> dict[str, str]:
    """SHA-256 of the last checkpoint's tensors and of the last model."""
    newest = max((out / "checkpoints").glob("step-*"))
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in [*newest.glob("*.safetensors"), out / "last.safetensors"]}


def lines(out: Path) -> list[dict]:
    return [{key: value for key, value in line.items() if key != "time"} for line in read_metrics(out / "metrics.jsonl")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default=None, help="tiny-imagenet-200, or other images for the recipe")
    parser.add_argument("--recipe", default="tiny-imagenet:ti8")
    parser.add_argument("--quick", action="store_true", help="a model that any machine runs: shows that the command works, no more")
    parser.add_argument("--minutes", type=float, default=10.0, help="of the real run")
    parser.add_argument("--steps", type=int, default=300, help="of each round of the overhead")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS)
    parser.add_argument("--run", type=Path, default=None, help="directory of the real run, to go on with it (default: a temporary one)")
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("keys", nargs="*", help="KEY=VALUE of the recipe")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    device = pick_device(given.device)
    with tempfile.TemporaryDirectory() as folder:
        suite = Suite(given, Path(folder))
        suite.say(f"# Training on {describe_device(device)}, {datetime.date.today()}\n")
        suite.say(f"torch {torch.__version__}, Python {platform.python_version()}, {os.cpu_count()} cores; `python {' '.join(sys.argv)}`")
        for part in given.only:
            suite.say(f"\n## {part}\n")
            getattr(suite, part)()
    name = re.sub(r"[^a-z0-9]+", "-", describe_device(device).lower()).strip("-")
    page = given.out / f"{datetime.date.today()}-{name}.md"
    page.write_text("\n".join(suite.lines) + "\n")
    print(f"\n{page}")
    sys.exit(1 if suite.broken else 0)


if __name__ == "__main__":
    main()
