"""Pictures that compare methods show the numbers they were given, and only those."""

import sys

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.colors import same_color
from matplotlib.patches import Ellipse
from plots.drawn import assert_nothing_is_cut_off
from reports.made_up import COLUMNS, METHODS, ROWS, made_up_table
from scipy import stats

import fcal.plots as plots
from fcal.plots.benchmark_figures import band_of, curves_of
from fcal.plots.figure import Band
from fcal.plots.matplotlib_renderer import PALETTE
from fcal.plots.predicted_positions import gallery_colours, read_gallery
from fcal.plots.styles import (
    DASHES,
    SERIES,
    RowStyle,
    bottom_to_top,
    line_styles,
    ordered,
    row_style,
    shown_at_first,
)

STYLES = {"rows": ROWS, "columns": COLUMNS}
MAIN = ("oracle", "nll", "calibration_loss", "temperature", "fcal_kl", "fcal_wass")


@pytest.fixture(scope="module")
def table():
    return made_up_table()


def test_every_method_has_its_own_colour_and_dashes():
    styles = line_styles(ROWS)
    assert list(styles) == list(METHODS)
    assert len(set(styles.values())) == len(styles)
    assert all(style.colour in SERIES for name, style in styles.items() if name != "oracle")
    assert styles["nll"].colour == styles["nll_all"].colour


def test_style_of_a_row_does_not_depend_on_the_rows_without_a_description():
    styles = line_styles(ROWS)
    more = line_styles(ROWS, ["mine", "nll", "yours"])
    assert {name: more[name] for name in ROWS} == styles
    assert len({more["mine"], more["yours"], *styles.values()}) == len(styles) + 2
    assert line_styles({}, ["a", "b"]) == {"a": (SERIES[0], "longdash"), "b": (SERIES[1], "solid")}


def test_usual_methods_differ_by_dashes_alone():
    assert len({line_styles(ROWS)[method].dash for method in MAIN}) == len(MAIN)


def test_lines_that_coincide_are_all_seen():
    """Who is on top, pixel by pixel along a line on which all of the usual methods lie."""
    place = np.arange(2000)
    top = np.full(place.shape, -1)
    for i, method in enumerate(bottom_to_top(ROWS, MAIN)):
        lengths = DASHES[line_styles(ROWS)[method].dash] or (1,)
        ends = np.cumsum(lengths)
        ink = np.searchsorted(ends, place % ends[-1], side="right") % 2 == 0
        top[ink] = i
    seen = np.bincount(top, minlength=len(MAIN)) / len(place)
    assert seen.min() > 0.05


def test_variant_with_all_images_stands_right_after_its_method():
    shuffled = sorted([*METHODS, "of_my_own"], key=lambda name: name[::-1])
    names = ordered(ROWS, shuffled)
    assert names[0] == "oracle"
    assert names[-1] == "of_my_own"
    assert names.index("nll_all") == names.index("nll") + 1


@pytest.mark.parametrize("name", ["", "_all", "a_all", "x" * 300, "\ud800"])
def test_any_name_is_a_method(name):
    assert row_style(ROWS, name) == RowStyle(name)
    assert line_styles(ROWS, [name])[name].colour in SERIES
    assert ordered(ROWS, [name, "nll"]) == ["nll", name]


def test_sheet_has_four_rows_with_the_curves_of_each_table(table):
    other = made_up_table("homoscedastic")
    figure = plots.calibration_sheet({"one": other, "two": table}, rows=ROWS)
    axes = [ax for ax in figure.axes if ax.get_xlabel()]
    assert len(axes) == 8
    for place, entry in ((2, other), (3, table)):  # reliability of q
        lines = [
            line for line in axes[place].lines if same_color(line.get_color(), PALETTE[line_styles(ROWS)["nll"].colour])
        ]
        curve = entry["curves"]["nll"]["q"]
        np.testing.assert_array_equal(lines[0].get_xydata(), np.column_stack([curve["nominal"], curve["empirical"]]))
        words = [text.get_text() for text in axes[place].texts]
        assert {"over-confident", "under-confident"} <= set(words)
    assert_nothing_is_cut_off(figure)


