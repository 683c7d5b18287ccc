"""Bounds of a distribution that is counted batch by batch."""

import numpy as np
import pytest

from tests.helpers import numbers
from tvm_passes.quantize.histogram import BINS, METHODS, Histogram


def counted(*batches):
    histogram = Histogram()
    for batch in batches:
        histogram.add(batch, float(np.abs(batch).max()))
    return histogram


def squared_error(values, bound):
    step = bound / 127
    return np.square(np.rint(values / step).clip(-127, 127) * step - values).mean()


def test_its_range_grows_and_nothing_is_lost():
    batches = [numbers(1000, seed=seed) * 10.0**seed for seed in range(4)]
    histogram = counted(*batches)
    assert histogram.batches == 4 and histogram.counts.sum() == 4000
    assert histogram.maximum == np.float32(max(np.abs(batch).max() for batch in batches))
    assert histogram.maximum <= histogram.limit < 2 * histogram.maximum
    expected = np.histogram(np.abs(np.concatenate(batches)), BINS, (0, histogram.limit))[0]
    assert np.abs(np.cumsum(histogram.counts) - np.cumsum(expected)).max() <= 2  # on the border of two bins


@pytest.mark.parametrize("method", METHODS)
def test_zeros(method):
    assert counted(np.zeros(5)).bound(method) == 0
    assert counted(np.zeros(5), np.float32([0, 2])).bound(method) == pytest.approx(2, rel=1e-3)


@pytest.mark.parametrize("method", METHODS)
def test_of_few_values_all_are_inside(method):
    assert counted(np.linspace(-3, 3, 1001)).bound(method) == pytest.approx(3, rel=0.01)


def test_maximum_and_percentile():
    values = np.abs(numbers(200_000))
    assert counted(values).bound("maximum") == values.max()
    assert counted(values).bound("percentile") == pytest.approx(np.quantile(values, 0.9999), rel=0.01)


def test_least_squares_are_least():
    """Of a distribution with long tails, no other bound is better."""
    values = numbers(100_000) * np.abs(numbers(100_000, seed=1)) ** 2
    found = squared_error(values, counted(values).bound("mse"))
    others = [squared_error(values, share * np.abs(values).max()) for share in np.linspace(0.05, 1, 60)]
    assert found <= 1.01 * min(others) and found < 0.9 * others[-1]


def test_entropy_cuts_a_lonely_value_off():
    values = np.append(numbers(100_000), np.float32(100))
    assert 3 < counted(values).bound("entropy") < 20


def test_entropy_of_what_a_relu_gives():
    values = np.maximum(numbers(100_000), 0)
    assert 3 < counted(values).bound("entropy") <= values.max()


def test_what_is_not_finite_is_refused():
    with pytest.raises(ValueError, match="not finite"):
        Histogram().add(np.float32([1, np.nan]), float("nan"))
