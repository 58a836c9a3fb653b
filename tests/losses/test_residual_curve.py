"""The polynomials that stand for residuals of float32 batches."""

import pytest
import torch
from torch.distributions import Laplace, Normal

import fcal
from fcal.distributions.location_scale import LAPLACE, LOGISTIC, NORMAL
from fcal.losses._fused.residual_curve import curve_of


def test_curve_is_the_residual_to_the_precision_of_float32():
    curve = curve_of(LAPLACE)
    t = torch.cat([torch.logspace(-6, 1.94, 4000), -torch.logspace(-6, 1.94, 4000)])
    wide = t.double().requires_grad_()
    expected = fcal.standardize(Laplace(torch.zeros(()).double(), torch.ones(()).double()), wide)
    (slope,) = torch.autograd.grad(expected.sum(), wide)
    z, z_by_t = curve.residual_and_slope(t)
    torch.testing.assert_close(z.double(), expected.detach(), rtol=1e-6, atol=0)
    torch.testing.assert_close(z_by_t.double(), slope, rtol=1e-6, atol=0)
    torch.testing.assert_close(curve.residual(t), z, rtol=0, atol=0)


def test_curve_ends_where_float32_probabilities_do():
    z = fcal.standardize(
        Laplace(torch.zeros(()).double(), 1.0), torch.tensor(curve_of(LAPLACE).farthest, dtype=torch.float64)
    )
    assert z.item() == pytest.approx(13.0, rel=1e-9)


@pytest.mark.parametrize("family", [NORMAL, LOGISTIC])
def test_other_families_have_no_curve(family):
    assert curve_of(family) is None


def test_laplace_loss_uses_the_fused_pass_of_the_normal_one():
    # the fused pass, which stores no tensor of the size of the batch except the gradients
    pred = Laplace(torch.zeros(1000, requires_grad=True), torch.ones(1000))
    assert type(fcal.FCalLoss()(pred, torch.randn(1000)).grad_fn).__name__ == "_LocationScaleLossBackward"
    pred = Normal(torch.zeros(1000, requires_grad=True), torch.ones(1000))
    assert type(fcal.FCalLoss()(pred, torch.randn(1000)).grad_fn).__name__ == "_LocationScaleLossBackward"
