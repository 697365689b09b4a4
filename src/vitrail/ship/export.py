"""`export`: a model as ONNX or a torch.export program, compared with the model before it gets its name.

The file is written under a draft name, opened again by the runtime that will run it, and asked
for at least 64 images at several sizes and batches. Only when every logit agrees is it renamed;
otherwise it is deleted and the disagreement is named.
"""

from __future__ import annotations

import copy
import json
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitrail.errors import NumericsError, UsageError, missing_extra, nearest
from vitrail.model.config import ResNetConfig
from vitrail.ship.portable import AnySize, WithPreprocess, any_size_reason, freeze, nearest_sizes
from vitrail.ship.predictor import Predictor
from vitrail.ship.runtimes import OnnxRuntime, Program

__all__ = ["FORMATS", "Exported", "compare", "export"]

FORMATS = ("onnx", "torch-export")
ENDINGS = {"onnx": ".onnx", "torch-export": ".pt2"}
DTYPES = ("fp32", "fp16", "int8")
TOLERANCE = 2e-5  # of the largest logit; a wrong GELU moves them by 2e-5 to 2e-3
BATCHES = (1, 4, 8)
FILE_LIMIT = 1 << 30  # past it the weights of an ONNX file go beside it: a protobuf ends at 2 GiB


@dataclass
class Exported:
    """What was written and how well it agrees with the model."""

    path: Path
    to: str
    dtype: str
    bytes: int
    worst: float  # the largest difference of a logit, as a part of the largest logit
    images: int  # compared
    sizes: list[tuple[int, int]]
    batches: list[int]
    dynamic_size: bool
    preprocess: bool
    notes: list[str] = field(default_factory=list)
    accuracy: dict[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "path": str(self.path)}

    def __str__(self) -> str:
        lines = [f"{self.path}  ({self.bytes / 1e6:.1f} MB, {self.to} {self.dtype})"]
        sizes = ", ".join(f"{h}x{w}" for h, w in self.sizes)
        lines.append(
            f"agrees with the model within {self.worst:.1e} of the largest logit: {self.images} images, {sizes}, batches {self.batches}"
        )
        if self.accuracy:
            a = self.accuracy
            lines.append(
                f"top-1 on {a['images']} images: {a['before']:.2f} % before, {a['after']:.2f} % after; "
                f"{a['agreement']:.2f} % of the answers stay; {a['speed_up']:.2f} times the speed of fp32 on ONNX Runtime here"
            )
        return "\n".join([*lines, *self.notes])


def export(
    model: str | os.PathLike[str] | nn.Module,
    path: str | os.PathLike[str],
    *,
    to: str | None = None,
    dtype: str = "fp32",
    preprocess: bool = False,
    fixed_size: bool = False,
    tolerance: float = TOLERANCE,
    data: Any = None,
    split: str | None = None,
    images: int = 512,
    bound: float = 1.0,
    check: bool = True,
) -> Exported:
    """Write `model` to `path` as `to` ("onnx", "torch-export"; None: by the ending), verified.

    dtype: "fp32"; "fp16" and "int8" (ONNX) need `data`, labelled images: the weights are calibrated
        on some of them, top-1 is measured before and after on others, and a loss of more than
        `bound` points is refused.
    preprocess: the file takes decoded uint8 images (N, H, W, 3) of any size, and resizes and scales itself.
    fixed_size: the model's own image size only; without it, any size the model can take.
    """
    predictor = _predictor(model)
    target, kind = Path(path), _kind(Path(path), to)
    if dtype not in DTYPES:
        raise UsageError(f"no dtype {dtype!r}{nearest(dtype, DTYPES)}.")
    if dtype != "fp32" and kind != "onnx":
        raise UsageError(f"{dtype} is written as ONNX only.", hint="--to onnx")
    if dtype != "fp32" and data is None:
        raise UsageError(f"{dtype} needs labelled images to be measured on.", hint="--data photos/ (or builtin:fashion, …)")
    if not target.parent.is_dir():
        raise UsageError(f"the folder {target.parent} does not exist.", hint=f"mkdir -p '{target.parent}'")
    reason = any_size_reason(predictor.model)
    dynamic = not fixed_size and reason is None and not preprocess
    notes = [f"one image size only: {reason}"] if reason and not fixed_size and not preprocess else []
    draft = target.with_name(f".{target.stem}.{os.getpid()}.draft{ENDINGS[kind]}")
    try:
        program = trace(predictor, dynamic=dynamic, preprocess=preprocess)
        write(program, draft, kind, metadata(predictor, preprocess))
        result = Exported(target, kind, dtype, 0, 0.0, 0, [], [], dynamic, preprocess, notes)
        if check:
            compare(draft, kind, predictor, result, dynamic=dynamic, tolerance=tolerance)
        if dtype != "fp32":
            from vitrail.ship.quantise import lower

            lower(draft, predictor, result, data=data, split=split, images=images, bound=bound)
        result.bytes = sum(file.stat().st_size for file in _files_of(draft))
        for file in _files_of(draft):
            os.replace(file, target.with_name(file.name.replace(draft.name, target.name)))
    finally:
        for file in _files_of(draft):
            file.unlink(missing_ok=True)
    return result


