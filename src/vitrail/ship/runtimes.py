"""Running an exported file: ONNX Runtime, OpenVINO, torch.export. Arrays in, float32 logits out."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitrail.errors import CheckpointError, missing_extra

__all__ = ["OnnxRuntime", "OpenVino", "Program", "threads"]


def threads() -> int:
    """The cores a runtime may use: what torch was told."""
    return torch.get_num_threads()


class OnnxRuntime:
    """ONNX Runtime on the CPU. `metadata` holds class names and the view."""

    name = "onnxruntime"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        try:
            import onnxruntime
        except ImportError:
            raise missing_extra("onnxruntime", "export", "Running ONNX") from None
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads()
        options.log_severity_level = 3
        try:
            self.session: Any = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        except Exception as error:
            raise CheckpointError(
                f"{path}: ONNX Runtime cannot open it ({' '.join(str(error).split())[:200]}).", hint="export it again"
            ) from None
        self.input: str = self.session.get_inputs()[0].name
        self.metadata: dict[str, str] = dict(self.session.get_modelmeta().custom_metadata_map)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return np.asarray(self.session.run(None, {self.input: images})[0], np.float32)


class OpenVino:
    """OpenVINO on the CPU. `precision` "bf16" or "f32" is a hint: bf16 needs a CPU that has it."""

    def __init__(self, path: str | os.PathLike[str], precision: str = "f32") -> None:
        try:
            import openvino
        except ImportError:
            raise missing_extra("openvino", "export", "Running on OpenVINO") from None
        self.name = f"openvino {precision}"
        core = openvino.Core()
        settings = {
            "INFERENCE_PRECISION_HINT": precision,
            "INFERENCE_NUM_THREADS": threads(),
            "PERFORMANCE_HINT": "LATENCY",
            "NUM_STREAMS": 1,
        }
        self.compiled: Any = core.compile_model(core.read_model(str(path)), "CPU", settings)

    def __call__(self, images: np.ndarray) -> np.ndarray:
        return np.array(self.compiled([images])[0], np.float32)


class Program:
    """A torch.export program (.pt2)."""

    name = "torch.export"

    def __init__(self, path: str | os.PathLike[str]) -> None:
        names = ("vitrail.name", "vitrail.classes", "vitrail.preprocess", "vitrail.preprocess_included", "vitrail.card")
        self.metadata = dict.fromkeys(names, "")
        self.module = torch.export.load(str(Path(path)), extra_files=self.metadata).module()

    def __call__(self, images: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            return self.module(torch.from_numpy(images)).float().numpy()
