"""Lets the tests of this room import `photos`, their small pictures."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