def test_sheet_names_rows_without_a_description_by_the_colours_of_their_lines(table):
    names = [f"row {k}" for k in range(6)]
    own = dict.fromkeys(names, table["curves"]["nll"])
    figure = plots.calibration_sheet(
        {"one": table | {"curves": own}, "two": table | {"curves": {"row 4": own["row 4"]}}}
    )
    (legend,) = figure.legends
    named = zip(legend.get_lines(), legend.get_texts(), strict=True)
    colours = {text.get_text(): line.get_color() for line, text in named}
    assert list(colours)[:6] == names
    second = figure.axes[3]  # reliability of q in the second column, whose only row is the fifth
    assert same_color(second.lines[-1].get_color(), colours["row 4"])


def test_sheet_draws_chi_squared_of_k_beside_the_distributions(table):
    ax = plots.calibration_sheet({"one": table}, rows=ROWS).axes[0]
    law = max(ax.lines, key=lambda line: len(line.get_xdata()))
    np.testing.assert_allclose(law.get_ydata(), stats.chi2.pdf(law.get_xdata(), 75), rtol=1e-9)


def test_sheet_of_many_methods_shows_those_most_often_compared(table):
    assert shown_at_first(ROWS, list(table["curves"])) == {
        "oracle",
        "nll",
        "calibration_loss",
        "temperature",
        "fcal_kl",
        "fcal_wass",
    }
    assert shown_at_first(ROWS, ["mmd", "mine"]) == {"mmd", "mine"}


def test_band_is_that_of_the_first_method_which_has_one():
    curve = {"nominal": [0, 1], "empirical": [0, 1]}
    methods = {"fcal_kl": {"z": curve | {"low": [0, 0.9], "high": [0.1, 1]}}, "nll": {"z": curve}}
    assert band_of(methods, "z", ROWS) == Band(x=[0, 1], low=[0, 0.9], high=[0.1, 1])
    assert band_of({"nll": {"z": curve}}, "z", ROWS) is None


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ({"nominal": [0, 1], "empirical": [0]}, r"expected `curves\.nll\.z` with 2 values of empirical as of nominal"),
        ({"nominal": [0, 1]}, r"expected `curves\.nll\.z` lists of nominal and empirical, got "),
        ([[0, 1], [0, 1], [0, 1]], r"expected `curves\.nll\.z` lists of nominal and empirical, got "),
        ([[], []], r"expected `curves\.nll\.z` with 0 values of empirical as of nominal, got 0"),
    ],
)
def test_curves_that_do_not_fit_are_refused_by_name(entry, message):
    with pytest.raises(ValueError, match=message):
        curves_of({"nll": {"z": entry}}, "z", ROWS)


def test_sheet_of_nothing_is_refused():
    with pytest.raises(ValueError, match="expected `tables` with at least one, got none"):
        plots.calibration_sheet({})


def test_learning_curves_show_what_was_logged(table):
    histories = {"nll": table["learning"]["nll"], "$x$ <b>": [{"epoch": 0, "validation/nll": 1.0}]}
    ax = plots.learning_curves(histories, "nll", rows=ROWS)
    solid = next(line for line in ax.lines if line.get_label() == "NLL")
    wanted = [[epoch["epoch"], epoch["val_nll"]] for epoch in table["learning"]["nll"]]
    np.testing.assert_array_equal(solid.get_xydata(), wanted)
    dotted = next(line for line in ax.lines if line.get_linestyle() == ":")
    np.testing.assert_array_equal(dotted.get_ydata(), [epoch["train_nll"] for epoch in table["learning"]["nll"]])
    assert_nothing_is_cut_off(ax.figure)


def test_learning_curves_mark_the_second_stage(table):
    ax = plots.learning_curves(table["learning"], "nll", rows=ROWS)
    upright = next(line for line in ax.lines if line.get_label() == "from here: the method's own loss")
    assert list(upright.get_xdata()) == [14.5, 14.5]  # epochs 0 to 14 are of the first stage
    assert_nothing_is_cut_off(ax.figure)


def test_learning_curves_leave_out_epochs_without_a_value(table):
    ax = plots.learning_curves(table["learning"], "ece_q")
    assert set(ax.lines[0].get_xdata()) == set(range(0, 20, 2))


def test_learning_curves_of_something_else_list_what_there_is(table):
    with pytest.raises(ValueError, match="expected `quantity` one of 'nll', 'ece_q', got 'crps'"):
        plots.learning_curves(table["learning"], "crps")


