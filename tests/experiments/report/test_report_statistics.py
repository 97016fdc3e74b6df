"""Intervals and tests against SciPy's own."""

import math

import numpy as np
import pytest
from scipy import stats

from evclplus.experiments.report.statistics import (
    FRACTION,
    Interval,
    Spread,
    holm,
    paired_difference,
    spread,
)

SAMPLES = [[0.91, 0.95], [0.971, 0.984, 0.979], [0.2, 0.9, 0.5, 0.4, 0.7]]


@pytest.mark.parametrize("values", SAMPLES)
def test_interval_is_students(values: list[float]) -> None:
    expected = stats.t.interval(0.95, len(values) - 1, np.mean(values), stats.sem(values))
    found = spread(values)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx(expected, rel=1e-12)
    assert found.deviation == pytest.approx(stats.tstd(values), rel=1e-12)
    assert found.mean == pytest.approx(math.fsum(values) / len(values), rel=1e-12)


@pytest.mark.parametrize("ours", SAMPLES)
def test_paired_difference_is_scipys_on_common_seeds(ours: list[float]) -> None:
    random = np.random.default_rng(3)
    theirs = [value + float(random.normal(0.01, 0.02)) for value in ours]
    expected = stats.ttest_rel(ours, theirs)
    interval = expected.confidence_interval(0.95)
    # A seed only one side has must not count; nor may the order of the seeds.
    found = paired_difference(
        {**dict(enumerate(ours)), 77: 0.0}, dict(reversed([*enumerate(theirs), (99, 1.0)]))
    )
    assert found.pairs == len(ours)
    assert found.p_value == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.interval is not None
    assert (found.interval.low, found.interval.high) == pytest.approx(interval, rel=1e-9)
    assert found.mean == pytest.approx(np.mean(np.subtract(ours, theirs)), rel=1e-9)


def test_one_seed_has_no_spread() -> None:
    assert spread([0.9]) == Spread(count=1, mean=0.9, deviation=None, interval=None)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_numbers_that_are_not_finite_have_no_mean(bad: float) -> None:
    assert spread([0.5, bad, 0.7]) == Spread(count=3, mean=None)
    assert spread([math.inf, -math.inf]).mean is None


@pytest.mark.parametrize("theirs", [{}, {5: 0.9}, {0: 0.9, 6: 0.8}])
def test_fewer_than_two_common_seeds_give_no_difference(theirs: dict[int, float]) -> None:
    found = paired_difference({0: 0.8, 1: 0.9}, theirs)
    assert found.pairs == len(theirs.keys() & {0, 1})
    assert found.mean is None
    assert found.interval is None
    assert found.p_value is None


def test_equal_differences_have_no_p_value() -> None:
    found = paired_difference({0: 0.91, 1: 0.81, 2: 0.71}, {0: 0.90, 1: 0.80, 2: 0.70})
    assert found.mean == pytest.approx(0.01)
    assert found.p_value is None


def test_an_interval_of_a_fraction_ends_at_nought_and_one() -> None:
    values = [0.80, 0.87]
    wide = spread(values)
    assert wide.interval is not None
    assert wide.interval.high > 1  # two seeds say that little
    bounded = spread(values, FRACTION)
    assert bounded.interval == Interval(wide.interval.low, 1.0)
    assert (bounded.mean, bounded.deviation) == (wide.mean, wide.deviation)


def test_holm_by_hand() -> None:
    # Sorted 0.01, 0.02, 0.03 times 3, 2, 1; none below one before it; None stays.
    assert holm([0.03, None, 0.01, 0.02]) == pytest.approx([0.04, None, 0.03, 0.04])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([]) == []