def _files_of(draft: Path) -> list[Path]:
    """The file, and the weights beside it where they are too large for one."""
    return [file for file in (draft, draft.with_name(draft.name + ".data")) if file.exists()]


def _predictor(model: str | os.PathLike[str] | nn.Module) -> Predictor:
    if not isinstance(model, nn.Module):
        from vitrail.weights.load import load_model

        model = load_model(model)
    return Predictor(model.float(), device="cpu")


def _kind(path: Path, to: str | None) -> str:
    if to is not None and to not in FORMATS:
        raise UsageError(f"cannot export to {to!r}{nearest(to, FORMATS)}.", hint="other weight formats: vitrail convert")
    known = {ending: kind for kind, ending in ENDINGS.items()}
    kind = to or known.get(path.suffix)
    if kind is None:
        raise UsageError(f"{path}: the ending does not say which format.", hint="end it in .onnx or .pt2, or pass --to")
    return kind


def metadata(predictor: Predictor, preprocess: bool) -> dict[str, str]:
    """What the file says about itself: class names, the view it expects (or contains), the card."""
    return {
        "vitrail.name": predictor.name,
        "vitrail.classes": json.dumps(list(predictor.classes), ensure_ascii=False),
        "vitrail.preprocess": json.dumps(predictor.preprocess.to_dict()),
        "vitrail.preprocess_included": json.dumps(preprocess),
        "vitrail.card": json.dumps({**predictor.card.to_dict(), "hashes": {}}, ensure_ascii=False),
    }


# ---------------------------------------------------------------- writing


def trace(predictor: Predictor, *, dynamic: bool, preprocess: bool) -> torch.export.ExportedProgram:
    """The model as a graph of torch operations with named dynamic dimensions."""
    from torch.export import Dim

    plain = freeze(copy.deepcopy(predictor.model).requires_grad_(False).eval())
    batch = Dim("batch", min=1, max=1 << 16)
    if preprocess:
        graph: nn.Module = WithPreprocess(plain, predictor.preprocess)
        example = torch.zeros(3, 61, 83, 3, dtype=torch.uint8)
        shapes: dict[int, Any] = {0: batch, 1: Dim("height", min=4, max=1 << 15), 2: Dim("width", min=4, max=1 << 15)}
        return _traced(graph.eval(), example, shapes)
    config: Any = plain.config
    size = tuple(config.image_size)
    shapes = {0: batch}
    graph = plain
    if dynamic:
        graph = AnySize(plain)
        size = nearest_sizes(config, 5)[2]  # not square, not the model's own: nothing can be taken for a constant
        least = config.stride + 1 if isinstance(config, ResNetConfig) else 2
        dims = Dim("height", min=least, max=1 << 13), Dim("width", min=least, max=1 << 13)
        shapes |= {axis: step * dim if step > 1 else dim for axis, step, dim in zip((2, 3), graph.step, dims)}
    return _traced(graph.eval(), torch.zeros(3, config.channels, *size), shapes)


def _traced(graph: nn.Module, example: Tensor, shapes: dict[int, Any]) -> torch.export.ExportedProgram:
    try:
        with quiet(), torch.no_grad():
            return torch.export.export(graph, (example,), dynamic_shapes=(shapes,), strict=False)
    except torch._dynamo.exc.UserError as error:
        why = str(error).strip().splitlines()[0]
        raise UsageError(
            f"torch {torch.__version__} cannot trace this model with free sizes ({why}).", hint="--fixed-size, or torch 2.13 and newer"
        ) from error


