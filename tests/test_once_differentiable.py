"""Gradients of gradients are refused wherever they would be silently wrong."""

import pytest
import torch
from torch.distributions import Beta, Gamma, Normal, StudentT

import fcal
from fcal.distributions import TruncatedNormal, log_cdf, quantile
from fcal.losses import CRPSLoss, EnergyLoss, FCalLoss, MMDLoss, PCELoss, QuantileRecalibrationLoss
from fcal.residuals import unstandardize

Y = torch.tensor([0.2, 0.5, 0.6, 0.9], dtype=torch.float64)
HALF = torch.full((4,), 0.5, dtype=torch.float64)
LAWS = {
    "Gamma": lambda p: Gamma(p, torch.ones_like(p)),
    "StudentT": lambda p: StudentT(p, torch.zeros_like(p), torch.ones_like(p)),
    "Beta": lambda p: Beta(p, torch.ones_like(p)),
    "TruncatedNormal": lambda p: TruncatedNormal(p, torch.ones_like(p), torch.zeros_like(p), 3 * torch.ones_like(p)),
}
FUNCTIONS = {
    "standardize": fcal.standardize,
    "log_cdf": log_cdf,
    "quantile": lambda pred, _: quantile(pred, HALF),
    "unstandardize": lambda pred, y: unstandardize(pred, y),
    "sampled": FCalLoss(df=2, estimator="sampled"),
    "exact": FCalLoss(df=2),
}
LOSSES = [PCELoss(), QuantileRecalibrationLoss(), MMDLoss(), EnergyLoss()]


def penalty(value, parameter):
    (gradient,) = torch.autograd.grad(value.sum(), parameter, create_graph=True)
    return gradient.square().sum()


@pytest.mark.parametrize("function", FUNCTIONS)
@pytest.mark.parametrize("law", LAWS)
def test_gradient_penalty_on_a_hard_family_is_refused(law, function):
    parameter = torch.full((4,), 2.0, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="expected `create_graph` False: .* is differentiable once, got True"):
        penalty(FUNCTIONS[function](LAWS[law](parameter), Y), parameter)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: type(loss).__name__)
def test_gradient_penalty_on_a_baseline_is_refused(loss):
    loc = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    with pytest.raises(RuntimeError, match="expected `create_graph` False: .* is differentiable once, got True"):
        penalty(loss(Normal(loc, torch.ones_like(loc)), Y), loc)


def test_gradient_penalty_on_a_closed_form_is_right():
    loc = torch.zeros(4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(lambda m: CRPSLoss()(Normal(m, torch.ones_like(m)), Y), (loc,))
