"""Measuring: every number with its denominator. `vitrail.evaluate(model, data)` is the verb."""

import sys

from vitrail import Room

sys.modules[__name__].__class__ = Room
