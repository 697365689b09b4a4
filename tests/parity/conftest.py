"""Tests against timm and transformers themselves (extra `parity`): `pytest -m parity tests/parity`.

A torchvision from PyPI beside a CPU build of torch fails on import: its compiled operators need
CUDA libraries. timm wants the module, not those operators, so two of them are declared here.
"""

import importlib
import importlib.util
import sys

import torch

KEPT = []  # a library's declarations live as long as it does


def torchvision_that_imports():
    if importlib.util.find_spec("torchvision") is None:
        return
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        for name in [name for name in sys.modules if name.split(".")[0] == "torchvision"]:
            del sys.modules[name]
        library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(library)
        importlib.import_module("torchvision")


torchvision_that_imports()
