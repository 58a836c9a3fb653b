"""Pictures of detected boxes."""

import re

import numpy as np
import pytest
from matplotlib.patches import Ellipse, Rectangle

from fcal.plots import PredictedBoxes, box_gallery

IMAGE = np.zeros((40, 60, 3), np.uint8)
BOXES = np.array([[5.0, 5.0, 20.0, 30.0], [30.0, 10.0, 55.0, 35.0]])


def frame(**changed):
    return PredictedBoxes(
        **({"image": IMAGE, "boxes": BOXES, "sigmas": np.ones((2, 4)), "truths": BOXES + 1} | changed)
    )


def test_gallery_draws_boxes_truths_and_two_ellipses_of_each_box():
    ax = box_gallery([frame(title="NLL")]).axes[0]
    ellipses = [patch for patch in ax.patches if isinstance(patch, Ellipse)]
    assert sum(isinstance(patch, Rectangle) for patch in ax.patches) == 4
    assert [ellipse.center for ellipse in ellipses] == [(5, 5), (20, 30), (30, 10), (55, 35)]
    assert {(ellipse.width, ellipse.height) for ellipse in ellipses} == {(4.0, 4.0)}  # two sigma to each side
    assert ax.get_title(loc="left") == "NLL"


def test_inside_is_the_share_of_corners_within_two_sigma():
    """The first box is off by (1, 1) in one corner and (3, 3) in the other, with a sigma of 1; the second is exact."""
    truths = BOXES + np.array([[1.0, 1.0, 3.0, 3.0], [0.0, 0.0, 0.0, 0.0]])
    assert frame(truths=truths).inside == pytest.approx(0.75)


def test_gallery_has_a_column_for_every_row_of_the_benchmark():
    figure = box_gallery([frame() for _ in range(6)], columns=3)
    assert len(figure.axes) == 6


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"boxes": np.zeros((2, 3))}, "`boxes` of shape (n, 4), got (2, 3)"),
        ({"sigmas": np.ones((3, 4))}, "`sigmas` of shape (n, 4), got (3, 4)"),
        ({"sigmas": -np.ones((2, 4))}, "`sigmas` >= 0, got -1"),
        ({"image": np.zeros((4, 4))}, "`image` uint8 of shape (H, W, 3)"),
    ],
)
def test_frames_of_wrong_shapes_are_refused(changed, message):
    with pytest.raises(ValueError, match=re.escape(message)):
        frame(**changed)


def test_gallery_without_frames_is_refused():
    with pytest.raises(ValueError, match="`frames` with at least one"):
        box_gallery([])
