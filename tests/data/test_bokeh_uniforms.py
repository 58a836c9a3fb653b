"""Counter-based random numbers."""

import numpy as np
import pytest
import slow_bokeh
from scipy import stats

from fcal.data.bokeh import uniforms


@pytest.mark.parametrize("seed", [0, 7, 2**63])
def test_uniforms_are_those_of_philox_written_by_hand(seed):
    own = [slow_bokeh.uniforms(seed, item, 6) for item in range(5, 9)]
    np.testing.assert_array_equal(uniforms(seed, 5, 9, 6), own)


def test_uniforms_depend_on_their_position_alone():
    whole = uniforms(3, 0, 1000, 7)
    np.testing.assert_array_equal(np.concatenate([uniforms(3, k, k + 100, 7) for k in range(0, 1000, 100)]), whole)
    assert uniforms(3, 5, 5, 7).shape == (0, 7)


def test_uniforms_are_uniform_and_never_0_or_1():
    # False-alarm rate 1e-6 for each of the two tests.
    numbers = uniforms(1, 0, 20_000, 5)
    assert stats.kstest(numbers.ravel(), "uniform").pvalue > 1e-6
    correlation = np.corrcoef(numbers, rowvar=False)[np.triu_indices(5, 1)]
    assert np.abs(correlation).max() < stats.norm.isf(1e-6 / 20) / np.sqrt(20_000)
    assert numbers.min() > 0
    assert numbers.max() < 1


def test_streams_of_two_seeds_differ():
    assert not (uniforms(1, 0, 10, 5) == uniforms(2, 0, 10, 5)).any()
