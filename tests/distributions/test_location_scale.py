"""The Logistic class against SciPy."""

import math

import pytest
import torch
from scipy import stats

from fcal.distributions import Logistic


def test_logistic_agrees_with_scipy():
    law, reference = Logistic(torch.tensor(0.5).double(), torch.tensor(2.0).double()), stats.logistic(0.5, 2.0)
    y = torch.linspace(-40, 40, 17, dtype=torch.float64)
    torch.testing.assert_close(law.log_prob(y), torch.from_numpy(reference.logpdf(y.numpy())))
    torch.testing.assert_close(law.cdf(y), torch.from_numpy(reference.cdf(y.numpy())))
    p = torch.tensor([1e-9, 0.2, 0.5, 0.999], dtype=torch.float64)
    torch.testing.assert_close(law.icdf(p), torch.from_numpy(reference.ppf(p.numpy())))
    expected = [float(v) for v in (reference.mean(), reference.var(), reference.entropy())]
    assert [law.mean.item(), law.variance.item(), law.entropy().item()] == pytest.approx(expected)
    assert law.mode.item() == 0.5


def test_logistic_draws_follow_its_law():
    # Kolmogorov-Smirnov on 5000 seeded draws; false-alarm rate 1e-4
    torch.manual_seed(0)
    draws = Logistic(torch.tensor(1.0), torch.tensor(0.5)).sample((5000,))
    assert stats.kstest(draws.numpy(), stats.logistic(1.0, 0.5).cdf).pvalue > 1e-4


def test_logistic_expands_like_a_torch_distribution():
    law = Logistic(torch.tensor(1.0), torch.tensor(0.5)).expand((3, 2))
    assert law.batch_shape == (3, 2)
    assert law.rsample((4,)).shape == (4, 3, 2)


def test_logistic_refuses_a_scale_that_is_not_positive():
    with pytest.raises(ValueError, match="scale"):
        Logistic(torch.zeros(1), torch.tensor([-1.0]))
    assert math.isfinite(Logistic(0.0, 1.0).log_prob(torch.tensor(500.0)).item())
