"""The mean CRPS against quadrature."""

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch.distributions import Independent, Laplace, MultivariateNormal, Normal

import fcal
from fcal.losses import CRPSLoss


def by_quadrature(law, y):
    below, _ = integrate.quad(lambda x: law.cdf(x) ** 2, -np.inf, y)
    above, _ = integrate.quad(lambda x: law.sf(x) ** 2, y, np.inf)
    return below + above


@pytest.mark.parametrize(("family", "law"), [(Normal, stats.norm), (Laplace, stats.laplace)])
def test_loss_is_the_weighted_mean_of_integrals(family, law):
    loc, scale, y = torch.tensor([[0.0, 1.0, -1.0], [1.0, 0.5, 2.0], [0.3, 3.0, -1.0]], dtype=torch.float64)
    weight = torch.tensor([1.0, 2.0, 3.0])
    scores = [by_quadrature(law(m, s), t) for m, s, t in zip(loc, scale, y, strict=True)]
    found = CRPSLoss()(family(loc, scale), y, weight=weight).item()
    assert found == pytest.approx(np.average(scores, weights=weight), rel=1e-7)


def test_loss_is_the_mean_score_also_of_rows():
    torch.manual_seed(0)
    pred = Independent(Normal(torch.randn(20, 3), torch.ones(20, 3)), 1)
    y = torch.randn(20, 3)
    torch.testing.assert_close(CRPSLoss()(pred, y), fcal.crps(pred, y).mean())


def test_gradient_is_that_of_differences():
    torch.manual_seed(0)
    loc, scale, y = torch.rand(3, 10, dtype=torch.float64)
    inputs = (loc.requires_grad_(), (scale + 0.5).requires_grad_())
    assert torch.autograd.gradcheck(lambda a, b: CRPSLoss()(Normal(a, b), y), inputs)


def test_vectors_are_refused():
    with pytest.raises(TypeError, match="expected `pred` of a scalar family with a quantile, got MultivariateNormal"):
        CRPSLoss()(MultivariateNormal(torch.zeros(5, 2), torch.eye(2)), torch.zeros(5, 2))
