"""How sure a number is: intervals for proportions, for any statistic of images, and for a few seeds.

Three kinds of uncertainty, three functions. Which images happened to be in the test set:
`wilson` (a proportion, closed form) or `bootstrap` (anything else). Which seed happened to
be used: `over_seeds` (Student's t) and `difference` (Welch's t for two groups of seeds).
Bootstrap draws are keyed like every other draw, so an interval is reproducible to the bit.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from statistics import NormalDist, fmean, stdev

import numpy as np

from vitrail.kernels.draws import key, uniform_numpy

__all__ = ["Interval", "bootstrap", "bootstraps", "difference", "over_seeds", "student_quantile", "wilson"]


@dataclass(frozen=True)
class Interval:
    """A value between `low` and `high` at the stated confidence; `how` names the method."""

    value: float
    low: float
    high: float
    confidence: float = 0.95
    how: str = ""

    def to_dict(self) -> dict[str, float | str | None]:
        body = {"value": self.value, "low": self.low, "high": self.high, "confidence": self.confidence}
        return {name: None if math.isnan(number) else number for name, number in body.items()} | {"how": self.how}

    def percent(self, digits: int = 2) -> str:
        """'81.30 % [80.95, 81.64]'"""
        if math.isnan(self.low):
            return f"{100 * self.value:.{digits}f} % [no interval: {self.how}]"
        return f"{100 * self.value:.{digits}f} % [{100 * self.low:.{digits}f}, {100 * self.high:.{digits}f}]"


def wilson(hits: int, n: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval of hits / n: the p at which the observed hits are just not surprising."""
    if n == 0:
        return Interval(math.nan, math.nan, math.nan, confidence, "wilson, n = 0")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    p = hits / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    low = 0.0 if hits == 0 else max(0.0, middle - half)  # exactly: rounding must not move the ends
    high = 1.0 if hits == n else min(1.0, middle + half)
    return Interval(p, low, high, confidence, "wilson")


def bootstrap(statistic: Callable[[np.ndarray], float], n: int, *, draws: int = 1000, seed: int = 0, confidence: float = 0.95) -> Interval:
    """Percentile bootstrap: `statistic(rows)` of n images drawn with replacement, `draws` times.

    `statistic` takes the chosen row numbers, so it may weigh, pair or group rows as it likes.
    """
    return bootstraps(lambda rows: [statistic(rows)], n, draws=draws, seed=seed, confidence=confidence)[0]


def bootstraps(
    statistics: Callable[[np.ndarray], Sequence[float]], n: int, *, draws: int = 1000, seed: int = 0, confidence: float = 0.95
) -> list[Interval]:
    """The same for several statistics of the same draws."""
    every = np.arange(n)
    if n == 0:
        return [Interval(math.nan, math.nan, math.nan, confidence, "bootstrap, n = 0") for _ in statistics(every)]
    values = np.stack(
        [statistics((uniform_numpy(key(seed, "bootstrap", draw), every, 1)[:, 0] * n).astype(np.int64)) for draw in range(draws)]
    )
    how = f"bootstrap, {draws} draws, seed {seed}"
    found = []
    for value, column in zip(statistics(every), values.T):
        known = column[~np.isnan(column)]
        low, high = np.quantile(known, [0.5 - confidence / 2, 0.5 + confidence / 2]) if len(known) else (math.nan, math.nan)
        found.append(Interval(float(value), float(low), float(high), confidence, how))
    return found


def over_seeds(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean of a few runs with Student's t interval; one run has no interval, and says so."""
    if len(values) < 2:
        value = float(values[0]) if values else math.nan
        return Interval(value, math.nan, math.nan, confidence, f"n = {len(values)} run, spread unknown")
    mean, half = fmean(values), student_quantile(0.5 + confidence / 2, len(values) - 1)
    half *= stdev(values) / math.sqrt(len(values))
    return Interval(mean, mean - half, mean + half, confidence, f"Student t over {len(values)} runs")


def difference(a: Sequence[float], b: Sequence[float], confidence: float = 0.95) -> Interval:
    """mean(a) - mean(b) of two independent groups of runs, by Welch's t."""
    gap = fmean(a) - fmean(b)
    if len(a) < 2 or len(b) < 2:
        return Interval(gap, math.nan, math.nan, confidence, f"n = {len(a)} and {len(b)} runs, spread unknown")
    va, vb = stdev(a) ** 2 / len(a), stdev(b) ** 2 / len(b)
    if va + vb == 0:
        return Interval(gap, gap, gap, confidence, "Welch t, no spread")
    df = (va + vb) ** 2 / (va**2 / (len(a) - 1) + vb**2 / (len(b) - 1))
    half = student_quantile(0.5 + confidence / 2, df) * math.sqrt(va + vb)
    return Interval(gap, gap - half, gap + half, confidence, f"Welch t, {df:.1f} degrees of freedom")


@lru_cache(maxsize=64)
def student_quantile(p: float, df: float) -> float:
    """The p-quantile (p > 0.5) of Student's t with df degrees of freedom.

    With t = sqrt(df) tan(a) the distribution is the integral of cos(a)^(df - 1), which is
    smooth on a finite interval: Simpson's rule and bisection reach ten digits.
    """

    def tail(angle: float) -> float:
        steps = 400
        a = np.linspace(0.0, angle, steps + 1)
        weights = np.ones(steps + 1)
        weights[1:-1:2], weights[2:-1:2] = 4.0, 2.0
        return float((weights * np.cos(a) ** (df - 1)).sum() * angle / steps / 3)

    whole = math.exp(math.lgamma(df / 2) - math.lgamma((df + 1) / 2)) * math.sqrt(math.pi)
    low, high = 0.0, math.pi / 2
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if 0.5 + tail(middle) / whole < p else (low, middle)
    return math.sqrt(df) * math.tan(low)
