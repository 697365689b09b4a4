"""C03: the order of system calls that survives a power cut: every file written and fsynced, the directory fsynced,
renamed, the parent fsynced; only then LATEST, by the same rules."""

import os

import torch

from vitrail.runtime.disk import write_tensors
from vitrail.train.store import CheckpointStore


class Trace:
    """Records os.write, os.fsync and os.rename of this process by path."""

    def __init__(self, monkeypatch):
        self.calls = []
        real = {name: getattr(os, name) for name in ("write", "fsync", "rename", "replace")}
        where = lambda handle: os.readlink(f"/proc/self/fd/{handle}")
        monkeypatch.setattr(os, "write", lambda h, data: (self.calls.append(("write", where(h))), real["write"](h, data))[1])
        monkeypatch.setattr(os, "fsync", lambda h: (self.calls.append(("fsync", where(h))), real["fsync"](h))[1])
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, lambda a, b, f=real[name]: (self.calls.append(("rename", f"{a} -> {b}")), f(a, b))[1])

    def last(self, kind, part):
        return max(i for i, (k, path) in enumerate(self.calls) if k == kind and part in path)

    def first(self, kind, part):
        return min(i for i, (k, path) in enumerate(self.calls) if k == kind and part in path)


def fill(draft):
    draft.add("model.safetensors", lambda path: write_tensors(path, {"w": torch.ones(5000)}))
    draft.add_json("state.json", {"step": 5})


def test_nothing_is_named_before_it_is_on_the_disk(tmp_path, monkeypatch):
    store = CheckpointStore(tmp_path / "checkpoints")
    trace = Trace(monkeypatch)
    store.commit(5, fill)
    rename = trace.first("rename", "step-00000005")
    for name in ("model.safetensors", "state.json", "MANIFEST.json"):
        assert trace.last("write", name) < trace.first("fsync", name) < rename
    assert trace.last("write", "state.json") < trace.first("write", "MANIFEST.json")
    draft = next(path for kind, path in trace.calls if kind == "fsync" and path.endswith("MANIFEST.json")).rsplit("/", 1)[0]
    assert trace.first("fsync", "MANIFEST.json") < next(i for i, c in enumerate(trace.calls) if c == ("fsync", draft)) < rename
    parent = next(i for i, c in enumerate(trace.calls) if c == ("fsync", str(store.folder)) and i > rename)
    latest = trace.first("rename", "LATEST")
    assert rename < parent < trace.first("write", ".LATEST") < trace.first("fsync", ".LATEST") < latest
    assert any(c == ("fsync", str(store.folder)) for c in trace.calls[latest:])


def test_old_ones_are_removed_only_afterwards(tmp_path, monkeypatch):
    import shutil

    store = CheckpointStore(tmp_path / "checkpoints", keep=1)
    store.commit(4, fill)
    trace, remove = Trace(monkeypatch), shutil.rmtree
    monkeypatch.setattr(shutil, "rmtree", lambda path, **k: (trace.calls.append(("remove", str(path))), remove(path, **k))[1])
    store.commit(5, fill)
    assert trace.first("remove", "step-00000004") > trace.first("rename", "LATEST")
