"""Residuals: round trips, missing targets, dtypes; the families themselves are tested under distributions."""

import pytest
import torch
from references import REFERENCES
from torch.distributions import MultivariateNormal, Normal

import fcal
from fcal.residuals import unstandardize

NEAR_AN_UPPER_END = {"Uniform", "Beta", "mixture of Beta", "TruncatedNormal", "GeneralizedPareto"}


@pytest.mark.parametrize("name", REFERENCES)
def test_unstandardize_undoes_standardize(name):
    law = REFERENCES[name].law(torch.float64)
    farthest = [-2.5, 2.5] if name in NEAR_AN_UPPER_END else [-30.0, 8.0]  # a value close to an end has few digits left
    z = torch.tensor([-2.0, -0.5, 0.7, *farthest], dtype=torch.float64)
    torch.testing.assert_close(fcal.standardize(law, unstandardize(law, z)), z, rtol=1e-9, atol=1e-12)


def test_residuals_are_finite_where_probabilities_underflow():
    # log F = -t for a Laplace law; z^2 / 2 + log z + log sqrt(2 pi) must be t + log 2
    law = REFERENCES["Laplace"].law(torch.float64)
    y = torch.tensor([-1e4, 1e8], dtype=torch.float64)
    z = fcal.standardize(law, y)
    t = ((y - 0.3) / 1.7).abs()
    log_tail = -torch.special.log_ndtr(-z.abs())
    torch.testing.assert_close(log_tail, t + torch.log(torch.tensor(2.0, dtype=torch.float64)), rtol=1e-12, atol=0)


def test_missing_targets_have_residual_nan_and_no_gradient():
    loc = torch.zeros(3, requires_grad=True)
    y = torch.tensor([1.0, torch.nan, 2.0])
    z = fcal.standardize(Normal(loc, torch.ones(3)), y, valid_mask=torch.tensor([True, True, False]))
    assert torch.isnan(z).tolist() == [False, True, True]
    z.nansum().backward()
    assert loc.grad.tolist() == [-1.0, 0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened(dtype):
    y = torch.tensor([0.5, -3.0], dtype=dtype)
    for name in ("Normal", "Laplace"):
        z = fcal.standardize(REFERENCES[name].law(dtype), y)
        assert z.dtype == torch.float32
        wide = [getattr(REFERENCES[name].law(dtype), p).double() for p in ("loc", "scale")]
        torch.testing.assert_close(
            z.double(), fcal.standardize(REFERENCES[name].kind(*wide), y.double()), rtol=1e-6, atol=0
        )


def test_shared_covariance_whitens_every_row():
    law = MultivariateNormal(torch.zeros(2), torch.tensor([[4.0, 0.0], [0.0, 9.0]]))
    z = fcal.standardize(law, torch.tensor([[2.0, 3.0], [-4.0, 6.0]]))
    torch.testing.assert_close(z, torch.tensor([[1.0, 1.0], [-2.0, 2.0]]))


def test_scalar_target_works():
    assert fcal.standardize(Normal(torch.tensor(0.0), torch.tensor(2.0)), torch.tensor(1.0)).item() == 0.5
