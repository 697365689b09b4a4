"""A process that has imported everything and forks a child for each command: a real `vitrail` process in 30 ms, not 3 s.

Speaks JSON lines: {"start": arguments, "env": {…}, "log": path, "cwd": path or null} -> {"pid": n};  {"wait": pid} -> {"status": n}.
"""

import json
import os
import sys
import tempfile
import traceback
from pathlib import Path


def become(arguments, env, log, cwd):
    """In the child: run the command line in this process and leave with its exit code."""
    handle = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    os.environ.update(env)
    if cwd:
        os.chdir(cwd)
    code = 1
    try:
        from vitrail.runtime import faults

        faults.arm(env.get("VITRAIL_FAULT"))
        if arguments[0].endswith(".py"):
            import runpy

            sys.argv = arguments
            runpy.run_path(arguments[0], run_name="__main__")
            code = 0
        else:
            from vitrail.cli import main

            code = main(arguments)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def main():
    import torch

    import vitrail.commands.train
    import vitrail.data.builtin
    import vitrail.data.shapes
    import vitrail.train.loop
    import vitrail.weights.load  # noqa: F401
    from vitrail.train.curve import draw_curve

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:  # matplotlib looks for its fonts once
        draw_curve(Path(os.devnull), Path(folder) / "curve.png")
    print(json.dumps({"ready": os.getpid()}), flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if "start" in command:
            pid = os.fork()
            if pid == 0:
                become(command["start"], command["env"], command["log"], command.get("cwd"))
            print(json.dumps({"pid": pid}), flush=True)
        else:
            print(json.dumps({"status": os.waitpid(command["wait"], 0)[1]}), flush=True)


main()
