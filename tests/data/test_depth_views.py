"""Crop, resizing and focal length, against slicing, rational arithmetic, another resampler and a rendered plane."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from depth_files import noise_image, sparse_depth, write_frame
from numpy.testing import assert_allclose, assert_array_equal
from PIL import Image

from fcal.data import DepthFrames, DepthView
from fcal.data.depth_views import nearest_per_cell, normalised, resized_image


def target(folder, depth, view, focal=20.0):
    frame = write_frame(folder, depth=depth, shape=depth.shape, focal=focal)
    return DepthFrames([frame], view)[0]["target"].numpy()


def projected(depth, size, scale, offset=(0, 0), resized=None):
    """Nearest depth per cell, pixel by pixel, in rational arithmetic; NaN where there is none."""
    cells = np.full(size, np.nan)
    for v, u in zip(*np.nonzero(depth), strict=True):
        scaled = [int((Fraction(int(x)) + Fraction(1, 2)) * s) for x, s in zip((v, u), scale, strict=True)]
        row, column = (at - start for at, start in zip(scaled, offset, strict=True))
        cut = resized is not None and any(at >= most for at, most in zip(scaled, resized, strict=True))
        if cut or not (0 <= row < size[0] and 0 <= column < size[1]) or not 0.001 < depth[v, u] < 80:
            continue
        cells[row, column] = np.fmin(cells[row, column], depth[v, u])
    return cells


@pytest.mark.parametrize("size", [(8, 12), (16, 24), (7, 11), (5, 24), (40, 50), (1, 1)])
def test_plain_resize_keeps_the_nearest_measured_depth_of_a_cell(tmp_path, size):
    depth = sparse_depth((16, 24), share=0.5)
    expected = projected(depth, size, (Fraction(size[0], 16), Fraction(size[1], 24)))
    assert_array_equal(target(tmp_path, depth, DepthView(size=size)), expected.astype(np.float32))


@pytest.mark.parametrize("focal", [10, 7, 13, 20, 31])
@pytest.mark.parametrize("size", [(6, 10), (9, 8), (30, 40)])
def test_focal_view_shows_the_bottom_centre_of_the_resized_frame(tmp_path, focal, size):
    depth, ratio = sparse_depth((16, 24), share=0.5), Fraction(focal, 20)
    resized = int(16 * ratio), int(24 * ratio)
    offset = resized[0] - size[0], (resized[1] - size[1]) // 2
    expected = projected(depth, size, (ratio, ratio), offset, resized)
    assert_array_equal(target(tmp_path, depth, DepthView(size=size, focal=float(focal))), expected.astype(np.float32))


def test_no_view_keeps_all_depths_within_the_limits(tmp_path):
    depth = sparse_depth((16, 24), share=0.8, farthest=120.0)
    expected = np.where((depth > 0) & (depth < 80), depth, np.nan)
    assert (depth > 80).any()
    assert_array_equal(target(tmp_path, depth, DepthView()), expected.astype(np.float32))


def test_limits_are_exclusive(tmp_path):
    depth = np.array([[1.0, 2.0, 3.0, 4.0]])
    assert_array_equal(target(tmp_path, depth, DepthView(least=1.0, cap=4.0)), [[np.nan, 2, 3, np.nan]])


@pytest.mark.parametrize("shape", [(375, 1242), (370, 1224), (376, 1241), (352, 1216)])
def test_kb_crop_is_the_bottom_centre(tmp_path, shape):
    depth, image = sparse_depth(shape, share=0.01, farthest=70.0), noise_image(shape)
    frame = write_frame(tmp_path, depth=depth, image=image, focal=721.5377)
    item = DepthFrames([frame], DepthView(crop="kb"))[0]
    top, left = shape[0] - 352, int((shape[1] - 1216) / 2)  # as in the benchmark's development kit
    shown = np.s_[top : top + 352, left : left + 1216]
    assert_array_equal(np.nan_to_num(item["target"].numpy()), depth[shown].astype(np.float32))
    colours = (image[shown] / 255 - (0.485, 0.456, 0.406)) / (0.229, 0.224, 0.225)
    assert_allclose(item["input"].permute(1, 2, 0).numpy(), colours, atol=1e-5)


def test_garg_region_refers_to_the_image_before_its_crop(tmp_path):
    height, width = 375, 1242
    depth = sparse_depth((height, width), share=0.02, farthest=70.0)
    counts = np.zeros_like(depth, dtype=bool)
    counts[153:371, 44:1197] = True  # the pixels stated for KITTI's images of 375 x 1242 by Garg et al.
    top, left = height - 352, 13
    expected = np.where(counts, depth, 0.0)[top:, left : left + 1216]
    shown = target(tmp_path, depth, DepthView(crop="kb", garg=True))
    assert_array_equal(np.nan_to_num(shown), expected.astype(np.float32))


@pytest.mark.parametrize(
    ("shape", "focal", "view"),
    [
        ((375, 1242), 721.5377, DepthView(size=(96, 320), focal=186.0)),
        ((187, 621), 721.5377 / 2, DepthView(size=(90, 300), focal=186.0)),
        ((376, 1241), 718.856, DepthView(size=(64, 208), focal=130.0)),
        ((370, 1224), 707.0493, DepthView(size=(96, 320))),
        ((376, 1241), 718.856, DepthView(size=(176, 608), focal=360.0, crop="kb")),
        ((20, 30), 10.0, DepthView(size=(40, 60), focal=22.0)),
    ],
)
def test_image_is_resampled_as_pillow_does_in_the_same_box(shape, focal, view):
    smooth = np.asarray(Image.fromarray(noise_image((9, 17))).resize(shape[::-1], Image.Resampling.BICUBIC)).copy()
    placement = view.placement(shape, focal)
    shown = resized_image(torch.from_numpy(smooth), placement).permute(1, 2, 0).numpy()
    crop, window, scale = placement.crop, placement.window, placement.scale
    top, left = window.top / scale[0] + crop.top, window.left / scale[1] + crop.left
    box = (left, top, min(left + window.width / scale[1], shape[1]), min(top + window.height / scale[0], shape[0]))
    other = np.asarray(Image.fromarray(smooth).resize((window.width, window.height), Image.Resampling.BILINEAR, box))
    assert np.abs(shown.astype(int) - other.astype(int)).max() <= 2  # both round to bytes, in two passes


def test_image_and_depth_land_in_the_same_cell(tmp_path):
    image, depth = np.zeros((60, 90, 3), np.uint8), np.zeros((60, 90))
    image[34:42, 51:59], depth[38, 55] = 255, 12.0
    view = DepthView(size=(20, 30), focal=7.0)
    item = DepthFrames([write_frame(tmp_path, image=image, depth=depth, focal=20.0)], view)[0]
    assert item["target"].nan_to_num().argmax() == item["input"].sum(0).argmax()


def inverse_depth(height, width, focal):
    """1 / Z of the plane 0.02 X + 0.05 Y + 0.06 Z = 1 at the centres of the pixels of a pinhole camera.

    The principal point is above the middle of the bottom edge, half the focal length away.
    """
    v, u = np.meshgrid(np.arange(height) + 0.5, np.arange(width) + 0.5, indexing="ij")
    return 0.02 * (u - width / 2) / focal + 0.05 * ((v - height) / focal + 0.5) + 0.06


@pytest.mark.parametrize("focal", [200, 150, 170, 110])
def test_plane_has_the_same_depth_in_items_of_cameras_of_any_focal_length(tmp_path, focal):
    depth = 1 / inverse_depth(30 * focal // 50, 80 * focal // 50, focal)
    shown = target(tmp_path, depth, DepthView(size=(30, 80), focal=50.0), focal)
    centre = inverse_depth(30, 80, 50)  # photographed by a camera with the focal length of the items
    to_corner = 0.5 * (0.02 + 0.05) / 50  # most that the inverse depth changes within half a cell
    assert (1 / (centre + to_corner) - 1 / 256 <= shown).all()
    assert (shown <= 1 / (centre - to_corner) + 1 / 256).all()


def test_plane_parallel_to_the_image_has_its_depth_in_every_cell(tmp_path):
    for focal, shape in ((721.5377, (375, 1242)), (721.5377 / 2, (187, 621)), (707.0493, (370, 1224))):
        shown = target(tmp_path / str(focal), np.full(shape, 12.5), DepthView(size=(96, 320), focal=186.0), focal)
        assert_array_equal(shown, np.full((96, 320), 12.5, np.float32))


@pytest.mark.parametrize("focal", [100, 150, 230])
def test_object_of_known_size_spans_the_same_cells_for_every_camera(tmp_path, focal):
    height, width = 30 * focal // 50, 80 * focal // 50
    x = (np.arange(width) + 0.5 - width / 2) / focal * 10.0  # metres, 10 m away
    depth = np.broadcast_to(np.where(np.abs(x) < 1.0, 10.0, 0.0), (height, width))
    shown = target(tmp_path, depth, DepthView(size=(30, 80), focal=50.0), focal)
    assert (np.isfinite(shown).sum(1) == 50 * 2.0 / 10.0).all()  # pixels = focal length x metres / distance


def test_cells_outside_the_image_have_the_mean_colour_and_no_target(tmp_path):
    frame = write_frame(tmp_path, shape=(16, 24), depth=np.full((16, 24), 5.0), focal=20.0)
    item = DepthFrames([frame], DepthView(size=(12, 20), focal=10.0))[0]
    outside = torch.ones(12, 20, dtype=torch.bool)
    outside[4:, 4:16] = False  # the frame has become 8 x 12, at the bottom centre
    assert_array_equal(item["target"].isnan(), outside)
    assert item["input"][:, outside].abs().max() < 0.01
    assert item["input"][:, ~outside].abs().max() > 0.1


def test_nearest_per_cell_takes_the_first_of_equal_ranks():
    cells, pixels = nearest_per_cell(torch.tensor([4, 4, 4]), torch.tensor([7, 3, 3]), torch.tensor([30, 20, 10]), 5)
    assert (cells.tolist(), pixels.tolist()) == ([4], [10])


def test_normalisation_is_by_the_moments_of_imagenet():
    images = torch.tensor([[[[0]], [[128]], [[255]]]], dtype=torch.uint8)
    expected = [(0 - 0.485) / 0.229, (128 / 255 - 0.456) / 0.224, (1 - 0.406) / 0.225]
    assert_allclose(normalised(images).flatten().numpy(), expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"size": [96, 320]}, "`size` a tuple of height and width, got [96, 320]"),
        ({"size": (96, 0)}, "`size: width` >= 1, got 0"),
        ({"size": (96, 320), "focal": 0.0}, "`focal` within [1, 100000], got 0"),
        ({"focal": 186.0}, "`size` with `focal`, got None"),
        ({"crop": "bk"}, "`crop` one of 'kb', got 'bk'"),
        ({"garg": 1}, "`garg` a bool, got int 1"),
        ({"least": 81.0}, "`least` within [0, 80], got 81"),
        ({"cap": 300.0}, "`cap` within [0.01, 255], got 300"),
    ],
)
def test_view_refuses_options_that_do_not_fit(options, message):
    with pytest.raises((TypeError, ValueError)) as error:
        DepthView(**options)
    assert message in str(error.value)


def test_crop_refuses_an_image_that_is_smaller(tmp_path):
    with pytest.raises(ValueError, match="image.0.png: expected an image of at least 352 x 1216 pixels for the crop"):
        DepthFrames([write_frame(tmp_path, shape=(187, 621))], DepthView(crop="kb"))[0]


def test_focal_length_that_leaves_no_pixel_is_refused():
    with pytest.raises(ValueError, match="an image of which `focal` 1 leaves a pixel, got 4 x 6"):
        DepthView(size=(2, 2), focal=1.0).placement((4, 6), focal=50.0)
