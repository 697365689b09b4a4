"""Times every fused kernel on a GPU beside its plain twin, in every layout worth trying, after checking it against float64.

    python benchmarks/kernel_times.py [--out FILE.json] [--only attention,norm,gelu,model] [--models B/16,L/16,H/14]

One line a kernel, shape and layout: milliseconds (median), the floor (bytes that must move over the
bandwidth a large copy reaches here), the relative error, and what plain torch takes for the same
(for attention: FlashAttention and cuDNN, with the copies around them; for the others: torch.compile).
Where two runs differ in a bit, the line says so.
The fastest layout of each kernel comes last: those belong into kernels/*.py.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from triton.testing import do_bench

from vitrail.kernels import attention, gelu, norm
from vitrail.model.fused import fuse
from vitrail.model.variants import create_model

MODELS = {"B/16": (256, 197, 12, 768, 3072), "L/16": (128, 197, 16, 1024, 4096), "H/14": (64, 257, 16, 1280, 5120)}
ATTENTION_FORWARD = [
    (64, 64, 128, 4, 2),
    (64, 64, 128, 4, 1),
    (64, 64, 64, 4, 1),
    (128, 128, 128, 8, 1),
    (128, 128, 128, 8, 2),
    (64, 16, 128, 4, 2),
]
ATTENTION_BACKWARD = [
    (64, 64, 64, 4, 1),
    (64, 64, 64, 4, 2),
    (128, 128, 64, 8, 1),
    (64, 16, 64, 4, 1),
    (64, 64, 32, 4, 1),
    (128, 128, 32, 8, 1),
]
NORM_FORWARD = [(1, 1), (1, 4), (2, 4), (4, 4), (4, 8), (8, 8)]
NORM_BACKWARD = [(1, 1, 1056), (1, 1, 2112), (1, 4, 528), (2, 4, 528), (2, 4, 1056), (4, 4, 396), (4, 8, 264), (2, 8, 528)]
GELU_FORWARD = [(16, 256, 4), (8, 512, 4), (16, 256, 8), (8, 256, 4), (4, 1024, 4)]
GELU_BACKWARD = [(16, 256, 4, 44), (16, 256, 4, 88), (8, 256, 4, 88), (16, 256, 8, 88), (8, 512, 4, 88), (8, 256, 4, 176)]
ROWS: list[dict[str, Any]] = []
HERE, HALF = "cuda", torch.bfloat16


def ms(call: Callable[[], Any]) -> float:
    return float(do_bench(call, warmup=20, rep=80, return_mode="median"))


def error(value: torch.Tensor, exact: torch.Tensor) -> float:
    return ((value.double() - exact.double()).norm() / exact.double().norm()).item()


def say(kernel: str, model: str, layout: str, time: float, floor: float = 0.0, wrong: float | None = None) -> None:
    ROWS.append({"kernel": kernel, "model": model, "layout": layout, "ms": time, "floor_ms": floor, "error": wrong})
    print(
        f"{model:5s} {kernel:30s} {layout:34s} {time:8.4f} ms  floor {floor:7.4f}" + (f"  error {wrong:.1e}" if wrong is not None else ""),
        flush=True,
    )


def attempt(kernel: str, model: str, layout: str, floor: float, call: Callable[[], Any], check: Callable[[], float] | None = None) -> None:
    """Time one layout; one that does not fit this GPU is said and passed over."""
    try:
        wrong = check() if check else None
        if not same_bits(call(), call()):
            layout += " BITS DIFFER"
        say(kernel, model, layout, ms(call), floor, wrong)
    except Exception as problem:
        print(f"{model:5s} {kernel:30s} {layout:34s} {type(problem).__name__}: {str(problem).splitlines()[0][:80]}", flush=True)


def same_bits(first: Any, second: Any) -> bool:
    """Whether two runs gave the same tensors to the bit; of those that give none, nothing is known."""
    if isinstance(first, torch.Tensor):
        return torch.equal(first, second)
    return first is None or all(same_bits(a, b) for a, b in zip(first, second, strict=True))


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, device=HERE, dtype=HALF)


def attention_lines(model: str, bandwidth: float) -> None:
    batch, tokens, heads, width, _ = MODELS[model]
    qkv, grad = half(batch, tokens, 3 * width), half(batch, tokens, width)
    floor_forward, floor_backward = 8 * grad.numel() / bandwidth, 16 * grad.numel() / bandwidth
    for backend in (SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION):
        held = qkv.clone().requires_grad_()

        def plain(backend: SDPBackend = backend, held: torch.Tensor = held) -> torch.Tensor:
            q, k, v = held.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
            with sdpa_kernel(backend):
                return F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)

        name = backend.name.split("_")[0].lower()
        attempt("attention forward", model, f"torch, {name}, with copies", floor_forward, plain)
        back = lambda out, held=held: torch.autograd.grad(out, held, grad, retain_graph=True)
        try:
            out = plain()
        except RuntimeError:  # said above: this backend has no such heads
            continue
        attempt("attention backward", model, f"torch, {name}, with copies", floor_backward, lambda out=out, back=back: back(out))
    if width // heads not in attention.WIDTHS or tokens > attention.MOST_TOKENS:
        return
    exact = qkv[:4].double().requires_grad_()
    q, k, v = exact.unflatten(2, (3, heads, -1)).permute(2, 0, 3, 1, 4)
    out_exact = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
    (grad_exact,) = torch.autograd.grad(out_exact, exact, grad[:4].double())
    ops = torch.ops.vitrail
    before = attention.FORWARD, attention.BACKWARD
    for tiles in (attention.Tiles(*t) for t in ATTENTION_FORWARD):
        attention.FORWARD = tiles
        attempt(
            "attention forward", model, str(tuple(vars(tiles).values())), floor_forward,
            lambda: ops.attention_forward(qkv, heads), lambda: error(ops.attention_forward(qkv, heads)[0][:4], out_exact),
        )  # fmt: skip
    attention.FORWARD = before[0]
    out, lse = ops.attention_forward(qkv, heads)
    for tiles in (attention.Tiles(*t) for t in ATTENTION_BACKWARD):
        attention.BACKWARD = tiles
        attempt(
            "attention backward", model, str(tuple(vars(tiles).values())), floor_backward,
            lambda: ops.attention_backward(grad, qkv, out, lse, heads),
            lambda: error(ops.attention_backward(grad, qkv, out, lse, heads)[0][:4], grad_exact),
        )  # fmt: skip
    attention.BACKWARD = before[1]


def norm_lines(model: str, bandwidth: float) -> None:
    batch, tokens, _, width, _ = MODELS[model]
    weight, shift = torch.randn(width, device=HERE), torch.randn(width, device=HERE)
    for residual in (torch.float32, HALF):
        size = 4 if residual == torch.float32 else 2
        z, branch, bias = half(batch, tokens, width).to(residual), half(batch, tokens, width), torch.zeros(width, device=HERE)
        dz, dn = half(batch, tokens, width).to(residual), half(batch, tokens, width)
        name = f"residual {'fp32' if size == 4 else 'bf16'}"
        floor_forward = z.numel() * (2 * size + 4) / bandwidth
        floor_backward = z.numel() * (3 * size + (4 if size == 4 else 2)) / bandwidth

        @torch.compile
        def plain(z: torch.Tensor, branch: torch.Tensor, bias: torch.Tensor, weight: torch.Tensor, shift: torch.Tensor) -> Any:
            total = (z + (branch + bias)).to(z.dtype)
            return total, F.layer_norm(total.float(), (total.shape[-1],), weight, shift, 1e-6).to(HALF)

        own = [t.clone().requires_grad_() for t in (z, branch, bias, weight, shift)]
        attempt(f"norm forward, {name}", model, "torch.compile", floor_forward, lambda own=own, plain=plain: plain(*own))
        outs = plain(*own)
        back = lambda own=own, outs=outs, grads=(dz, dn): torch.autograd.grad(outs, own, grads, retain_graph=True)
        attempt(f"norm backward, {name}", model, "torch.compile", floor_backward, back)
        exact = [t[:4].double().requires_grad_() if t.dim() == 3 else t.double().requires_grad_() for t in (z, branch)]
        total = exact[0] + exact[1]
        total = total + (total.detach().to(residual).double() - total.detach())
        n_exact = F.layer_norm(total, (width,), weight.double(), shift.double(), 1e-6)
        (slope,) = torch.autograd.grad((total, n_exact), exact[:1], (dz[:4].double(), dn[:4].double()))
        ops, before = torch.ops.vitrail, (norm.FORWARD, norm.BACKWARD, norm.PROGRAMS)
        forward = lambda z=z, branch=branch, ops=ops: ops.norm_forward(z, branch, None, None, weight, shift, 1e-6, HALF)
        for rows in (norm.Rows(*r) for r in NORM_FORWARD):
            norm.FORWARD = rows
            check = lambda n_exact=n_exact, forward=forward: error(forward()[1][:4], n_exact)
            attempt(f"norm forward, {name}", model, str(tuple(vars(rows).values())), floor_forward, forward, check)
        norm.FORWARD = before[0]
        total, _, mean, rstd = forward()
        apart = HALF if size == 4 else None
        backward = lambda total=total, mean=mean, rstd=rstd, dz=dz, dn=dn, ops=ops, apart=apart: ops.norm_backward(
            dn, dz, total, None, None, None, weight, mean, rstd, apart, True
        )
        for rows, warps, programs in NORM_BACKWARD:
            norm.BACKWARD, norm.PROGRAMS = norm.Rows(rows, warps), programs
            check = lambda slope=slope, backward=backward: error(backward()[0][:4], slope)
            attempt(f"norm backward, {name}", model, str((rows, warps, programs)), floor_backward, backward, check)
        norm.BACKWARD, norm.PROGRAMS = before[1:]


def gelu_lines(model: str, bandwidth: float) -> None:
    batch, tokens, _, width, hidden = MODELS[model]
    u, dh = half(batch, tokens, hidden), half(batch, tokens, hidden)
    floor_forward, floor_backward = 4 * u.numel() / bandwidth, 6 * u.numel() / bandwidth

    @torch.compile
    def plain(u: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return F.gelu(u + bias, approximate="tanh")

    own = [u.clone().requires_grad_(), torch.zeros(hidden, device=HERE, dtype=HALF, requires_grad=True)]
    attempt("gelu forward", model, "torch.compile", floor_forward, lambda: plain(*own))
    out = plain(*own)
    attempt("gelu backward", model, "torch.compile", floor_backward, lambda: torch.autograd.grad(out, own, dh, retain_graph=True))
    exact = u[:4].double().requires_grad_()
    h_exact = F.gelu(exact, approximate="tanh")
    (slope,) = torch.autograd.grad(h_exact, exact, dh[:4].double())
    ops, before = torch.ops.vitrail, (gelu.FORWARD, gelu.BACKWARD)
    for tile in GELU_FORWARD:
        gelu.FORWARD = gelu.Tile(*tile)
        check = lambda: error(ops.gelu_forward(u, True)[:4], h_exact)
        attempt("gelu forward", model, str(tile), floor_forward, lambda: ops.gelu_forward(u, True), check)
    for tile in GELU_BACKWARD:
        gelu.BACKWARD = gelu.Tile(*tile)
        check = lambda: error(ops.gelu_backward(dh, u, True)[0][:4], slope)
        attempt("gelu backward", model, str(tile), floor_backward, lambda: ops.gelu_backward(dh, u, True), check)
    gelu.FORWARD, gelu.BACKWARD = before
    x, weight, bias = half(batch, tokens, width), half(hidden, width), half(hidden)
    attempt("fc1 with gelu, inference", model, "in the product", 0.0, lambda: gelu.linear_gelu(x, weight, bias))
    attempt("fc1 with gelu, inference", model, "apart", 0.0, lambda: ops.gelu_forward(F.linear(x, weight, bias), True))


def model_lines(model: str) -> None:
    """One forward and backward pass of the whole model under torch.compile: plain, fused, fused with a bfloat16 residual sum."""
    batch = MODELS[model][0]
    net = create_model(model, classes=1000).cuda().train()
    x = torch.randn(batch, 3, 224, 224, device=HERE)
    labels = torch.randint(1000, (batch,), device=HERE)
    for name, choice, residual in (("plain", "plain", "float32"), ("fused", "fused", "float32"), ("fused", "fused", "bfloat16")):
        fuse(net, x.device, choice, residual)  # type: ignore[arg-type]
        torch._dynamo.reset()
        torch.cuda.reset_peak_memory_stats()
        compiled = torch.compile(net)

        def step(compiled: Any = compiled) -> None:
            with torch.autocast("cuda", torch.bfloat16):
                loss = F.cross_entropy(compiled(x), labels)
            loss.backward()
            net.zero_grad()

        attempt("forward and backward", model, f"{name}, residual {residual}", 0.0, step)
        print(f"{model:5s} peak memory {torch.cuda.max_memory_allocated() / 2**30:.1f} GiB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--only", default="attention,norm,gelu,model")
    parser.add_argument("--models", default="B/16,L/16")
    given = parser.parse_args()
    big = torch.randn(1 << 30, device=HERE, dtype=HALF)
    bandwidth = 2 * big.numel() * big.element_size() / ms(lambda: big.clone())  # bytes a millisecond
    del big
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, copy {bandwidth / 1e9:.2f} TB/s", flush=True)
    kinds = {"attention": attention_lines, "norm": norm_lines, "gelu": gelu_lines}
    for model in given.models.split(","):
        for kind in given.only.split(","):
            model_lines(model) if kind == "model" else kinds[kind](model, bandwidth)
            torch.cuda.empty_cache()
    print("\nfastest:")
    for kernel, model in dict.fromkeys((row["kernel"], row["model"]) for row in ROWS):
        best = min((row for row in ROWS if (row["kernel"], row["model"]) == (kernel, model)), key=lambda row: row["ms"])
        print(f"{model:5s} {kernel:30s} {best['layout']:34s} {best['ms']:8.4f} ms  {best['floor_ms'] / best['ms']:.0%} of the floor's rate")
    if given.out:
        given.out.write_text(json.dumps(ROWS, indent=1))


if __name__ == "__main__":
    main()
