"""Means with 95 % confidence intervals."""

import math
import statistics
import sys
from collections.abc import Sequence
from dataclasses import dataclass

Z95 = 1.959963984540054
"""The 97.5 % point of the normal distribution."""


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and where it lies with 95 % confidence.

    Attributes:
        mean: None when there was nothing to average.
        low: The lower end; None when the values say nothing about their spread.
        high: The upper end, as `low`.
        n: How many values there were.
    """

    mean: float | None
    low: float | None
    high: float | None
    n: int

    def __str__(self) -> str:
        if self.mean is None:
            return "none"
        if self.low is None or self.high is None:
            return f"{self.mean:.3f} (n={self.n})"
        return f"{self.mean:.3f} [{self.low:.3f}, {self.high:.3f}] (n={self.n})"

    def above(self, other: "Interval") -> bool:
        """True when this whole interval lies above the whole of the other."""
        return self.low is not None and other.high is not None and self.low > other.high


def share(successes: float, n: float) -> Interval:
    """The interval of a rate: Wilson's score interval (Wilson 1927, JASA 22:209-212), sound near 0 and 1."""
    if n == 0:
        return Interval(None, None, None, 0)
    rate, square = successes / n, Z95 * Z95
    centre = (rate + square / (2 * n)) / (1 + square / n)
    half = Z95 / (1 + square / n) * math.sqrt(rate * (1 - rate) / n + square / (4 * n * n))
    # At 0 and n successes the ends are exactly 0 and 1; the formula misses them by rounding.
    low = 0.0 if successes == 0 else centre - half
    high = 1.0 if successes == n else centre + half
    return Interval(rate, low, high, int(n))


def share_of_tasks(rates: Sequence[float], episodes: int) -> Interval:
    """The interval of a mean of rates, one for each task, whose episodes are no independent draws.

    Wilson's interval with the effective number of episodes, clustered by task: the number that would give the
    variance between the tasks if they were independent (Korn and Graubard 1998, Survey Methodology 24:193-201),
    from the number of tasks up to that of the episodes. With one episode a task it is that of `share`.

    Args:
        rates: Between 0 and 1.
        episodes: How many episodes they are of, in all.
    """
    n = len(rates)
    if n == 0:
        return Interval(None, None, None, 0)
    centre = statistics.fmean(rates)
    effective = float(n)
    if n > 1 and (spread := statistics.variance(rates)) > 0:
        # Few tasks say little about their own spread: the quantile of Student's t, as for any estimated variance.
        effective = centre * (1 - centre) * n / spread * (Z95 / t95(n - 1)) ** 2
    effective = min(max(effective, n), max(episodes, n))
    found = share(centre * effective, effective)
    return Interval(centre, found.low, found.high, n)


def mean(values: Sequence[float]) -> Interval:
    """The interval of a mean, by Student's t; one value has none, nor have values near the largest float."""
    n = len(values)
    if n == 0:
        return Interval(None, None, None, 0)
    if max(map(abs, values)) > sys.float_info.max / (16 * n):
        return Interval(math.fsum(value / n for value in values), None, None, n)
    centre = statistics.fmean(values)
    if n == 1:
        return Interval(centre, None, None, 1)
    half = t95(n - 1) * statistics.stdev(values) / math.sqrt(n)
    return Interval(centre, centre - half, centre + half, n)


def t95(freedom: int) -> float:
    """The 97.5 % point of Student's t: exact for 1 and 2, within 0.004 from 3 (Abramowitz and Stegun 26.7.5)."""
    if freedom == 1:
        return math.tan(math.pi * 0.475)
    if freedom == 2:
        return 0.95 * math.sqrt(2 / (0.975 * 0.025 * 4))
    z, v = Z95, freedom
    terms = (
        (z**3 + z) / (4 * v),
        (5 * z**5 + 16 * z**3 + 3 * z) / (96 * v**2),
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / (384 * v**3),
        (79 * z**9 + 776 * z**7 + 1482 * z**5 - 1920 * z**3 - 945 * z) / (92160 * v**4),
    )
    return z + sum(terms)
