"""Corners of boxes are exactly normal in pixels: coders, the uncertainty head and the distributions they make."""

import math
import warnings

import numpy as np
import pytest
import torch
from torch.distributions import MultivariateNormal, Normal
from torchvision.models.detection._utils import BoxCoder

from fcal.models.detection import CornerCoder, LawHead, UncertaintyHead, VarianceBounds


def boxes(count: int, seed: int = 0, size: float = 100.0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    corner = size * torch.rand(count, 2, generator=generator, dtype=torch.float64)
    return torch.cat([corner, corner + 2 + 0.4 * size * torch.rand(count, 2, generator=generator).double()], 1)


def law_head(classes: int = 3, features: int = 6, **options) -> LawHead:
    torch.manual_seed(0)
    unit = options.pop("unit", "proposal")
    uncertainty = UncertaintyHead(features, classes, **options)
    return LawHead(torch.nn.Linear(features, 4 * classes), uncertainty, CornerCoder(), unit=unit).double()


def features(count: int, number: int = 6) -> torch.Tensor:
    return torch.randn(count, number, generator=torch.Generator().manual_seed(1), dtype=torch.float64)


def test_corner_coder_round_trip_is_the_box():
    box, proposal = boxes(50), boxes(50, seed=1)
    coder = CornerCoder()
    torch.testing.assert_close(coder.decode_single(coder.encode_single(box, proposal), proposal), box)


def test_corner_offsets_are_tenths_of_the_sides_of_the_proposal():
    box, proposal = boxes(20).numpy(), boxes(20, seed=1).numpy()
    width, height = proposal[:, 2] - proposal[:, 0], proposal[:, 3] - proposal[:, 1]
    expected = 10 * (box - proposal) / np.stack([width, height, width, height], 1)
    ours = CornerCoder().encode_single(torch.tensor(box), torch.tensor(proposal))
    np.testing.assert_allclose(ours.numpy(), expected)


def test_decoded_corners_are_linear_in_the_offsets():
    offset, proposal = features(20, 4), boxes(20)
    coder = CornerCoder()
    rise = torch.autograd.functional.jacobian(lambda x: coder.decode_single(x, proposal).sum(0), offset)
    change = torch.einsum("cnd,nd->nc", rise, torch.full_like(offset, 7.0))
    moved = coder.decode_single(offset + 7.0, proposal) - coder.decode_single(offset, proposal)
    torch.testing.assert_close(moved, change)


def test_sigma_in_pixels_is_the_derivative_of_the_decoded_corner():
    head, x, proposal = law_head(), features(8), boxes(8)
    labels = torch.arange(8) % 3
    law = head(x, proposal, labels)
    offset = head.regression(x).reshape(8, 3, 4)[torch.arange(8), labels].detach().requires_grad_()
    sigma = head.uncertainty.sigmas(head.uncertainty(x))[torch.arange(8), labels]
    corner = CornerCoder().decode_single(offset, proposal)
    for number in range(4):
        (slope,) = torch.autograd.grad(corner[:, number].sum(), offset, retain_graph=True)
        torch.testing.assert_close(law.stddev[:, number], slope[:, number] * sigma[:, number])


def test_normal_offsets_are_the_same_normal_numbers_in_pixels():
    head, x, proposal = law_head(), features(2), boxes(2)
    law = head(x, proposal, torch.tensor([1, 2]))
    offset = head.regression(x).reshape(2, 3, 4)[[0, 1], [1, 2]]
    sigma = head.uncertainty.sigmas(head.uncertainty(x))[[0, 1], [1, 2]]
    noise = torch.randn(500, 2, 4, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    drawn = torch.stack([CornerCoder().decode_single(each, proposal) for each in offset + sigma * noise])
    z = (drawn - law.mean) / law.stddev
    torch.testing.assert_close(z, noise)


@pytest.mark.parametrize("full", [False, True])
def test_law_of_a_class_is_its_column_of_the_law_of_all(full):
    head, x, proposal = law_head(full_covariance=full), features(5), boxes(5)
    of_all = head(x, proposal)
    for label in range(3):
        law = head(x, proposal, torch.full((5,), label))
        torch.testing.assert_close(law.mean, of_all.mean[:, label])
        torch.testing.assert_close(law.stddev, of_all.stddev[:, label])


def test_unit_pixel_does_not_depend_on_the_proposal():
    head = law_head(unit="pixel")
    law, moved = (head(features(3), boxes(3, seed=seed), torch.ones(3, dtype=torch.int64)) for seed in (0, 1))
    torch.testing.assert_close(law.stddev, moved.stddev)
    torch.testing.assert_close(law.stddev, head.uncertainty.sigmas(head.uncertainty(features(3)))[:, 1])


def test_torchvision_decoder_gives_the_mean_and_our_head_sigma_in_corner_pixels():
    head = law_head()
    head.coder = coder = BoxCoder((10.0, 10.0, 5.0, 5.0))
    x, proposal, labels = features(5), boxes(5), torch.tensor([0, 1, 2, 1, 0])
    expected = coder.decode(head.regression(x), [proposal])[torch.arange(5), labels]
    law = head(x, proposal, labels)
    torch.testing.assert_close(law.mean, expected)
    sides = (proposal[:, 2:] - proposal[:, :2]).repeat(1, 2) / 10
    sigma = head.uncertainty.sigmas(head.uncertainty(x))[torch.arange(5), labels]
    torch.testing.assert_close(law.stddev, sigma * sides)


def test_variance_is_the_generalised_sigmoid_with_a_floor():
    bounds = VarianceBounds(alpha=0.5, beta=20.0, eta=0.3, floor=0.01)
    x = torch.linspace(-60, 60, 41, dtype=torch.float64)
    expected = 0.01 + 0.5 + (20.0 - 0.5) / (1 + np.exp(-0.3 * x.numpy()))
    np.testing.assert_allclose(bounds.variance(x).numpy(), expected, rtol=1e-12)


def test_initial_sigmas_are_a_tenth_of_the_sides():
    uncertainty = UncertaintyHead(4, 2)
    sigma = uncertainty.sigmas(uncertainty(torch.zeros(1, 4)))
    torch.testing.assert_close(sigma, torch.ones(1, 2, 4), atol=1e-4, rtol=0)


@pytest.mark.parametrize("logit", [-1e30, -1e4, 1e4, 1e30])
@pytest.mark.parametrize("full", [False, True])
def test_extreme_logits_give_finite_laws_and_gradients(logit, full):
    head = law_head(full_covariance=full).float()
    torch.nn.init.constant_(head.uncertainty.spread.bias, logit)
    law = head(features(5).float(), boxes(5).float(), torch.ones(5, dtype=torch.int64))
    loss = -law.log_prob(boxes(5).float()).mean()
    loss.backward()
    assert loss.isfinite()
    assert all(parameter.grad.isfinite().all() for parameter in head.parameters())


def test_full_covariance_keeps_the_bounded_variances():
    head, x, proposal = law_head(full_covariance=True), features(7), boxes(7)
    labels = torch.ones(7, dtype=torch.int64)
    law = head(x, proposal, labels)
    assert isinstance(law, MultivariateNormal)
    pixels = (proposal[:, 2:] - proposal[:, :2]).repeat(1, 2) / 10
    variance = head.uncertainty.bounds.variance(head.uncertainty(x)[:, 1, :4]) * pixels.square()
    torch.testing.assert_close(law.covariance_matrix.diagonal(dim1=1, dim2=2), variance)


def test_full_covariance_is_positive_definite_with_correlations_at_both_limits():
    head = law_head(full_covariance=True)
    with torch.no_grad():
        head.uncertainty.spread.bias.view(3, 10)[:, 4:] = torch.tensor([1e6, -1e6, 1e6, -1e6, 1e6, 1e6])
    law = head(features(7), boxes(7), torch.ones(7, dtype=torch.int64))
    covariance = law.covariance_matrix.detach().numpy()
    sigma = np.sqrt(np.einsum("nii->ni", covariance))
    correlation = covariance / (sigma[:, :, None] * sigma[:, None, :])
    assert np.linalg.eigvalsh(correlation).min() > 1e-6
    assert np.abs(correlation[:, 1, 0]).max() == pytest.approx(5 / math.sqrt(26), rel=1e-5)


def test_full_covariance_is_diagonal_before_training():
    law = law_head(full_covariance=True)(features(7), boxes(7), torch.ones(7, dtype=torch.int64))
    torch.testing.assert_close(law.covariance_matrix, torch.diag_embed(law.variance))


def test_covariance_can_have_any_correlations():
    head, correlation = law_head(full_covariance=True), torch.tensor([[1.0, 0.5, 0, 0.2], [0.5, 1, -0.3, 0],
                                                                     [0, -0.3, 1, 0.4], [0.2, 0, 0.4, 1]])  # fmt: skip
    factor = torch.linalg.cholesky(correlation.double())
    ratios = factor / factor.diagonal()[:, None]  # rows up to their length
    entries = ratios[tuple(torch.tril_indices(4, 4, -1))]
    logits = entries / (1 - entries.abs() / 5) / head.uncertainty.bounds.eta  # inverse of what bounds the ratios
    factors = head.uncertainty.factors(torch.cat([torch.zeros(4).double(), logits]))
    covariance = factors @ factors.mT
    torch.testing.assert_close(covariance / covariance[0, 0], correlation.double())


def test_more_than_one_percent_of_sigmas_at_the_cap_warns_once():
    uncertainty = UncertaintyHead(4, 2)
    largest = math.sqrt(50.0)
    uncertainty.watch(torch.cat([torch.full((12,), largest), torch.ones(900)]))  # too few to tell
    with pytest.warns(UserWarning, match=r"^14 of 1014 predicted variances are at the largest one, 50: raise `beta`$"):
        uncertainty.watch(torch.cat([torch.full((2,), largest), torch.ones(100)]))
    uncertainty.watch(torch.full((5000,), largest))


def test_one_percent_of_sigmas_at_the_cap_does_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        UncertaintyHead(4, 2).watch(torch.cat([torch.full((20,), math.sqrt(50.0)), torch.ones(1980)]))


def test_half_precision_features_give_laws_in_float32():
    head = law_head().float()
    with torch.autocast("cpu", torch.bfloat16):
        law = head(features(3).float(), boxes(3).float(), torch.ones(3, dtype=torch.int64))
    assert isinstance(law, Normal)
    assert law.mean.dtype == law.stddev.dtype == torch.float32


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"alpha": 3.0, "beta": 2.0}, "expected `beta` above `alpha` = 3, got 2"),
        ({"floor": 0.0}, r"expected `floor` within \[1e-12, 1e\+12\], got 0.0"),
        ({"eta": math.nan}, "expected `eta` within"),
    ],
)
def test_bounds_out_of_range_are_rejected(options, message):
    with pytest.raises(ValueError, match=message):
        VarianceBounds(**options)


def test_unknown_unit_is_rejected():
    with pytest.raises(ValueError, match="expected `unit` one of 'proposal', 'pixel', got 'metre'"):
        law_head(unit="metre")
