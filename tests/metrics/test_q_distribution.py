"""Quantiles of chi-squared against SciPy."""

import numpy as np
import pytest
from scipy import stats

from fcal.metrics.calibration_errors import chi2_edges, chi2_quantiles
from fcal.metrics.state import usual_sums


@pytest.mark.parametrize("df", [1, 2, 3, 5, 10, 75, 100, 1000, 10_000])
@pytest.mark.parametrize("bins", [2, 20, 1000, 10_000])
def test_edges_are_quantiles_of_chi_squared(df, bins):
    levels = np.arange(1, bins) / bins
    # torch's incomplete gamma function is right to 4e-10
    np.testing.assert_allclose(stats.chi2.cdf(chi2_edges(df, bins), df), levels, rtol=0, atol=1e-9)


@pytest.mark.parametrize("df", [1, 2, 4, 9, 40])
def test_levels_of_coverage_are_quantiles_of_chi_squared(df):
    levels = np.array([0.5, 0.68, 0.9, 0.95, 0.99])
    np.testing.assert_allclose(chi2_quantiles(df, levels), stats.chi2.ppf(levels, df), rtol=1e-8)


@pytest.mark.parametrize("df", [2, 10, 75, 1000, 10_000])
def test_usual_sums_leave_out_a_few_in_ten_thousand(df):
    low, high = usual_sums(df)
    assert stats.chi2.cdf(low, df) < 1e-3
    assert 2e-5 < stats.chi2.sf(high, df) < 5e-4
