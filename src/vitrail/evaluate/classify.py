"""`score`, for training; `evaluate` follows."""

from vitrail.evaluate.score import score

__all__ = ["score"]
