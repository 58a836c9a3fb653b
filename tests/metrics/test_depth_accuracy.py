"""Errors of predicted depth against definitions in NumPy, image by image."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch.distributions import Normal

import fcal
from fcal.metrics import depth_errors

NAMES = ["silog", "rmse", "rmse_log", "abs_rel", "sq_rel", "log10", "d1", "d2", "d3"]


def maps(images=6, height=5, width=7, dtype=torch.float64, seed=0):
    generator = torch.Generator().manual_seed(seed)
    shape = (images, height, width)
    target = 1 + 60 * torch.rand(shape, generator=generator, dtype=torch.float64)
    depth = target * torch.exp(0.3 * torch.randn(shape, generator=generator, dtype=torch.float64))
    target[torch.rand(shape, generator=generator) < 0.4] = torch.nan
    return depth.to(dtype), target.to(dtype)


def defined(p, t):
    """The scores of pixels with predicted depth p and measured depth t, by their definitions."""
    g, ratio = np.log(p) - np.log(t), np.maximum(p / t, t / p)
    return {
        "silog": np.std(g),
        "rmse": np.sqrt(np.mean((p - t) ** 2)),
        "rmse_log": np.sqrt(np.mean(g**2)),
        "abs_rel": np.mean(np.abs(p - t) / t),
        "sq_rel": np.mean((p - t) ** 2 / t),
        "log10": np.mean(np.abs(np.log10(p) - np.log10(t))),
        "d1": np.mean(ratio < 1.25),
        "d2": np.mean(ratio < 1.25**2),
        "d3": np.mean(ratio < 1.25**3),
    }


def assert_scores(found, expected, rtol=1e-12):
    assert list(found) == NAMES
    assert_allclose([found[name] for name in NAMES], [expected[name] for name in NAMES], rtol=rtol)


def images_of(depth, target, valid=None):
    """Valid pixels of each image that has any."""
    for index in range(len(target)):
        p, t = depth[index].double().numpy(), target[index].double().numpy()
        kept = ~np.isnan(t) if valid is None else ~np.isnan(t) & valid[index].numpy()
        if kept.any():
            yield p[kept], t[kept]


def mean_of_images(pixels):
    scores = [defined(*image) for image in pixels]
    return {name: np.mean([score[name] for score in scores]) for name in NAMES}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_pooled_scores_are_those_of_all_pixels_together(dtype):
    depth, target = maps(dtype=dtype)
    p, t = (np.concatenate(x) for x in zip(*images_of(depth, target), strict=True))
    found = depth_errors(depth, target)
    assert_scores(found.pooled, defined(p, t))
    assert found.n == len(p)


def test_scores_per_image_are_means_over_images():
    depth, target = maps()
    found = depth_errors(depth, target)
    assert_scores(found.per_image, mean_of_images(images_of(depth, target)))
    assert abs(found.per_image["silog"] - found.pooled["silog"]) > 1e-4  # the two kinds differ here


def test_masked_pixels_do_not_count_whatever_their_values():
    depth, target = maps()
    valid = torch.rand(target.shape, generator=torch.Generator().manual_seed(1)) < 0.5
    broken_depth = torch.where(valid, depth, -1.0)
    broken_target = torch.where(valid, target, 0.0)
    found = depth_errors(broken_depth, broken_target, valid_mask=valid)
    assert_scores(found.per_image, mean_of_images(images_of(depth, target, valid)))


def test_image_without_valid_pixels_is_left_out_of_the_means_and_counted():
    depth, target = maps()
    target[2] = torch.nan
    target[4] = torch.nan
    found = depth_errors(depth, target)
    assert (found.images, found.empty_images) == (4, 2)
    assert_scores(found.per_image, mean_of_images(images_of(depth, target)))


def test_leading_dimensions_are_images_and_a_single_map_is_one():
    depth, target = maps(images=6)
    stacked = depth_errors(depth.reshape(2, 3, 5, 7), target.reshape(2, 3, 5, 7))
    assert stacked == depth_errors(depth, target)
    single = depth_errors(depth[0], target[0])
    assert single.images == 1
    assert_scores(single.per_image, single.pooled)


def test_scores_of_many_pixels_are_summed_over_chunks():
    depth, target = maps(images=2, height=300, width=500)  # 150,000 pixels in an image, more than a chunk holds
    found = depth_errors(depth, target)
    assert_scores(found.per_image, mean_of_images(images_of(depth, target)), rtol=1e-11)


def test_silog_ignores_a_common_factor_pooled_over_the_set_and_per_image_in_each():
    depth, target = maps()
    factor = torch.tensor([0.5, 1, 2, 3, 4, 5], dtype=torch.float64).reshape(-1, 1, 1)
    plain, scaled, by_image = (depth_errors(x, target) for x in (depth, 3 * depth, factor * depth))
    assert_allclose(scaled.pooled["silog"], plain.pooled["silog"], rtol=1e-9)
    assert_allclose(by_image.per_image["silog"], plain.per_image["silog"], rtol=1e-9)
    assert by_image.pooled["silog"] > 1.2 * plain.pooled["silog"]


def test_ratio_at_a_threshold_does_not_count():
    target = torch.tensor([[2.0, 2.5, 2.0, 1.0]])
    depth = torch.tensor([[2.5, 2.0, 2.4, 1.25**2]])  # 5 / 4 either way, below, and (5 / 4)^2, all exact in binary
    assert [depth_errors(depth, target).pooled[name] for name in ("d1", "d2", "d3")] == [0.25, 0.75, 1.0]


def test_exact_prediction_has_no_error():
    _, target = maps()
    found = depth_errors(torch.where(torch.isnan(target), 1.0, target), target)
    assert list(found.pooled.values()) == [0.0] * 6 + [1.0] * 3


def test_gradients_are_not_kept():
    depth, target = maps()
    assert isinstance(depth_errors(depth.requires_grad_(), target).pooled["rmse"], float)


def test_report_is_plain_for_json():
    depth, target = maps()
    document = depth_errors(depth, target).as_dict()
    assert list(document) == ["n", "images", "empty_images", "pooled", "per_image"]
    assert list(document["per_image"]) == NAMES


GOOD = torch.full((1, 2, 3), 2.0)


@pytest.mark.parametrize(
    ("depth", "target", "options", "error", "message"),
    [
        (GOOD, GOOD * torch.nan, {}, ValueError, "expected `target` with at least 1 value that counts, got 0"),
        (GOOD[:0], GOOD[:0], {}, ValueError, "expected `target` with at least 1 value that counts, got 0"),
        (GOOD * 0, GOOD, {}, ValueError, r"expected `depth` > 0 and finite where `target` counts, got 0 \(6 of 6"),
        (GOOD * torch.nan, GOOD, {}, ValueError, "expected `depth` > 0 and finite where `target` counts, got nan"),
        (GOOD / 0, GOOD, {}, ValueError, "expected `depth` > 0 and finite where `target` counts, got inf"),
        (GOOD, -GOOD, {}, ValueError, r"expected `target` > 0 and finite \(NaN where missing\), got -2"),
        (GOOD, GOOD[0], {}, ValueError, r"expected `depth` of shape \(2, 3\) like `target`, got \(1, 2, 3\)"),
        (GOOD[0, 0], GOOD[0, 0], {}, ValueError, r"expected `target` of shape \(..., H, W\), got \(3,\)"),
        (GOOD.int(), GOOD, {}, TypeError, "expected `depth` of a floating dtype, got torch.int32"),
        (Normal(GOOD, 1.0), GOOD, {}, TypeError, "expected `depth` a torch.Tensor, got Normal"),
        (GOOD, GOOD, {"valid_mask": GOOD}, TypeError, "expected `valid_mask` of dtype torch.bool"),
        (GOOD, GOOD, {"valid_mask": GOOD[0] > 0}, ValueError, "expected `valid_mask` of shape"),
    ],
)
def test_bad_maps_are_refused_by_name(depth, target, options, error, message):
    with pytest.raises(error, match=message):
        depth_errors(depth, target, **options)


def test_depth_groups_are_those_of_a_comparison_with_the_edges():
    depth = torch.tensor([[0.5, 5.0, 19.999, 20.0], [79.9, 80.0, 1e4, torch.nan]])
    codes, names = fcal.metrics.depth_groups(depth, edges=(1, 20, 80), name="predicted depth")
    expected = [["below 1", "1 to 20", "1 to 20", "20 to 80"], ["20 to 80", "from 80", "from 80", "below 1"]]
    assert [[names[code] for code in row] for row in codes] == [[f"predicted depth {x} m" for x in r] for r in expected]


@pytest.mark.parametrize(
    ("depth", "edges", "error", "message"),
    [
        (
            torch.ones(2),
            (0, 10, 10),
            ValueError,
            r"expected `edges` at least 2 rising numbers, got \[0.0, 10.0, 10.0\]",
        ),
        (torch.ones(2), (5,), ValueError, "expected `edges` at least 2 rising numbers"),
        (torch.ones(2), (0, float("nan")), ValueError, "expected `edges` within"),
        (torch.ones(2), ("a", 3), TypeError, "expected `edges` a number, got str 'a'"),
        (torch.ones(2, dtype=torch.int64), (0, 1), TypeError, "expected `depth` a tensor of a floating dtype"),
    ],
)
def test_depth_groups_refuse_what_makes_no_groups(depth, edges, error, message):
    with pytest.raises(error, match=message):
        fcal.metrics.depth_groups(depth, edges=edges)


def test_right_predictions_are_calibrated_by_predicted_depth_but_look_biased_by_measured_depth():
    # Depth uniform in 0 to 80 m, sigma 5 m: measured at 10 to 20 m and predicted there are not the same pixels.
    generator = torch.Generator().manual_seed(0)
    depth = 80 * torch.rand(200, 500, generator=generator)
    target = depth + 5 * torch.randn(200, 500, generator=generator)
    reports = []
    for values in (depth, target):
        codes, names = fcal.metrics.depth_groups(values)
        report = fcal.evaluate(
            Normal(depth, 5.0), target, group=codes, group_names=names, cluster=torch.arange(200), df=20
        )
        reports.append(report.groups)
    predicted, measured = reports
    assert {group.verdict for group in predicted.values()} == {"calibrated"}
    assert measured["depth below 0 m"].verdict == "biased"
    assert measured["depth from 80 m"].shift.low > 0.5
