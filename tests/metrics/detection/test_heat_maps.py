"""Tests of fcal.metrics.detection.heat_maps: pixels of detected boxes beside brute force."""

import numpy as np
import pytest
import torch
from metrics.detection.whole_image import below_both, heat_map, random_scene, spatial_quality
from numpy.testing import assert_allclose
from scipy import stats

from fcal.metrics.detection import Detections, Truths, heat_maps
from fcal.metrics.detection.heat_maps import _below_both, pixel_quality


def single(box, covariance):
    return Detections(
        boxes=torch.tensor([box], dtype=torch.float64),
        covariances=torch.as_tensor(np.asarray(covariance, dtype=np.float64))[None],
        scores=torch.ones(1),
        labels=torch.ones(1, dtype=torch.int64),
    )


def truth(box, size, mask=None):
    return Truths(
        boxes=torch.tensor([box], dtype=torch.float64),
        labels=torch.ones(1, dtype=torch.int64),
        image_size=size,
        masks=None if mask is None else torch.as_tensor(mask)[None],
    )


def reference(found, there):
    size = there.image_size
    masks = [None] * len(there) if there.masks is None else there.masks.numpy()
    values = [
        [spatial_quality(b, c, t, size, mask) for t, mask in zip(there.boxes.numpy(), masks, strict=True)]
        for b, c in zip(found.boxes.numpy(), found.covariances.numpy(), strict=True)
    ]
    return np.where(np.array(values) > 1e-8, values, 0)


