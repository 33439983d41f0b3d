"""Means with 95 % intervals."""

import pytest

from tiltyard.train import interval
from tiltyard.train.interval import Interval


def test_a_rate_has_wilsons_interval():
    """45 of 200: the interval of a worked example (0.1728 to 0.2876)."""
    found = interval.share(45, 200)
    assert (found.mean, found.n) == (0.225, 200)
    assert (found.low, found.high) == (pytest.approx(0.1726, abs=2e-4), pytest.approx(0.2877, abs=2e-4))


@pytest.mark.parametrize(("successes", "low", "high"), [(0, 0.0, 0.2775), (10, 0.7225, 1.0)])
def test_a_rate_of_none_or_all_stays_between_0_and_1(successes, low, high):
    """No success in ten does not prove that there is never one."""
    found = interval.share(successes, 10)
    assert (found.low, found.high) == (pytest.approx(low, abs=1e-4), pytest.approx(high, abs=1e-4))


def test_nothing_played_has_no_rate():
    """An empty set has no mean, rather than 0."""
    assert interval.share(0, 0) == interval.mean([]) == Interval(None, None, None, 0)


def test_one_value_has_a_mean_and_no_interval():
    """One value says nothing about spread."""
    assert interval.mean([2.5]) == Interval(2.5, None, None, 1)


def test_a_mean_has_students_interval():
    """1, 2, 3: deviation 1, t(2) = 4.3027, so 2 ± 4.3027 / sqrt(3)."""
    found = interval.mean([1.0, 2.0, 3.0])
    assert (found.mean, found.low, found.high) == (
        2.0,
        pytest.approx(-0.48414, abs=1e-4),
        pytest.approx(4.48414, abs=1e-4),
    )


@pytest.mark.parametrize(
    ("freedom", "table"), [(1, 12.7062), (2, 4.3027), (3, 3.1824), (4, 2.7764), (5, 2.5706), (10, 2.2281), (199, 1.972)]
)
def test_students_t_agrees_with_the_tables(freedom, table):
    """The expansion is within 0.004 of the printed value from three degrees of freedom on."""
    assert interval.t95(freedom) == pytest.approx(table, abs=0.004)


@pytest.mark.parametrize(
    ("one", "other", "above"),
    [
        (Interval(0.8, 0.7, 0.9, 50), Interval(0.4, 0.3, 0.5, 50), True),
        (Interval(0.6, 0.45, 0.75, 50), Interval(0.4, 0.3, 0.5, 50), False),
        (Interval(0.8, None, None, 1), Interval(0.4, 0.3, 0.5, 50), False),
    ],
)
def test_above_means_that_the_intervals_are_apart(one, other, above):
    """A higher mean alone is not above."""
    assert one.above(other) is above


@pytest.mark.parametrize("values", [[1e308, 1e308], [1.7e308, -1.7e308, 0.0], [1e308]])
def test_the_mean_of_values_near_the_largest_float_has_no_interval(values):
    """Rewards are finite, however large; their sum need not be, and no evaluation stops for it."""
    found = interval.mean(values)
    assert found.mean == pytest.approx(sum(value / len(values) for value in values))
    assert (found.low, found.high, found.n) == (None, None, len(values))
