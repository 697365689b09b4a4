"""Looking inside a model. `vitrail.inspect(model, images)` gives everything at once."""

import sys

from vitrail import Room

sys.modules[__name__].__class__ = Room