@pytest.mark.parametrize("seed", range(6))
def test_quality_of_independent_corners_is_that_of_every_pixel_of_the_image(seed):
    found, there = random_scene(seed)
    assert_allclose(pixel_quality(found, there).spatial.numpy(), reference(found, there), atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_quality_of_correlated_corners_is_that_of_quadrature_at_every_pixel(seed):
    found, there = random_scene(seed, 2, 2, size=(11, 14), correlated=True)
    expected = reference(found, there)
    assert (expected > 1e-3).any()
    assert_allclose(pixel_quality(found, there).spatial.numpy(), expected, atol=1e-9)


@pytest.mark.parametrize("seed", range(3))
def test_quality_with_masks_has_the_foreground_of_the_mask_and_the_background_of_the_box(seed):
    found, there = random_scene(seed, masks=True)
    assert_allclose(pixel_quality(found, there).spatial.numpy(), reference(found, there), atol=1e-9)


def test_spatial_quality_is_the_product_of_foreground_and_background():
    found, there = random_scene(0, 8, 4)
    quality = pixel_quality(found, there)
    assert (quality.spatial > 0).any()
    torch.testing.assert_close(quality.spatial, quality.foreground * quality.background)


@pytest.mark.parametrize("rho", [-0.9999, -0.97, -0.5, 0.2, 0.8, 0.97, 0.9999])
def test_bivariate_law_is_that_of_quadrature(rho):
    h = np.array([-6.0, -3.1, -1.0, 0.0, 0.4, 2.5, 7.0])
    values, _ = _below_both(torch.from_numpy(h), torch.from_numpy(h), rho)
    expected = np.array([[below_both(x, y, rho) for x in h] for y in h])
    assert_allclose(values.numpy(), expected, rtol=1e-7, atol=1e-15)


@pytest.mark.parametrize("rho", [-0.7, 0.3, 0.95])
def test_bivariate_law_is_that_of_scipy(rho):
    h = np.linspace(-3, 3, 7)
    values, _ = _below_both(torch.from_numpy(h), torch.from_numpy(h), rho)
    law = stats.multivariate_normal(cov=[[1, rho], [rho, 1]], abseps=1e-9, releps=1e-9, maxpts=10**6)
    expected = law.cdf(np.dstack(np.meshgrid(h, h)))
    assert_allclose(values.numpy(), expected, atol=1e-7)


@pytest.mark.parametrize("rho", [-1.0, -0.999, -0.6, 0.6, 0.999, 1.0])
def test_complement_of_the_bivariate_law_is_right_where_it_is_small(rho):
    h = np.array([0.0, 2.0, 5.0, 7.5])
    _, complement = _below_both(torch.from_numpy(h), torch.from_numpy(h), rho)
    # P(X > h) + P(Y > k) - P(X > h, Y > k), the last one of a pair with the same correlation
    grid, other = np.meshgrid(h, h)
    exact = {1.0: stats.norm.sf(np.maximum(grid, other)), -1.0: np.where((grid == 0) & (other == 0), 0.0, 0.0)}
    joint = exact.get(rho)
    if joint is None:
        joint = np.array([[below_both(-x, -y, rho) for x in h] for y in h])
    assert_allclose(complement.numpy(), stats.norm.sf(grid) + stats.norm.sf(other) - joint, rtol=1e-7)


def test_bivariate_law_of_correlation_one_is_that_of_the_smaller_limit():
    h, k = torch.tensor([-2.0, 0.5, 3.0]).double(), torch.tensor([-1.0, 1.0]).double()
    values, _ = _below_both(h, k, 1.0)
    assert_allclose(values.numpy(), stats.norm.cdf(np.minimum(h.numpy(), k.numpy()[:, None])), rtol=1e-12)
    values, _ = _below_both(h, k, -1.0)
    expected = np.maximum(stats.norm.cdf(h.numpy()) - stats.norm.cdf(-k.numpy()[:, None]), 0)
    assert_allclose(values.numpy(), expected, atol=1e-15)


def test_foreground_quality_of_a_pixel_is_the_share_of_drawn_boxes_that_touch_it():
    """Five standard errors of a share of 1e5 draws: a false alarm in 2e6 seeds."""
    box = [3.0, 2.0, 9.0, 7.0]
    factor = np.random.default_rng(1).normal(size=(2, 2, 2))
    blocks = factor @ factor.transpose(0, 2, 1) + 0.3 * np.eye(2)
    covariance = np.zeros((4, 4))
    covariance[:2, :2], covariance[2:, 2:] = blocks
    drawn = np.random.default_rng(2).multivariate_normal(box, covariance, 100_000)
    for column, row in ((2, 1), (3, 4), (6, 5), (9, 6)):
        share = np.mean(
            (drawn[:, 0] < column + 1) & (drawn[:, 1] < row + 1) & (drawn[:, 2] > column) & (drawn[:, 3] > row)
        )
        pixel = truth([column, row, column + 1, row + 1], (20, 20))
        quality = pixel_quality(single(box, covariance), pixel)
        foreground = float(heat_map(box, covariance, (row + 1, column + 1))[row, column])
        assert abs(share - foreground) < 5 * np.sqrt(share * (1 - share) / 1e5)
        if float(quality.spatial) > 0:  # below, qualities are 0
            assert_allclose(float(quality.foreground), foreground, rtol=1e-9)


def test_boxes_without_variance_pay_the_floor_for_each_wrong_pixel():
    quality = pixel_quality(single([2, 2, 12, 10], np.zeros((4, 4))), truth([2, 2, 12, 11], (20, 20)))
    assert_allclose(float(quality.foreground), 1e-14 ** (10 / 90), rtol=1e-9)
    assert_allclose(float(quality.background), 1.0, rtol=1e-9)


def test_boxes_without_variance_that_are_exact_have_quality_one():
    for box in ([2.0, 2.0, 12.0, 10.0], [2.3, 1.9, 12.7, 10.2], [-3.0, 2.0, 40.0, 10.0]):
        quality = pixel_quality(single(box, np.zeros((4, 4))), truth(box, (20, 20)))
        assert_allclose(float(quality.spatial), 1.0, atol=1e-9)


@pytest.mark.parametrize("still", range(4))
def test_zero_variance_in_one_coordinate_is_a_step(still):
    variances = np.array([2.0, 1.0, 3.0, 0.5])
    variances[still] = 0
    box, size = [4.0, 3.0, 12.0, 9.0], (16, 20)
    found, there = single(box, np.diag(variances)), truth([4.0, 3.0, 12.0, 9.0], size)
    assert_allclose(pixel_quality(found, there).spatial.numpy(), reference(found, there), atol=1e-9)


def test_zero_variance_is_the_limit_of_a_small_one():
    there = truth([4.0, 3.0, 12.0, 9.0], (16, 20))
    exact, near = (pixel_quality(single([4.4, 3.3, 12.6, 9.2], np.eye(4) * v), there) for v in (0.0, 1e-6))
    torch.testing.assert_close(exact.spatial, near.spatial, atol=1e-9, rtol=0)


def test_inverted_and_distant_boxes_have_quality_zero():
    there = truth([4.0, 3.0, 12.0, 9.0], (16, 20))
    for box in ([12.0, 9.0, 4.0, 3.0], [500.0, 3.0, 510.0, 9.0], [-90.0, -90.0, -80.0, -80.0]):
        assert float(pixel_quality(single(box, np.eye(4)), there).spatial) == 0


def test_variance_far_beyond_the_image_is_finite():
    found, there = single([4, 3, 12, 9], np.eye(4) * 1e8), truth([4.0, 3.0, 12.0, 9.0], (16, 20))
    assert_allclose(pixel_quality(found, there).spatial.numpy(), reference(found, there), atol=1e-9)


def test_truths_without_a_pixel_are_refused():
    for there in (
        truth([40.0, 3.0, 50.0, 9.0], (16, 20)),
        truth([4.0, 3.0, 5.0, 9.0], (16, 20), np.zeros((16, 20)) > 0),
    ):
        with pytest.raises(
            ValueError, match=r"expected `truths` with pixels inside the image of 16 x 20, got object 0"
        ):
            pixel_quality(single([4, 3, 12, 9], np.eye(4)), there)


@pytest.mark.parametrize("options", [{}, {"correlated": True}, {"masks": True}])
@pytest.mark.parametrize("most", [1, 50])
def test_quality_in_strips_of_rows_is_that_of_every_pixel_of_the_image(options, most, monkeypatch):
    found, there = random_scene(0, 2, 2, size=(11, 14), **options)
    expected = reference(found, there)
    assert (expected > 1e-3).any()
    monkeypatch.setattr(heat_maps, "_MOST_PIXELS", most)
    assert_allclose(pixel_quality(found, there).spatial.numpy(), expected, atol=1e-9)


def test_heat_maps_of_large_images_exist_in_strips_only():
    """The whole map would have 2**24 pixels."""
    found, there = single([0, 0, 4096, 4096], np.eye(4)), truth([0.0, 0.0, 4096.0, 4096.0], (4096, 4096))
    axes = [heat_maps._Axis.of(found.boxes, found.covariances, k, 4096).at(0) for k in (0, 1)]
    strips = [strip.probability.numel() for strip in heat_maps._heat_maps(axes, found.covariances[0])]
    assert (max(strips), sum(strips)) == (1 << 21, 1 << 24)
    assert 0.9 < float(pixel_quality(found, there).spatial) < 1


@pytest.mark.parametrize("variance", [1e-300, 5e-324, 1e300])
def test_correlations_of_tiny_and_huge_variances_are_defined(variance):
    covariance = np.eye(4) * variance
    covariance[0, 1] = covariance[1, 0] = variance / 2
    found, there = single([4.4, 3.4, 11.6, 8.6], covariance), truth([4.0, 3.0, 12.0, 9.0], (16, 20))
    quality = float(pixel_quality(found, there).spatial)
    # Of 48 pixels of 320. Sheppard: both coordinates of a corner are below 0 with 1 / 4 + arcsin(rho) / (2 pi).
    share = (1 / 4 + np.arcsin(0.5) / (2 * np.pi)) / 4
    vague = share * (1 - share) ** ((320 - 48) / 48)
    assert_allclose(quality, 1.0 if variance < 1 else vague, atol=1e-9)