def test_tradeoff_goes_through_its_points_in_order_and_leaves_out_what_is_unknown():
    points = [{"lam": 0.9, "l1": 2.0, "ece_q": 0.1}, {"lam": 0.5, "l1": 1.0, "ece_q": 0.5}, {"lam": 0.1, "l1": None}]
    ax = plots.tradeoff({"fcal_kl": points, "nll": []}, x="l1", y="ece_q", label="lam", log="y", floor=0.01, **STYLES)
    line = next(line for line in ax.lines if line.get_label() == "f-Cal-KL")
    np.testing.assert_array_equal(line.get_xydata(), [[2.0, 0.1], [1.0, 0.5]])
    assert [text.get_text() for text in ax.texts] == ["0.9", "0.5"]
    assert (ax.get_xscale(), ax.get_yscale()) == ("linear", "log")
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("L1", "ECE(q)")
    assert ax.lines[-1].get_ydata()[0] == 0.01
    assert_nothing_is_cut_off(ax.figure)


def test_tradeoff_with_an_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="expected `log` one of '', 'x', 'y', 'xy', got 'z'"):
        plots.tradeoff({}, x="l1", y="ece_q", log="z")


def test_gallery_draws_the_ellipses_it_was_given(table):
    shots = table["gallery"][:3]
    figure = plots.disc_gallery(shots, columns=2, rows=ROWS)
    ax, shot = figure.axes[0], shots[0]
    truth, *predicted = [patch for patch in ax.patches if isinstance(patch, Ellipse)]
    assert truth.center == pytest.approx(shot["centre"])
    assert (truth.width, truth.height) == pytest.approx([4 * value for value in shot["sigma"]])  # 2 sigma each way
    for patch, method in zip(predicted, ("nll", "fcal_wass"), strict=True):
        assert patch.center == pytest.approx(shot["predictions"][method]["mean"])
        assert (patch.width, patch.height) == pytest.approx([4 * s for s in shot["predictions"][method]["sigma"]])
    np.testing.assert_array_equal(ax.images[0].get_array(), shot["image"])
    assert ax.images[0].get_extent() == [0, 1, 1, 0]  # y downwards
    assert_nothing_is_cut_off(figure)


def test_images_of_channels_first_are_the_same(table):
    shot = table["gallery"][0]
    turned = shot | {"image": shot["image"].transpose(2, 0, 1)}
    np.testing.assert_array_equal(read_gallery([turned])[0].image, shot["image"])


def _compared(shot):
    return list(gallery_colours(read_gallery([shot]), (), ROWS))


def test_gallery_compares_the_usual_methods_or_the_first_that_are_there(table):
    shot = table["gallery"][0]
    assert _compared(shot) == ["nll", "fcal_wass"]
    fewer = shot | {"predictions": dict.fromkeys(("mine", "temperature", "nll"), shot["predictions"]["nll"])}
    assert _compared(fewer) == ["nll", "temperature"]
    bare = {"image": shot["image"], "centre": shot["centre"]}
    assert _compared(bare) == []
    assert len(plots.disc_gallery([bare]).axes[0].patches) == 0


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"image": np.zeros((4, 4, 3))}, r"expected `gallery\[0\]\.image` uint8 of shape .*, got float64 \(4, 4, 3\)"),
        ({"image": None}, r"expected `gallery\[0\]\.image` uint8"),
        ({"centre": [0.5]}, r"expected `gallery\[0\]\.centre` two finite numbers, got \[0.5\]"),
        ({"centre": None}, r"expected `gallery\[0\]\.centre` two finite numbers, got None"),
        ({"sigma": [0.1, -0.1]}, r"expected `gallery\[0\]\.sigma` not negative"),
        (
            {"predictions": {"nll": {"mean": [0, 0], "sigma": [float("nan"), 1]}}},
            r"expected `gallery\[0\]\.predictions\.nll\.sigma` two finite numbers",
        ),
    ],
)
def test_shot_that_lacks_something_is_refused_by_its_place(table, change, message):
    with pytest.raises(ValueError, match=message):
        plots.disc_gallery([table["gallery"][0] | change])


def test_gallery_of_nothing_is_refused():
    with pytest.raises(ValueError, match="expected `shots` with at least one image, got none"):
        plots.disc_gallery([])


def test_pictures_of_methods_leave_pyplot_and_the_style_alone(table):
    before, loaded = dict(mpl.rcParams), "matplotlib.pyplot" in sys.modules
    plots.calibration_sheet({"one": table})
    plots.disc_gallery(table["gallery"])
    assert dict(mpl.rcParams) == before
    assert ("matplotlib.pyplot" in sys.modules) == loaded
