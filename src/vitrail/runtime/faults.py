"""Named places where a test can make a run fail: `fault("commit.after_rename")`.

A no-op unless `VITRAIL_FAULT="commit.after_rename:3=kill"` (the third time that point
is passed; several are joined by commas). Actions: `kill` (SIGKILL to ourselves),
`term`, `usr1`, `int` (that signal to ourselves), `hang`, `exit` (at once, code 1),
`raise:ENOSPC` or any errno name, and words the caller understands itself, such as
`nan`: those are returned. Every name below is used in the source and hit by a test.
"""

from __future__ import annotations

import errno
import os
import signal
import time
from dataclasses import dataclass

from vitrail.errors import UsageError, nearest

__all__ = ["POINTS", "arm", "fault"]

# in the order in which a run passes them
POINTS = (
    "run.locked",
    "resume.loaded",
    "data.wait",
    "data.got",
    "step.augmented",
    "step.loss",
    "step.gradient",
    "step.before_update",
    "step.after_update",
    "step.done",
    "log.before",
    "log.after",
    "eval.start",
    "eval.batch",
    "eval.done",
    "best.saved",
    "commit.start",
    "commit.after_file",
    "commit.after_fsync",
    "commit.after_manifest",
    "commit.before_rename",
    "commit.after_rename",
    "commit.before_latest",
    "commit.after_latest",
    "prune.before",
    "prune.after",
    "finish.before",
    "predict.forward",
    "predict.piece",
)

_SIGNALS = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "int": signal.SIGINT, "usr1": signal.SIGUSR1}


@dataclass
class _Armed:
    countdown: int
    action: str


_armed: dict[str, list[_Armed]] = {}


def arm(text: str | None) -> None:
    """Set the faults from `point:n=action,…` (`:n` may be left out; None disarms)."""
    _armed.clear()
    for item in filter(None, (part.strip() for part in (text or "").split(","))):
        place, _, action = item.partition("=")
        point, _, count = place.partition(":")
        if point not in POINTS or not action or not (count or "1").isdigit():
            raise UsageError(f"VITRAIL_FAULT={item!r} is not point:n=action{nearest(point, POINTS)}.")
        _armed.setdefault(point, []).append(_Armed(int(count or "1"), action))


def fault(point: str) -> str | None:
    """Pass a named point; returns the action when it is the caller's to carry out."""
    if not _armed:
        return None
    for armed in _armed.get(point, ()):
        armed.countdown -= 1
        if armed.countdown == 0:
            return _act(armed.action)
    return None


def _act(action: str) -> str | None:
    if action in _SIGNALS:
        os.kill(os.getpid(), _SIGNALS[action])
        return None
    if action == "hang":
        time.sleep(3600)
    if action == "exit":
        os._exit(1)
    if action.startswith("raise:"):
        code = getattr(errno, action.partition(":")[2])
        raise OSError(code, os.strerror(code), "injected")
    return action


arm(os.environ.get("VITRAIL_FAULT"))
