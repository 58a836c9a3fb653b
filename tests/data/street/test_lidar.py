"""Measured depth: normal around the truth with the stated sigma, everywhere; sparse, in lines, within reach."""

from functools import cache

import numpy as np
import pytest
from scipy import stats

from fcal.data.street import LidarConfig, StreetConfig, StreetFrame, street_frame
from fcal.data.street.lidar import SIGMA_STEP, lidar_sigma, occlusion_edges, scanned

FALSE_ALARM = 1e-4  # of each of the 16 tests of the noise: 0.0016 in total, were the seed not fixed
STREETS = StreetConfig(frames=48, frames_per_drive=2, seed=77)


@cache
def frames() -> list[StreetFrame]:
    return [street_frame(STREETS, index) for index in range(STREETS.frames)]


def column(name: str) -> np.ndarray:
    """Values of all measured pixels of all frames."""
    return np.concatenate([getattr(frame, name)[np.isfinite(frame.measured)] for frame in frames()])


def strata() -> dict[str, np.ndarray]:
    depth, facing, is_edge = column("depth"), column("facing"), column("is_edge")
    return {
        "all": np.ones(len(depth), bool),
        "near": depth < 8,
        "middle": (depth >= 8) & (depth < 25),
        "far": depth >= 25,
        "edge": is_edge,
        "no edge": ~is_edge,
        "frontal": facing > 0.7,
        "grazing": facing < 0.15,
    }


@pytest.mark.parametrize("name", ["all", "near", "middle", "far", "edge", "no edge", "frontal", "grazing"])
def test_standardised_residuals_are_standard_normal(name):
    rows = strata()[name]
    depth, sigma, measured = (column(field).astype(np.float64) for field in ("depth", "sigma", "measured"))
    z = ((measured - depth) / sigma)[rows]
    assert len(z) > 3000
    below = stats.chi2(len(z)).cdf(np.sum(z**2))
    assert FALSE_ALARM / 2 < below < 1 - FALSE_ALARM / 2
    assert stats.kstest(z, "norm").pvalue > FALSE_ALARM


def test_rounding_to_a_depth_image_adds_little_to_the_variance():
    sigma = column("sigma").astype(np.float64)
    added = (np.round(column("measured") * 256.0) / 256 - column("measured").astype(np.float64)) / sigma
    assert np.mean(added**2) < 2e-4
    assert (1 / 256) ** 2 / 12 / 0.02**2 < 0.0033  # what is documented for the least floor
    assert (1 / 256) ** 2 / 12 / 0.03**2 < 0.0015


def test_noise_of_neighbouring_pixels_and_frames_is_independent():
    one, other = (
        np.where(np.isfinite(f.measured), (f.measured - np.where(np.isinf(f.depth), 0, f.depth)) / f.sigma, np.nan)
        for f in frames()[:2]
    )
    beside = one[:, 1:] * one[:, :-1]
    assert abs(np.nanmean(beside)) < 4 / np.sqrt(np.isfinite(beside).sum())  # 4 standard errors: 6e-5
    both = one * other
    assert abs(np.nanmean(both)) < 4 / np.sqrt(np.isfinite(both).sum())


def test_sigma_follows_its_formula_and_a_sigma_image_holds_it():
    frame, lidar = frames()[5], STREETS.lidar
    seen = np.isfinite(frame.depth) & (frame.depth < lidar.reach)
    expected = (0.03 + 0.02 * frame.depth[seen].astype(float)) * (2 - frame.facing[seen].astype(float))
    expected *= np.where(frame.is_edge[seen], 3, 1)
    np.testing.assert_allclose(frame.sigma[seen], expected, atol=SIGMA_STEP)
    assert (frame.sigma * 4096 == np.round(frame.sigma * 4096)).all()
    assert (frame.sigma >= 0.03).all()


def test_sigma_grows_with_distance_slant_and_edges():
    depth, facing, edge = (
        np.array([[10.0, 20.0]], np.float32),
        np.array([[1.0, 0.5]], np.float32),
        np.array([[False, True]]),
    )
    lidar, one = LidarConfig(floor=0.1, relative=0.01, slant=2.0, edge=4.0), np.ones((1, 2), np.float32)
    np.testing.assert_allclose(lidar_sigma(lidar, depth, one, edge < 0), [[0.2, 0.3]], atol=SIGMA_STEP)
    np.testing.assert_allclose(lidar_sigma(lidar, 10 * one, facing, edge < 0), [[0.2, 0.4]], atol=SIGMA_STEP)
    np.testing.assert_allclose(lidar_sigma(lidar, 10 * one, one, edge), [[0.2, 0.8]], atol=SIGMA_STEP)


