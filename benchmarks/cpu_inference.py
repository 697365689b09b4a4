"""Images a second on the CPU: the exact model, every runtime that `--fast` chooses from, and the peers, in one run.

    python benchmarks/cpu_inference.py [--model B/16] [--batch 8] [--threads 2] [--rounds 5] [--json FILE]

timm and transformers are measured where they are installed (extra 'parity'), with random
weights of the same shape; torchvision's missing operators are declared first where timm
needs it beside a CPU build of torch. Rounds are interleaved, so that a busy machine slows
all of them alike; the best round of each counts.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from vitrail.errors import VitrailError
from vitrail.model.variants import create_model
from vitrail.ship.export import metadata, trace, write
from vitrail.ship.fast import Choice, candidates, choose, exact_runtime
from vitrail.ship.predictor import Predictor
from vitrail.ship.quantise import KEPT_FLOAT, fold_weights, to_int8
from vitrail.ship.runtimes import OnnxRuntime
from vitrail.study.bench_peers import with_torchvision


def timm_model(size: int) -> Callable[[np.ndarray], object] | None:
    if importlib.util.find_spec("timm") is None:
        return None
    with_torchvision()
    import timm

    return runner(timm.create_model("vit_base_patch16_224", pretrained=False, img_size=size).eval())


def transformers_model(size: int) -> Callable[[np.ndarray], object] | None:
    if importlib.util.find_spec("transformers") is None:
        return None
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(image_size=size, num_labels=1000)).eval()
    return runner(model)


def runner(model: torch.nn.Module) -> Callable[[np.ndarray], object]:
    def run(images: np.ndarray) -> object:
        with torch.inference_mode():
            return model(torch.from_numpy(images))

    return run


def ours(predictor: Predictor, choice: Choice) -> dict[str, Callable[[np.ndarray], object]]:
    """The exact model and the runtimes beside it; what `--fast` takes is named so."""
    ways: dict[str, Callable[[np.ndarray], object]] = {"vitrail fp32": exact_runtime(predictor).run}
    tried = {candidate.name: candidate for candidate in choice.candidates}
    for name, make in candidates(predictor):
        if name in tried and not tried[name].error:
            with contextlib.suppress(VitrailError, RuntimeError):
                ways[f"vitrail --fast: {name}" if name == choice.name else f"vitrail, {name}"] = make().run
    return ways


def int8(predictor: Predictor, images: np.ndarray) -> Callable[[np.ndarray], object]:
    """ONNX Runtime with dense layers in int8. Its speed only: what it costs in accuracy is measured by `vitrail export`."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        write(trace(predictor, dynamic=False, preprocess=False), folder / "m.onnx", "onnx", metadata(predictor, False))
        products = fold_weights(folder / "m.onnx", folder / "folded.onnx")
        chosen = [node for layer, node in products.items() if layer not in KEPT_FLOAT]
        to_int8(folder / "folded.onnx", folder / "int8.onnx", images, chosen)
        return OnnxRuntime(folder / "int8.onnx")


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    name = next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.processor())
    flags = next((line for line in lines if line.startswith("flags")), "")
    return name + "".join(f" {flag}" for flag in ("avx512f", "avx512_bf16", "amx_bf16", "amx_int8") if flag in flags)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="B/16")
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--only", default="", help="runtimes to try, with commas between; default: all")
    parser.add_argument("--int8", action="store_true", help="ONNX Runtime in int8 too")
    parser.add_argument("--json", default=None)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    model = create_model(options.model)
    with torch.no_grad():
        model.head.weight.normal_(0, 0.02, generator=torch.Generator().manual_seed(0))
    predictor = Predictor(model, device="cpu")
    rows, columns = model.config.image_size
    images = np.random.default_rng(0).normal(size=(options.batch, 3, rows, columns)).astype(np.float32)

    choice = choose(predictor, batch_size=options.batch, names=options.only)
    print(choice, flush=True)
    ways = ours(predictor, choice)
    if options.int8:
        ways["onnxruntime int8"] = int8(predictor, images)
    peers = (("timm eager fp32", timm_model), ("transformers eager fp32", transformers_model)) if options.model == "B/16" else ()
    for name, make in peers:
        if way := make(rows):
            ways[name] = way
    best = dict.fromkeys(ways, float("inf"))
    for way in ways.values():
        way(images)
    for _ in range(options.rounds):
        for name, way in ways.items():
            began = time.perf_counter()
            way(images)
            best[name] = min(best[name], time.perf_counter() - began)
    report = {
        "model": options.model,
        "batch": options.batch,
        "threads": options.threads,
        "rounds": options.rounds,
        "cpu": processor(),
        "torch": torch.__version__,
        "images_per_s": {name: round(options.batch / seconds, 2) for name, seconds in best.items()},
        "candidates": choice.to_dict(),
    }
    base = best.get("timm eager fp32")
    for name, seconds in best.items():
        print(f"{name:34} {options.batch / seconds:8.2f} images/s" + (f"  {base / seconds:5.2f} x timm eager" if base else ""))
    if options.json:
        Path(options.json).write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
