"""What a few seeds can say: a mean, its spread, and a paired comparison over common seeds."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

CONFIDENCE = 0.95
SMALLEST_DEVIATION = 1e-12
"""Below this a deviation between fractions is rounding: a t statistic would divide by nothing."""


@dataclass(frozen=True)
class Interval:
    low: float
    high: float

    def __contains__(self, value: float) -> bool:
        return self.low <= value <= self.high


@dataclass(frozen=True)
class Spread:
    """A mean over seeds. One seed has no deviation; numbers that are not finite have no mean."""

    count: int
    mean: float | None
    deviation: float | None = None
    interval: Interval | None = None


@dataclass(frozen=True)
class PairedDifference:
    """One method minus another on the same seeds. None where there are too few pairs."""

    pairs: int
    mean: float | None = None
    interval: Interval | None = None
    p_value: float | None = None


FRACTION, DISTANCE = Interval(0.0, 1.0), Interval(0.0, math.inf)


def spread(values: Sequence[float], within: Interval | None = None) -> Spread:
    """Mean, sample standard deviation and Student's t interval of the mean. What can only lie
    `within` bounds has an interval that ends there: few seeds make Student's wider than that."""
    with np.errstate(all="ignore"):
        mean = float(np.mean(values))
        deviation = float(np.std(values, ddof=1)) if len(values) > 1 else math.nan
    if not math.isfinite(mean):
        return Spread(len(values), None)
    if not math.isfinite(deviation):
        return Spread(len(values), mean)
    found = _t_interval(mean, deviation, len(values))
    if within is not None:
        found = Interval(max(found.low, within.low), min(found.high, within.high))
    return Spread(len(values), mean, deviation, found)


def paired_difference(ours: Mapping[int, float], theirs: Mapping[int, float]) -> PairedDifference:
    """Compare two methods, each a mapping from seed to result, on the seeds they share."""
    seeds = sorted(ours.keys() & theirs.keys())
    if len(seeds) < 2:
        return PairedDifference(len(seeds))
    differences = spread([ours[seed] - theirs[seed] for seed in seeds])
    return PairedDifference(
        len(seeds), differences.mean, differences.interval, _p_value(differences)
    )


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """The p-values of several comparisons, corrected for their number by Holm's step-down: the
    smallest of n times n, the next times n - 1, none below one that comes before it."""
    known = sorted((value, place) for place, value in enumerate(p_values) if value is not None)
    corrected: list[float | None] = [None] * len(p_values)
    least = 0.0
    for rank, (value, place) in enumerate(known):
        least = max(least, min(1.0, (len(known) - rank) * value))
        corrected[place] = least
    return corrected


def _t_interval(mean: float, deviation: float, count: int) -> Interval:
    from scipy import stats  # here: it takes a second to import

    quantile = float(stats.t.ppf((1 + CONFIDENCE) / 2, count - 1))
    half = quantile * deviation / math.sqrt(count)
    return Interval(mean - half, mean + half)


def _p_value(differences: Spread) -> float | None:
    """Two-sided paired t-test. None where all differences are equal: t is then undefined."""
    mean, deviation = differences.mean, differences.deviation
    if mean is None or deviation is None or deviation < SMALLEST_DEVIATION:
        return None
    statistic = abs(mean) / (deviation / math.sqrt(differences.count))
    from scipy import stats

    return float(2 * stats.t.sf(statistic, differences.count - 1))
