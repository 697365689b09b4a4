"""The kernels run on the GPU where there is one, otherwise on the CPU under Triton's interpreter (extra `kernels-test`)."""

import importlib.util
import os

import pytest
import torch

if importlib.util.find_spec("triton") and not torch.cuda.is_available():
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before anything imports triton

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


@pytest.fixture
def here():
    return HERE


def error(value, exact):
    """Relative distance in float64."""
    value, exact = value.double().cpu(), exact.double().cpu()
    return ((value - exact).norm() / exact.norm().clamp_min(1e-30)).item()
