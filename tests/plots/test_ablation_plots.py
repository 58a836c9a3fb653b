"""Lines and dots show the numbers they are given, all of them, and nothing else."""

import numpy as np
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from fcal.plots.ablation_plots import dots, lines

SERIES = {"one": [(2, 0.5), (20, 0.05), (200, 0.01)], "two": [(2, 0.2), (20, None), (200, 0.3)]}


def points(line):
    return list(zip(*(np.asarray(part, dtype=float).tolist() for part in line.get_data()), strict=True))


def texts(ax):
    return [text.get_text() for text in ax.texts if text.get_text()]


def test_lines_pass_through_every_point_in_the_order_given():
    back = {"a": [(3.0, 1.0), (1.0, 2.0), (2.0, 0.0)]}
    ax = lines(back, x="accuracy", y="calibration")
    assert points(ax.lines[0]) == back["a"]
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("accuracy", "calibration")
    assert [line.get_label() for line in ax.lines] == ["a"]


def test_lines_are_drawn_on_the_axes_passed_in():
    ax = Figure().subplots()
    assert lines(SERIES, x="K", y="ECE", log_x=True, ax=ax) is ax
    with pytest.raises(TypeError, match="expected `ax` matplotlib axes or None, got str"):
        lines(SERIES, x="K", y="ECE", ax="here")


def test_lines_leave_a_gap_where_a_number_is_missing():
    ax = lines(SERIES, x="K", y="ECE", log_x=True, log_y=True)
    drawn = points(ax.lines[1])
    assert drawn[0] == (2.0, 0.2)
    assert np.isnan(drawn[1]).all()
    assert drawn[2] == (200.0, 0.3)


def test_series_without_x_is_drawn_across_the_panel():
    ax = lines({**SERIES, "flat": [(None, 0.1)]}, x="K", y="ECE", log_x=True)
    assert ax.lines[2].get_label() == "flat"
    assert points(ax.lines[2]) == [(0.0, 0.1), (1.0, 0.1)]
    assert ax.lines[2].get_transform() == ax.get_yaxis_transform(which="grid")


def test_series_without_x_and_y_is_not_drawn_but_keeps_its_name():
    ax = lines({**SERIES, "lost": [(None, None)]}, x="K", y="ECE")
    assert ax.lines[2].get_label() == "lost"
    assert np.isnan(points(ax.lines[2])).all()


@pytest.mark.parametrize(("highest", "scale"), [(2.9, "linear"), (3.1, "log")])
def test_logarithmic_axis_is_plain_over_a_small_range(highest, scale):
    ax = lines({"a": [(1.0, 1.0), (highest, highest)]}, x="x", y="y", log_x=True, log_y=True)
    assert (ax.get_xscale(), ax.get_yscale()) == (scale, scale)


def test_ticks_are_at_the_points_as_far_as_there_is_room():
    ax = lines({"a": [(k, 1.0) for k in (2, 5, 10, 25, 50, 52, 200)]}, x="K", y="ECE", log_x=True)
    assert ax.get_xticks().tolist() == [2, 5, 10, 25, 50, 200]
    FigureCanvasAgg(ax.figure).draw()
    assert [label.get_text() for label in ax.get_xticklabels()] == ["2", "5", "10", "25", "50", "200"]


def test_first_and_last_point_with_a_number_are_named():
    given = {"a": [(1.0, 1.0), (2.0, 2.0), (3.0, 3.0), (4.0, None)]}
    ax = lines(given, x="x", y="y", marks={"a": ["0.1", "0.5", "0.9", "1"]})
    assert texts(ax) == ["0.1", "0.9"]
    assert [text.xy for text in ax.texts[:2]] == [(1.0, 1.0), (3.0, 3.0)]


def test_floor_is_a_band_from_mean_to_quantile_and_is_explained():
    ax = lines(SERIES, x="K", y="ECE", log_y=True, floor=(0.004, 0.008))
    (band,) = ax.patches
    assert (band.get_y(), band.get_height()) == (0.004, pytest.approx(0.004))
    assert "grey: perfect predictions, mean 0.00400 to 95 % 0.00800" in texts(ax)


@pytest.mark.parametrize(
    ("series", "message"),
    [
        ({}, "expected `series` with a point at least, got none"),
        ({"a": []}, "expected `series` with a point at least, got none"),
        ({"a": [(1.0, 0.0)]}, "expected `series` 'a' positive, for a logarithmic axis, got 0.0"),
        ({"a": [(float("nan"), 1.0)]}, "expected `series` 'a' finite, got nan"),
    ],
)
def test_lines_that_cannot_be_drawn_are_refused(series, message):
    with pytest.raises(ValueError, match=message):
        lines(series, x="x", y="y", log_y=True)


def test_dots_show_every_name_with_its_number():
    ax = dots({"kl": 0.02, "lost": None, "wasserstein": 0.5}, x="ECE(q)", log_x=True, reference=("NLL", 0.1))
    assert [label.get_text() for label in ax.get_yticklabels()] == ["kl", "lost", "wasserstein"]
    assert points(ax.lines[0]) == [(0.02, 0.0), (0.5, 2.0)]
    assert texts(ax)[:3] == ["0.0200", "failed", "0.500"]
    assert "dashed: NLL, 0.100" in texts(ax)
    assert ax.lines[1].get_xdata() == [0.1, 0.1]
    assert ax.get_ylim()[0] > ax.get_ylim()[1]  # the first on top


def test_pictures_stay_within_their_figure():
    many = {f"a rather long name of a series, number {i}": [(1, i + 1.0), (10, i + 2.0)] for i in range(9)}
    for ax in (
        lines(many, x="K", y="ECE", log_x=True, floor=(0.5, 0.7)),
        dots({name: pairs[0][1] for name, pairs in many.items()}, x="ECE(q)", floor=(0.5, 0.7)),
    ):
        width, height = ax.figure.get_size_inches()
        FigureCanvasAgg(ax.figure).draw()
        box = ax.figure.get_tightbbox()
        assert box.x0 >= -0.01
        assert box.y0 >= -0.01
        assert box.x1 <= width + 0.01
        assert box.y1 <= height + 0.01
