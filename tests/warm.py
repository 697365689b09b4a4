"""The fixture `warm` (a tests/conftest.py takes it up): real `vitrail` processes without the cost of importing torch."""

import hashlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass
class Done:
    """A finished process: exit code (negative: the signal that killed it) and what it printed."""

    code: int
    text: str


class Child:
    def __init__(self, warm, pid, log):
        self.warm, self.pid, self.log = warm, pid, log

    def send(self, number):
        os.kill(self.pid, number)

    @property
    def text(self):
        return self.log.read_text(errors="replace") if self.log.exists() else ""

    def until(self, word, timeout_s=30.0):
        """Wait until the process has printed `word`."""
        end = time.monotonic() + timeout_s
        while word not in self.text:
            assert time.monotonic() < end and self.alive(), f"{word!r} never came:\n{self.text}"
            time.sleep(0.005)
        return self

    def alive(self):
        return Path(f"/proc/{self.pid}").exists() and b") Z " not in Path(f"/proc/{self.pid}/stat").read_bytes()

    def wait(self, timeout_s=60.0):
        end = time.monotonic() + timeout_s
        while self.alive() and time.monotonic() < end:
            time.sleep(0.005)
        if self.alive():
            self.send(signal.SIGKILL)
            self.warm.ask({"wait": self.pid})
            raise AssertionError(f"process {self.pid} did not end in {timeout_s} s:\n{self.text}")
        status = self.warm.ask({"wait": self.pid})["status"]
        return Done(os.waitstatus_to_exitcode(status), self.text)


class Warm:
    """`run(["train", …])` -> Done; `start` for a process to be hurt on its way."""

    def __init__(self, folder):
        self.folder, self.count = folder, 0
        env = {**os.environ, "OMP_NUM_THREADS": "1", "VITRAIL_FAULT": ""}
        server = Path(__file__).parent / "warm_server.py"
        self.process = subprocess.Popen([sys.executable, str(server)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        assert "ready" in json.loads(self.process.stdout.readline())

    def ask(self, command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def start(self, arguments, env=None, cwd=None):
        self.count += 1
        log = self.folder / f"{self.count}.log"
        environment = {k: str(v) for k, v in (env or {}).items()}
        command = {"start": [str(a) for a in arguments], "env": environment, "log": str(log), "cwd": cwd and str(cwd)}
        return Child(self, self.ask(command)["pid"], log)

    def run(self, arguments, env=None, timeout_s=60.0, cwd=None):
        return self.start(arguments, env, cwd).wait(timeout_s)

    def close(self):
        self.process.stdin.close()
        self.process.wait(10)


@pytest.fixture(scope="session")
def warm(tmp_path_factory):
    server = Warm(tmp_path_factory.mktemp("warm"))
    yield server
    server.close()


# ---------------------------------------------------------------- small runs

TINY = """
paper = "tests"
[model]
name = "mu/8"
image_size = [32, 32]
options = { dropout = 0.1, drop_path = 0.1, depth = 2, mlp_width = 64 }
[data]
train = "builtin:shapes?n=96&size=32&classes=4&test=16"
eval_split = "test"
workers = 0
resident = false
[augment]
mixup = 0.5
[optim]
lr = 3e-3
weight_decay = 0.05
clip_norm = 1.0
[schedule]
warmup_steps = 2
[ema]
decay = 0.9
[train]
batch_size = 16
micro_batch_size = 8
steps = 12
log_every_steps = 2
save_every_steps = 3
"""


class Tiny:
    """Training runs of a second: a 20-thousand-parameter ViT with everything that a resume could forget."""

    def __init__(self, warm, folder):
        self.warm, self.folder = warm, folder
        self.recipe = folder / "tiny.toml"
        self.recipe.write_text(TINY)
        self._golden = {}

    def arguments(self, out, assignments):
        flags = [a for a in assignments if str(a).startswith("--")]
        keys = [a for a in assignments if not str(a).startswith("--")]
        return ["train", self.recipe, *keys, "--out", out, *flags]

    def start(self, out, *assignments, env=None):
        return self.warm.start(self.arguments(out, assignments), env)

    def run(self, out, *assignments, env=None, timeout_s=60.0):
        return self.warm.run(self.arguments(out, assignments), env, timeout_s)

    def golden(self, *assignments):
        """The directory of an undisturbed run."""
        if assignments not in self._golden:
            out = self.folder / f"golden-{len(self._golden)}"
            done = self.run(out, *assignments)
            assert done.code == 0, done.text
            self._golden[assignments] = out
        return self._golden[assignments]

    def ranks(self, count, out, *assignments, env=None, timeout_s=120.0):
        """The same command as `count` gloo ranks; their Done values in order."""
        return [child.wait(timeout_s) for child in self.start_ranks(count, out, *assignments, env=env)]

    def start_ranks(self, count, out, *assignments, env=None):
        port = free_port()
        children = []
        for rank in range(count):
            given = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count, "MASTER_ADDR": "127.0.0.1"}
            own = (env or {}).get(rank, {}) if all(isinstance(k, int) for k in (env or {})) else env
            children.append(self.start(out, *assignments, env={**given, "MASTER_PORT": port, **(own or {})}))
        return children

    @staticmethod
    def checkpoints(out):
        return sorted(int(p.name[5:]) for p in (Path(out) / "checkpoints").glob("step-*"))

    @staticmethod
    def lines(out):
        """metrics.jsonl without what depends on the machine's speed."""
        text = (Path(out) / "metrics.jsonl").read_text().splitlines()
        return [{key: value for key, value in json.loads(line).items() if key != "time"} for line in text]

    @staticmethod
    def state(out):
        """The digest without the published models, whose cards tell the recipe to the last key."""
        return {name: value for name, value in Tiny.digest(out).items() if name not in ("best.safetensors", "last.safetensors")}

    @staticmethod
    def digest(out):
        """All that a run leaves behind: its last checkpoint, its two models, its lines."""
        newest = max((Path(out) / "checkpoints").glob("step-*"))
        files = [*newest.glob("*.safetensors"), Path(out) / "best.safetensors", Path(out) / "last.safetensors"]
        found = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
        return {**found, "newest": newest.name, "lines": Tiny.lines(out)}


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="session")
def tiny(warm, tmp_path_factory):
    return Tiny(warm, tmp_path_factory.mktemp("tiny"))
