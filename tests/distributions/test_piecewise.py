"""QuantileLaw against the normal distribution, quadrature and its definition."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch.distributions import Independent, Normal

import fcal
from fcal.distributions import QuantileLaw

LEVELS = [0.05, 0.25, 0.5, 0.75, 0.95]


def skewed() -> QuantileLaw:
    return QuantileLaw(LEVELS, torch.tensor([-3.0, 0.0, 1.0, 1.5, 6.0], dtype=torch.float64))


def panels(law: QuantileLaw) -> tuple[torch.Tensor, torch.Tensor]:
    """Nodes and weights of Gauss-Legendre rules between the quantiles and far beyond them."""
    nodes, weights = (torch.from_numpy(v) for v in np.polynomial.legendre.leggauss(60))
    inner = law.values
    edges = torch.cat([inner[:1] - 40, inner[:1] - 10, inner, inner[-1:] + 15, inner[-1:] + 60])
    low, width = edges[:-1].unsqueeze(-1), edges.diff().unsqueeze(-1)
    return (low + width * (nodes + 1) / 2).reshape(-1), (width * weights / 2).reshape(-1)


def test_quantile_law_through_normal_quantiles_is_the_normal_law():
    loc, scale = torch.tensor([1.0, -5.0]).double(), torch.tensor([2.0, 0.1]).double()
    normal = Normal(loc, scale)
    z = torch.from_numpy(stats.norm.ppf(LEVELS))
    law = QuantileLaw(LEVELS, loc.unsqueeze(-1) + scale.unsqueeze(-1) * z)
    y = torch.tensor([9.0, -5.3]).double()
    for name in ("log_prob", "cdf"):
        torch.testing.assert_close(getattr(law, name)(y), getattr(normal, name)(y))
    for name in ("mean", "stddev", "variance"):
        torch.testing.assert_close(getattr(law, name), getattr(normal, name))
    for score in (fcal.nll, fcal.crps, fcal.standardize):
        torch.testing.assert_close(score(law, y), score(normal, y))


def test_quantile_law_has_the_quantiles_it_was_given():
    law = skewed()
    torch.testing.assert_close(law.cdf(law.values), torch.tensor(LEVELS).double())
    torch.testing.assert_close(law.icdf(torch.tensor(LEVELS).double()), law.values)
    p = torch.tensor([1e-9, 0.3, 1 - 1e-9]).double()
    torch.testing.assert_close(law.cdf(law.icdf(p)), p, rtol=1e-7, atol=0)


def test_quantile_law_moments_and_scores_agree_with_quadrature():
    law, (x, w) = skewed(), panels(skewed())
    density = law.log_prob(x).exp()
    mean = (w * density * x).sum()
    torch.testing.assert_close((w * density).sum(), torch.ones(()).double(), rtol=0, atol=1e-12)
    torch.testing.assert_close(law.mean, mean, rtol=0, atol=1e-11)
    torch.testing.assert_close(law.variance, (w * density * (x - mean) ** 2).sum(), rtol=1e-11, atol=0)
    for y in law.values:  # where panels end, so that the rule sees no jump
        crps = (w * (law.cdf(x) - (x >= y).double()) ** 2).sum()
        torch.testing.assert_close(fcal.crps(law, y), crps, rtol=1e-10, atol=0)


def test_quantile_law_density_is_the_slope_of_its_cdf_and_positive():
    law = skewed()
    y = torch.linspace(-20, 30, 101).double().requires_grad_()
    (slope,) = torch.autograd.grad(law.cdf(y).sum(), y)
    torch.testing.assert_close(law.log_prob(y.detach()).exp(), slope, rtol=1e-10, atol=1e-300)
    assert bool((slope > 0).all())


def test_quantile_law_tails_are_normal_and_exact_far_out():
    law = skewed()
    slope = (stats.norm.ppf(0.95) - stats.norm.ppf(0.75)) / 4.5
    z = stats.norm.ppf(0.95) + slope * (1e6 - 6.0)
    expected = math.log(slope) + stats.norm.logpdf(z)
    assert law.log_prob(torch.tensor(1e6).double()).item() == pytest.approx(expected, rel=1e-13)


def test_quantile_law_draws_follow_it():
    # Kolmogorov-Smirnov on 5000 seeded draws; false-alarm rate 1e-4
    torch.manual_seed(0)
    law = skewed()
    draws = law.sample((5000,))
    assert stats.kstest(draws.numpy(), lambda y: law.cdf(torch.from_numpy(y)).numpy()).pvalue > 1e-4


def test_quantile_law_keeps_float32_shapes_and_missing_targets():
    values = torch.tensor([[0.0, 1.0, 3.0], [1.0, 2.0, 3.0]])
    law = Independent(QuantileLaw([0.1, 0.5, 0.9], values), 1)
    y = torch.tensor([1.0, torch.nan])
    z = fcal.standardize(law, y)
    assert z.dtype == torch.float32
    assert z[0].item() == pytest.approx(0, abs=1e-7)
    assert z[1].isnan()
    assert law.base_dist.mean.dtype == torch.float32
    assert law.base_dist.expand((4, 2)).sample((3,)).shape == (3, 4, 2)


def test_quantile_law_gradients_reach_its_values():
    def scores(values: torch.Tensor) -> torch.Tensor:
        law, y = QuantileLaw([0.1, 0.5, 0.9], values), torch.tensor([0.3, 9.0]).double()
        return torch.stack([fcal.nll(law, y), fcal.crps(law, y), law.mean, law.stddev])

    torch.autograd.gradcheck(scores, torch.tensor([[0.0, 1.0, 3.0], [1.0, 2.0, 3.5]]).double().requires_grad_())


def test_quantile_law_refuses_quantiles_that_cross_with_count_and_row():
    values = torch.tensor([[0.0, 1.0, 2.0], [0.0, 0.0, 2.0], [3.0, 2.0, 4.0]])
    with pytest.raises(
        ValueError, match=r"strictly increasing .* got 2 of 3 rows that are not; the first is row 1: 0, 0, 2"
    ):
        QuantileLaw([0.1, 0.5, 0.9], values)
    with pytest.raises(ValueError, match="finite, got 1 of 1 rows that are not; the first is row 0: 0, nan, 2"):
        QuantileLaw([0.1, 0.5, 0.9], torch.tensor([[0.0, torch.nan, 2.0]]))


@pytest.mark.parametrize("levels", [[0.5, 0.1], [0.0, 0.5], [0.5, 0.5], [0.1, 1.0]])
def test_quantile_law_refuses_levels_out_of_order(levels: list[float]):
    with pytest.raises(ValueError, match=r"expected `levels` strictly increasing within \(0, 1\)"):
        QuantileLaw(levels, torch.tensor([0.0, 1.0]))


def test_quantile_law_refuses_shapes_that_do_not_fit():
    with pytest.raises(ValueError, match=r"got \(2,\) and \(3, 4\)"):
        QuantileLaw([0.1, 0.9], torch.zeros(3, 4))
    with pytest.raises(TypeError, match="expected `values` a tensor of a floating dtype, got torch.int64"):
        QuantileLaw([0.1, 0.9], torch.tensor([0, 1]))
