"""A gallery of predicted depth shows the numbers it was given."""

import numpy as np
import pytest
from matplotlib.colors import LogNorm
from numpy.testing import assert_allclose, assert_array_equal
from plots.drawn import assert_nothing_is_cut_off

from fcal.plots import PredictedDepth, depth_gallery
from fcal.plots.predicted_depth import _thickened


def frame(seed=0, shape=(12, 40), *, measured=True, title=""):
    rng = np.random.default_rng(seed)
    depth = rng.uniform(2.0, 70.0, shape)
    target = np.where(rng.random(shape) < 0.2, depth + rng.normal(size=shape), np.nan) if measured else None
    image = rng.integers(0, 256, (*shape, 3), dtype=np.uint8)
    return PredictedDepth(image=image, depth=depth, sigma=0.1 * depth, target=target, title=title)


def panels(figure):
    """What is drawn, by the label of its row: the topmost map of every column."""
    drawn = [ax for ax in figure.axes if ax.images]
    columns = sum(ax.get_subplotspec().rowspan.start == 0 for ax in drawn)
    rows = [drawn[start : start + columns] for start in range(0, len(drawn), columns)]
    return {row[0].get_ylabel(): [ax.images[-1] for ax in row] for row in rows}


def test_gallery_shows_image_depth_and_sigma_of_every_frame():
    frames = [frame(0, measured=False), frame(1, measured=False)]
    shown = panels(depth_gallery(frames))
    assert list(shown) == ["image", "depth", "sigma"]
    for name, maps in shown.items():
        for drawn, each in zip(maps, frames, strict=True):
            assert_array_equal(drawn.get_array(), getattr(each, name))


def test_gallery_shows_errors_in_units_of_sigma_where_depth_was_measured():
    frames = [frame(0), frame(1)]
    shown = panels(depth_gallery(frames))["|error| / sigma"]
    for drawn, each in zip(shown, frames, strict=True):
        known = ~np.isnan(each.target)
        ratio = np.abs(each.depth[known] - each.target[known]) / each.sigma[known]
        assert_allclose(np.ma.filled(drawn.get_array(), np.nan)[known], ratio)
        alpha = drawn.to_rgba(drawn.get_array())[..., 3]
        assert_array_equal(alpha > 0, known)


def test_gallery_colours_mean_the_same_in_all_columns():
    shown = panels(depth_gallery([frame(0), frame(1), frame(2)]))
    for name in ("depth", "sigma", "|error| / sigma"):
        limits = {drawn.get_clim() for drawn in shown[name]}
        assert len(limits) == 1
    low, high = shown["depth"][0].get_clim()
    assert 2.0 <= low < 3.0 < 65.0 < high <= 70.0
    assert isinstance(shown["sigma"][0].norm, LogNorm)
    assert shown["|error| / sigma"][0].get_clim() == (0.0, 4.0)


def test_gallery_draws_frames_without_measurements_beside_others():
    shown = panels(depth_gallery([frame(0), frame(1, measured=False)]))["|error| / sigma"]
    assert shown[1].get_cmap().name == "gray"  # the image behind, and nothing on it


@pytest.mark.parametrize(("count", "shape"), [(1, (64, 208)), (3, (64, 208)), (2, (60, 40)), (1, (40, 1300))])
def test_nothing_of_a_gallery_is_cut_off(count, shape):
    assert_nothing_is_cut_off(depth_gallery([frame(k, shape, title=f"frame {k} $") for k in range(count)]))


def test_gallery_draws_constant_and_unknown_depth():
    flat = np.full((4, 6), 5.0)
    image = np.zeros((4, 6, 3), np.uint8)
    for depth in (flat, np.full((4, 6), np.nan)):
        figure = depth_gallery([PredictedDepth(image=image, depth=depth, sigma=depth)])
        assert figure._repr_png_().startswith(b"\x89PNG")


def test_single_pixels_of_a_large_image_are_repeated_around_them():
    values = np.full((9, 700), np.nan)
    values[4, 100], values[4, 102], values[0, 699] = 1.0, 3.0, 2.0
    expected = np.full_like(values, np.nan)
    for row, column in zip(*np.nonzero(~np.isnan(values)), strict=True):
        for i in range(max(row - 2, 0), row + 3):  # 700 columns are a little more than 2 x 330
            for j in range(column - 2, min(column + 3, 700)):
                expected[i, j] = np.fmax(expected[i, j], values[row, column])
    expected[4, 100] = 1.0  # a measured pixel keeps its own number
    assert_array_equal(_thickened(values), expected)


def test_small_images_keep_single_pixels():
    values = frame().error_ratio
    assert _thickened(values) is values


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"image": np.zeros((4, 6, 3))}, r"expected `image` uint8 of shape \(H, W, 3\), got float64 \(4, 6, 3\)"),
        ({"sigma": np.ones((4, 5))}, r"expected `sigma` of the shape of the image, \(4, 6\), got \(4, 5\)"),
        ({"target": np.ones(24)}, r"expected `target` of the shape of the image, \(4, 6\), got \(24,\)"),
    ],
)
def test_frame_refuses_maps_that_do_not_fit(changes, message):
    whole = {"image": np.zeros((4, 6, 3), np.uint8), "depth": np.ones((4, 6)), "sigma": np.ones((4, 6))}
    with pytest.raises(ValueError, match=message):
        PredictedDepth(**{**whole, **changes})


def test_gallery_refuses_no_frames():
    with pytest.raises(ValueError, match="expected `frames` with at least one, got none"):
        depth_gallery([])
