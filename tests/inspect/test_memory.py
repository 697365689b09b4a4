"""Memory of the process while looking inside, in proportion to what a list of all attention weights would take."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "inspect_memory.py"
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc and Linux's ru_maxrss")


def measured(*arguments: str) -> dict:
    command = [sys.executable, str(SCRIPT), "--json", *arguments]
    return json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)[0]


def test_looking_at_everything_never_holds_all_weights_of_all_layers():
    """12 layers of 1,601 tokens: 235 MB of weights; the statistics, the maps and both rollouts together stay under a third."""
    row = measured("--model", "mu/8@320", "--depth", "12", "--chunk-mb", "8", "--ways", "everything")
    assert row["all_weights_mb"] > 230
    assert row["above_model_mb"] < row["all_weights_mb"] / 3


@pytest.mark.scorecard
@pytest.mark.parametrize("way", ["statistics", "rollout"])
def test_twenty_more_layers_cost_less_than_a_fifth_of_their_weights(way):
    shallow, deep = (measured("--model", "mu/8@384", "--depth", depth, "--ways", way) for depth in ("4", "24"))
    assert deep["above_model_mb"] - shallow["above_model_mb"] < (deep["all_weights_mb"] - shallow["all_weights_mb"]) / 5
