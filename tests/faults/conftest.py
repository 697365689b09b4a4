"""Lets the rows about data import `photos`, the small pictures of tests/data; and gives the rows about
serving a real `vitrail serve` (the fixtures of tests/ship/conftest.py)."""

import importlib.util
import sys
from pathlib import Path

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS / "data"))

_spec = importlib.util.spec_from_file_location("ship_conftest", TESTS / "ship" / "conftest.py")
_ship = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(_ship)
weights, server, start = _ship.weights, _ship.server, _ship.start
