"""Beta-NLL and the calibration loss against their definitions."""

import pickle

import pytest
import torch
from torch.distributions import Cauchy, Independent, Laplace, MultivariateNormal, Normal, TransformedDistribution
from torch.distributions.transforms import ExpTransform

import fcal
from fcal.losses import BetaNLLLoss, CalibrationLoss, NLLLoss


def batch():
    torch.manual_seed(0)
    loc = torch.randn(40, dtype=torch.float64, requires_grad=True)
    scale = (torch.rand(40, dtype=torch.float64) + 0.5).requires_grad_()
    return loc, scale, torch.randn(40, dtype=torch.float64)


@pytest.mark.parametrize("beta", [0.0, 0.5, 1.0])
def test_beta_nll_has_the_gradient_of_weighted_likelihoods(beta):
    loc, scale, y = batch()
    loss = BetaNLLLoss(beta)(Normal(loc, scale), y)
    weight = scale.detach() ** (2 * beta)
    expected = (weight * -Normal(loc, scale).log_prob(y)).mean()
    torch.testing.assert_close(loss, expected)
    for ours, theirs in zip(
        torch.autograd.grad(loss, [loc, scale]), torch.autograd.grad(expected, [loc, scale]), strict=True
    ):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("p", [1, 2])
@pytest.mark.parametrize("on", ["variance", "std"])
@pytest.mark.parametrize("family", [Normal, Laplace])
def test_calibration_loss_is_its_definition(family, on, p):
    loc, scale, y = batch()
    pred = family(loc, scale)
    error = y - pred.mean
    gap = pred.variance - error.square() if on == "variance" else pred.stddev - error.abs()
    torch.testing.assert_close(CalibrationLoss(on=on, p=p)(pred, y), gap.abs().pow(p).mean())


def test_calibration_loss_can_detach_the_mean():
    loc, scale, y = batch()
    loss = CalibrationLoss(detach_mean=True)(Normal(loc, scale), y)
    by_loc, by_scale = torch.autograd.grad(loss, [loc, scale], allow_unused=True)
    assert by_loc is None or not by_loc.any()
    torch.testing.assert_close(by_scale, torch.autograd.grad(CalibrationLoss()(Normal(loc, scale), y), [scale])[0])


def test_nll_loss_is_the_mean_score_also_of_vectors():
    torch.manual_seed(0)
    pred = MultivariateNormal(torch.randn(20, 3), torch.eye(3).expand(20, 3, 3))
    y = torch.randn(20, 3)
    torch.testing.assert_close(NLLLoss()(pred, y), -pred.log_prob(y).mean())
    torch.testing.assert_close(fcal.nll(pred, y, reduction="mean"), -pred.log_prob(y).mean())
    independent = Independent(Normal(torch.randn(20, 3), torch.ones(20, 3)), 1)
    torch.testing.assert_close(NLLLoss()(independent, y), -independent.log_prob(y).mean())


def test_vector_predictions_work_coordinate_by_coordinate():
    torch.manual_seed(0)
    scale, y = torch.rand(20, 3) + 0.5, torch.randn(20, 3)
    vector = MultivariateNormal(torch.zeros(20, 3), torch.diag_embed(scale.square()))
    expected = CalibrationLoss()(Normal(torch.zeros(20, 3), scale), y)
    torch.testing.assert_close(CalibrationLoss()(vector, y), expected)


@pytest.mark.parametrize("criterion", [BetaNLLLoss(), CalibrationLoss()])
def test_prediction_without_a_variance_is_refused(criterion):
    with pytest.raises(ValueError, match=r"expected `pred\.stddev` finite, got"):
        criterion(Cauchy(torch.zeros(5), torch.ones(5)), torch.zeros(5))


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match=r"expected `beta` within \[0, 1\], got 2"):
        BetaNLLLoss(2)
    with pytest.raises(ValueError, match="expected `on` one of 'variance', 'std', got 'sigma'"):
        CalibrationLoss(on="sigma")
    with pytest.raises(ValueError, match="expected `p` <= 2, got 3"):
        CalibrationLoss(p=3)


def test_batch_without_a_valid_target_is_refused():
    with pytest.raises(ValueError, match="expected `target` with at least 1 value that counts"):
        NLLLoss()(Normal(torch.zeros(3), torch.ones(3)), torch.full((3,), torch.nan))


@pytest.mark.parametrize(
    "criterion", [CalibrationLoss(on="std"), BetaNLLLoss(), NLLLoss(), fcal.FCalLoss(), fcal.losses.CombinedLoss()]
)
def test_losses_can_be_pickled(criterion):
    copy = pickle.loads(pickle.dumps(criterion))
    loc, scale, y = batch()
    torch.testing.assert_close(copy(Normal(loc, scale), y), criterion(Normal(loc, scale), y))


@pytest.mark.parametrize(("criterion", "expected"), [(CalibrationLoss(on="std"), -0.5), (BetaNLLLoss(), None)])
def test_tiny_sigma_in_float32_has_a_finite_gradient(criterion, expected):
    scale = torch.tensor([1e-25, 1.0], requires_grad=True)
    criterion(Normal(torch.zeros(2), scale), torch.tensor([1.0, 0.5])).backward()
    assert torch.isfinite(scale.grad).all()
    if expected is not None:
        assert scale.grad[0].item() == pytest.approx(expected)


def test_prediction_without_a_mean_is_refused():
    pred = TransformedDistribution(Normal(torch.zeros(3), torch.ones(3)), [ExpTransform()])
    with pytest.raises(TypeError, match="expected `pred` with a mean and a variance, got TransformedDistribution"):
        CalibrationLoss()(pred, torch.ones(3))


@pytest.mark.parametrize("sigma", [1e19, 1e20, 1e37])
@pytest.mark.parametrize(("on", "p"), [("variance", 1), ("variance", 2), ("std", 2)])
def test_calibration_loss_in_float32_is_finite_with_the_gradient_of_its_definition(sigma, on, p):
    scale = torch.tensor([sigma, 1.0]).requires_grad_()
    loss = CalibrationLoss(on=on, p=p)(Normal(torch.zeros(2), scale), torch.ones(2))
    loss.backward()
    exact = sigma ** (2 * p if on == "variance" else p) / 2
    largest = torch.finfo(torch.float32).max
    assert loss.item() == pytest.approx(min(exact, largest), rel=1e-6)
    power = 2 * p if on == "variance" else p
    assert scale.grad[0].item() == pytest.approx(min(power * sigma ** (power - 1) / 2, largest), rel=1e-6)