@contextmanager
def quiet() -> Iterator[None]:
    """The exporter warns about packages we do not use, and about its own insides."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "torch.onnx._internal.exporter", "onnxscript", "onnx_ir")]
    loggers.append(logging.getLogger("torch.onnx._internal.exporter._registration"))
    before = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, before):
            logger.setLevel(level)


def write(program: torch.export.ExportedProgram, draft: Path, kind: str, said: dict[str, str]) -> None:
    if kind == "torch-export":
        with quiet():
            torch.export.save(program, str(draft), extra_files=said)
        return
    try:
        import onnxscript  # noqa: F401
    except ImportError:
        raise missing_extra("onnxscript", "export", "Writing ONNX") from None
    with quiet():
        written: Any = torch.onnx.export(
            program, dynamo=True, optimize=False, verbose=False, input_names=["images"], output_names=["logits"], opset_version=20
        )
    import onnx_ir

    model = written.model
    model.metadata_props.update(said)
    model.producer_name = "vitrail"
    axes: Sequence[str] = ("batch", "height", "width")
    taken = model.graph.inputs[0]
    names = iter(axes)
    taken.shape = onnx_ir.Shape([side if isinstance(side, int) else next(names) for side in taken.shape])
    large = sum(int(np.prod(v.shape)) for v in model.graph.initializers.values() if v.shape) * 4 > FILE_LIMIT
    written.save(str(draft), external_data=large)


# ---------------------------------------------------------------- checking


def compare(draft: Path, kind: str, predictor: Predictor, result: Exported, *, dynamic: bool, tolerance: float) -> None:
    """The file's logits against the model's, for every size and batch; raises where one is off."""
    runner: Callable[[np.ndarray], np.ndarray] = OnnxRuntime(draft) if kind == "onnx" else Program(draft)
    config: Any = predictor.model.config
    if result.preprocess:
        sizes, batches = [(61, 83), (40, 52), (200, 120), (224, 224), (33, 301)], BATCHES
    elif dynamic:
        sizes, batches = nearest_sizes(config, 5), BATCHES
    else:
        sizes, batches = [tuple(config.image_size)], (1, 8, 55)
    for size in sizes:
        reference = reference_for(predictor, size, result)
        for batch in batches:
            images = example(batch, size, config.channels, result.preprocess)
            expected, got = reference(images), runner(images)
            worst = float(np.abs(got - expected).max() / max(np.abs(expected).max(), 1e-12)) if np.isfinite(got).all() else float("inf")
            if got.shape != expected.shape or not worst <= tolerance:
                raise NumericsError(
                    f"the exported {kind} file differs from the model by {worst:.1e} of its largest logit "
                    f"(allowed {tolerance:.0e}) at batch {batch}, {size[0]}x{size[1]}; it was deleted.",
                    hint="--fixed-size, or another torch or ONNX Runtime version; --tolerance if you know why",
                )
            result.worst = max(result.worst, worst)
            result.images += batch
    result.sizes, result.batches = list(sizes), list(batches)  # type: ignore[arg-type]


def reference_for(predictor: Predictor, size: tuple[int, int], result: Exported) -> Callable[[np.ndarray], np.ndarray]:
    """The model itself, at this size, by the way evaluation takes."""
    if result.preprocess:
        return lambda images: predictor.forward(np.stack([predictor.pixels(image) for image in images]))
    model = copy.deepcopy(predictor.model)
    if tuple(model.config.image_size) != tuple(size):  # type: ignore[union-attr, arg-type]
        model.resize(size)  # type: ignore[operator]

    def run(images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return model(torch.from_numpy(images)).float().numpy()

    return run


def example(batch: int, size: tuple[int, int], channels: int, pixels: bool) -> np.ndarray:
    """Images with structure at every scale, the same on every machine."""
    rng = np.random.default_rng(size[0] * 10_007 + size[1] * 101 + batch)
    coarse = rng.random((batch, -(-size[0] // 8), -(-size[1] // 8), 3 if pixels else channels))
    smooth = coarse.repeat(8, axis=1).repeat(8, axis=2)[:, : size[0], : size[1]]
    mixed = 0.7 * smooth + 0.3 * rng.random((batch, *size, smooth.shape[3]))
    if pixels:
        return (255 * mixed).astype(np.uint8)
    return np.ascontiguousarray((2 * mixed - 1).astype(np.float32).transpose(0, 3, 1, 2))
