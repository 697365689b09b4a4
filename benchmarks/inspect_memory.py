"""Peak memory of looking inside, each way in a process of its own.

    python benchmarks/inspect_memory.py                       # L/16 at 1024 x 1024, as many layers as --depth says
    python benchmarks/inspect_memory.py --model Ti/16@384 --images 2 --json

A row says how far the resident memory of the process rose above what it held with the model
built: activations, chunks of softmax and all. `forward` is the model alone, with its fused
attention. `layers x heads x N x N` is what a list of all attention weights would take.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from typing import Any

WAYS = ("forward", "statistics", "heads", "rollout", "rollout matrix", "rollout kept", "rollout recomputed", "gradient")
EVERYTHING = ("statistics", "heads", "rollout", "gradient")  # one after another in one process, as a report does


def one(way: str, name: str, depth: int | None, images: int) -> dict:
    """Build, look, and say how much memory that took; for a child process."""
    import torch

    from vitrail.model.variants import create_model

    options = {} if depth is None else {"depth": depth}
    model = create_model(name, classes=10, **options).eval()
    x = torch.rand(images, 3, *model.config.image_size) * 2 - 1
    size = model.config.image_size
    with torch.no_grad():  # what any first call sets up (threads, code, buffers) is not the work's
        model.resize(tuple(side * 2 for side in model.config.patch_size))
        model(torch.zeros(1, 3, *model.config.image_size))
        model.resize(size)
    before = resident_mb()
    begun = time.perf_counter()
    for step in EVERYTHING if way == "everything" else (way,):
        look(step, model, x)
    seconds = time.perf_counter() - begun
    config = model.config
    return {
        "way": way,
        "above_model_mb": round(peak_mb() - before, 1),
        "model_mb": round(sum(p.numel() * p.element_size() for p in model.parameters()) / 2**20, 1),
        "seconds": round(seconds, 2),
        "layers": config.depth,
        "tokens": config.tokens,
        "all_weights_mb": round(images * config.depth * config.heads * config.tokens**2 * 4 / 2**20, 1),
        "torch": torch.__version__,
    }


def look(way: str, model: Any, x: Any) -> None:
    import torch

    from vitrail.inspect.attention import attention_statistics
    from vitrail.inspect.maps import attention_rollout, class_attention, gradient_rollout

    if way == "forward":
        with torch.no_grad():
            model(x)
    elif way == "statistics":
        attention_statistics(model, x, batch_size=len(x))
    elif way == "heads":
        class_attention(model, x, batch_size=len(x))
    elif way == "gradient":
        gradient_rollout(model, x, batch_size=len(x))
    else:
        attention_rollout(model, x, form=way.partition(" ")[2] or None, batch_size=len(x))


def resident_mb() -> float:
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * resource.getpagesize() / 2**20


def peak_mb() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def measure(given: argparse.Namespace) -> list[dict]:
    rows = []
    for way in given.ways.split(","):
        command = [sys.executable, __file__, "--one", way, "--model", given.model, "--images", str(given.images)]
        command += [] if given.depth is None else ["--depth", str(given.depth)]
        command += [] if given.chunk_mb is None else ["--chunk-mb", str(given.chunk_mb)]
        rows.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="L/16@1024")
    parser.add_argument("--depth", type=int, default=None, help="layers; only kept and gradient hold more for more")
    parser.add_argument("--images", type=int, default=1)
    parser.add_argument("--ways", default=",".join(WAYS))
    parser.add_argument("--chunk-mb", type=int, default=None, help="vitrail.inspect.attention.CHUNK_BYTES (64)")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        if given.chunk_mb:
            from vitrail.inspect import attention

            attention.CHUNK_BYTES = given.chunk_mb << 20
        print(json.dumps(one(given.one, given.model, given.depth, given.images)))
        return
    rows = measure(given)
    if given.json:
        print(json.dumps(rows, indent=1))
        return
    first = rows[0]
    print(f"{given.model}, {first['layers']} layers, {first['tokens']} tokens, {given.images} image(s), float32, torch {first['torch']}")
    print(f"weights {first['model_mb']} MB; all attention weights would be {first['all_weights_mb']} MB\n")
    print(f"{'way':20} {'above the model':>16} {'seconds':>9}")
    for row in rows:
        print(f"{row['way']:20} {row['above_model_mb']:>13.0f} MB {row['seconds']:>9.1f}")


if __name__ == "__main__":
    main()