@pytest.mark.parametrize("density", [0.05, 0.25, 0.6])
def test_density_is_the_share_of_measured_pixels(density):
    streets = StreetConfig(frames=6, frames_per_drive=1, seed=3, lidar=LidarConfig(density=density))
    for index in range(6):
        frame = street_frame(streets, index)
        possible = np.mean((frame.depth + 5 * frame.sigma <= 80) & (frame.depth > 1.5))
        share = np.isfinite(frame.measured).mean()
        # Five standard deviations of a share of 13,312 pixels.
        assert abs(share - density) < 5 * np.sqrt(0.25 / 13_312) or (
            density > 0.9 * possible and share > 0.9 * possible
        )


def test_returns_lie_on_scan_lines():
    frame = street_frame(StreetConfig(lidar=LidarConfig(density=0.1)), 0)
    lines = np.isfinite(frame.measured).any(axis=1)
    assert lines.sum() <= 0.2 * 64 + 1
    assert np.isfinite(frame.measured)[lines][-4:].mean() > 0.3


def test_scan_lines_differ_from_frame_to_frame():
    rows = {
        tuple(
            np.flatnonzero(
                np.isfinite(street_frame(StreetConfig(frames=8, lidar=LidarConfig(density=0.1)), k).measured).any(
                    axis=1
                )
            )
        )
        for k in range(8)
    }
    assert len(rows) > 2


def test_sky_and_what_is_beyond_the_reach_are_not_measured():
    for frame in frames()[:10]:
        has_return = np.isfinite(frame.measured)
        assert np.isinf(frame.depth).any()
        assert not (has_return & np.isinf(frame.depth)).any()
        assert (frame.depth + 5 * frame.sigma)[has_return].max() <= 80
        assert frame.measured[has_return].min() > 0
        assert frame.measured[has_return].max() < 82


@pytest.mark.parametrize(("depth", "is_measured"), [(72.4, True), (72.6, False), (8.1, True), (7.9, False)])
def test_wall_is_measured_if_five_true_sigmas_fit_into_the_reach(depth, is_measured):
    """With a sigma of 1.5 m, whatever the noise: from 0.5 + 7.5 m to 80 - 7.5 m."""
    wall, sigma = np.full((4, 50), depth, np.float32), np.full((4, 50), 1.5, np.float32)
    has_return = scanned(LidarConfig(density=1.0), wall, sigma, np.full(201, 0.5))
    assert has_return.all() if is_measured else not has_return.any()


def test_occlusion_edges_are_those_of_a_loop():
    generator = np.random.default_rng(1)
    thing = np.kron(generator.integers(0, 3, (4, 5)), np.ones((3, 3), int))
    depth = (5 + 10 * thing + generator.uniform(0, 3, thing.shape)).astype(np.float32)
    depth[thing == 0] = np.inf
    inverse, expected = 1 / depth.astype(float), np.zeros(thing.shape, bool)
    for i in range(12):
        for j in range(15):
            for down, right in ((0, 1), (1, 0)):
                a, b = (i, j), (i + down, j + right)
                before, behind = (i - down, j - right), (i + 2 * down, j + 2 * right)
                if not (b[0] < 12 and b[1] < 15) or thing[a] == thing[b]:
                    continue
                slopes = [0.0]
                if min(before) >= 0 and thing[before] == thing[a]:
                    slopes.append(abs(inverse[a] - inverse[before]))
                if behind[0] < 12 and behind[1] < 15 and thing[behind] == thing[b]:
                    slopes.append(abs(inverse[behind] - inverse[b]))
                if abs(inverse[a] - inverse[b]) > max(slopes) + 0.05 * max(inverse[a], inverse[b]):
                    expected[a] = expected[b] = True
    np.testing.assert_array_equal(occlusion_edges(depth, thing), expected)
    assert 0 < expected.mean() < 1


@pytest.mark.parametrize(
    ("option", "value", "message"),
    [
        ("density", 0.0, "expected `density` within"),
        ("floor", 0.001, r"expected `floor` within \[0.02, 1\], got 0.001"),
        ("edge", 0.5, "expected `edge` within"),
        ("reach", float("nan"), "expected `reach` within"),
    ],
)
def test_lidar_refuses_levels_out_of_range(option, value, message):
    with pytest.raises(ValueError, match=message):
        LidarConfig(**{option: value})
