"""What the compiler makes of each kernel on Hopper: registers a thread, spilled bytes, shared memory. Needs triton, no GPU.

    python benchmarks/kernels_compile.py            # the layouts in use, at the shapes of B/16, L/16 and H/14
    python benchmarks/kernels_compile.py --all      # and the alternatives benchmarks/kernel_times.py times

Registers decide how many programs share a multiprocessor (65,536 registers, 227 KB of shared memory);
spilled bytes are reloaded from memory. Few of them, 64 bits wide and outside of the innermost loop,
are descriptors of shared memory and harmless.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from vitrail.kernels import attention, gelu, norm

HOPPER = GPUTarget("cuda", 90, 32)
SHAPES = {"B/16": (197, 12, 768, 3072), "L/16": (197, 16, 1024, 4096), "H/14": (257, 16, 1280, 5120)}
HALF, FULL, INT, FLOAT = "*bf16", "*fp32", "i32", "fp32"
FORWARD_TILES = [(64, 64, 128, 4, 2), (64, 64, 64, 4, 1), (128, 128, 128, 8, 1), (64, 16, 128, 4, 2)]
BACKWARD_TILES = [(64, 64, 64, 4, 1), (64, 64, 64, 4, 2), (128, 128, 64, 8, 1), (64, 16, 64, 4, 1), (64, 64, 32, 4, 1)]
NORM_ROWS = [(1, 1), (1, 4), (2, 4), (4, 4), (4, 8)]
GELU_TILES = [(16, 256, 4), (8, 512, 4), (16, 256, 8), (32, 256, 8)]


def compiled(kernel: Any, types: dict[str, str], constants: dict[str, Any]) -> dict[str, int]:
    """Compile for Hopper, and read ptxas' report."""
    constants = dict(constants)
    options = {"num_warps": constants.pop("num_warps")}
    names = [parameter.name for parameter in kernel.params]
    aligned = [(place,) for place, name in enumerate(names) if types.get(name, "").startswith("*") or name.startswith("stride")]
    source = ASTSource(
        kernel,
        {name: "constexpr" if name in constants else types[name] for name in names},
        {(names.index(name),): value for name, value in constants.items()},
        {place: [["tt.divisibility", 16]] for place in aligned},
    )
    made = triton.compile(source, target=HOPPER, options=options)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "kernel.ptx"
        path.write_text(made.asm["ptx"])
        report = subprocess.run(
            [get_ptxas(90).path, "-v", "-arch=sm_90a", path, "-o", path.with_suffix(".o")], capture_output=True, text=True
        )
    if report.returncode:
        raise RuntimeError(report.stderr)
    number = lambda pattern: int(re.search(pattern, report.stderr)[1])  # type: ignore[index]
    return {
        "registers": number(r"Used (\d+) registers"),
        "spilled": number(r"(\d+) bytes spill loads"),
        "shared": made.metadata.shared,
        "wgmma": made.asm["ptx"].count("wgmma.mma_async"),
    }


def attention_types(backward: bool) -> dict[str, str]:
    tensors = {"qkv": HALF, "out": HALF, "lse": FULL}
    if backward:
        tensors |= {"grad": HALF, "delta": FULL, "dqkv": HALF, "dbias": FULL}
    return tensors | {"heads": INT, "stride_b": INT, "stride_t": INT, "scale": FLOAT, "root": FLOAT}


def attention_kernel(tokens: int, width: int, tiles: Any, backward: bool) -> dict[str, int]:
    kernel = attention.backward_kernel if backward else attention.forward_kernel
    return compiled(kernel, attention_types(backward), attention.layout(tokens, width, tiles, torch.bfloat16))


def norm_kernel(width: int, rows: Any, residual: str, backward: bool) -> dict[str, int]:
    constants = {"T": 197, "D": width, "BLOCK": triton.next_power_of_2(width), "ROWS": rows.rows, "num_warps": rows.warps}
    shared = {"z": residual, "total": residual, "branch": HALF, "scale": FULL, "keep": FULL, "weight": FULL, "shift": FULL}
    types = shared | {"mean": FULL, "rstd": FULL, "tokens": INT, "eps": FLOAT, "out": HALF}
    flags = {"SCALE": False, "KEEP": False}
    if not backward:
        return compiled(norm.forward_kernel, types, constants | flags | {"BRANCH": True})
    types |= {"dn": HALF, "dz": residual, "dtotal": residual, "dbranch": HALF, "sums": FULL}
    flags |= {"APART": residual == FULL, "BIAS": True, "TURNS": 48, "PROGRAMS": norm.PROGRAMS}
    return compiled(norm.backward_kernel, types, constants | flags)


def gelu_kernel(width: int, tile: Any, backward: bool) -> dict[str, int]:
    constants = {"M": width, "ROWS": tile.rows, "COLUMNS": tile.columns, "TANH": True, "num_warps": tile.warps}
    types = {"u": HALF, "h": HALF, "dh": HALF, "du": HALF, "sums": FULL, "tokens": INT}
    if not backward:
        return compiled(gelu.forward_kernel, types, constants)
    return compiled(gelu.backward_kernel, types, constants | {"TURNS": 36, "PROGRAMS": tile.programs})


def line(what: str, layout: Any, found: dict[str, int]) -> None:
    print(
        f"| {what} | {layout} | {found['registers']} | {found['spilled']} | {found['shared'] / 1024:.0f} KB | {found['wgmma']} |",
        flush=True,
    )


def main(everything: bool) -> None:
    print(f"triton {triton.__version__}, sm_90a\n\n| kernel | layout | registers | spilled bytes | shared memory | wgmma |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name, (tokens, heads, width, hidden) in SHAPES.items():
        if width // heads in attention.WIDTHS and name != "L/16":  # one head of L/16 is one of B/16
            for backward, used, others in ((False, attention.FORWARD, FORWARD_TILES), (True, attention.BACKWARD, BACKWARD_TILES)):
                for tiles in [used] + [attention.Tiles(*t) for t in others if everything and attention.Tiles(*t) != used]:
                    line(
                        f"{name} attention {('forward', 'backward')[backward]}",
                        tiles,
                        attention_kernel(tokens, width // heads, tiles, backward),
                    )
        for backward, used_rows in ((False, norm.FORWARD), (True, norm.BACKWARD)):
            for rows in [used_rows] + [norm.Rows(*r) for r in NORM_ROWS if everything and norm.Rows(*r) != used_rows]:
                for residual in (HALF, FULL):
                    what = f"{name} norm {('forward', 'backward')[backward]}, residual {residual[1:]}"
                    line(what, rows, norm_kernel(width, rows, residual, backward))
        if name == "B/16" or everything:
            for backward, tile in ((False, gelu.FORWARD), (True, gelu.BACKWARD)):
                line(f"{name} gelu {('forward', 'backward')[backward]}", tile, gelu_kernel(hidden, tile, backward))
    print("\nattention of L/14 and the like, 257 tokens of 64:")
    for backward, tiles in ((False, attention.FORWARD), (True, attention.BACKWARD)):
        line(f"attention {('forward', 'backward')[backward]}", tiles, attention_kernel(257, 64, tiles, backward))


if __name__ == "__main__":
    main("--all" in sys.argv[1:])
