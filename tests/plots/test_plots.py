"""Pictures show the numbers of a report, and only those; axes in, axes out, nothing global is touched."""

import math
import sys
from dataclasses import replace
from itertools import pairwise

import matplotlib as mpl
import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from plots.drawn import assert_nothing_is_cut_off
from plots.simulated import KINDS, simulated, without_sd
from scipy import stats

import fcal.plots as plots
from fcal.metrics.report import Reliability, SigmaBins
from fcal.plots.calibrated import band_at, law
from fcal.plots.matplotlib_renderer import PALETTE

SINGLE = (
    plots.reliability_z,
    plots.reliability_q,
    plots.reliability_central,
    plots.z_histogram,
    plots.q_histogram,
    plots.qq,
    plots.error_by_sigma,
    plots.sparsification,
)


def _texts(ax):
    return [text.get_text() for text in ax.texts]


@pytest.mark.parametrize("draw", SINGLE, ids=lambda draw: draw.__name__)
def test_picture_is_drawn_on_the_axes_passed_in(draw):
    ax = Figure().subplots()
    assert draw(simulated(), ax=ax) is ax
    assert ax.lines or ax.patches
    assert ax.get_xlabel()
    assert ax.get_ylabel()


@pytest.mark.parametrize("draw", SINGLE, ids=lambda draw: draw.__name__)
@pytest.mark.parametrize("kind", KINDS)
def test_picture_of_any_data_stays_within_its_figure(draw, kind):
    assert_nothing_is_cut_off(draw(simulated(kind, 400)).figure)


def test_pictures_leave_pyplot_and_the_style_alone():
    before = dict(mpl.rcParams)
    loaded = "matplotlib.pyplot" in sys.modules
    plots.overview(simulated())
    plots.reliability_z(simulated())
    assert dict(mpl.rcParams) == before
    assert ("matplotlib.pyplot" in sys.modules) == loaded
    if loaded:
        assert not sys.modules["matplotlib.pyplot"].get_fignums()


@pytest.mark.parametrize(
    ("draw", "curve"),
    [(plots.reliability_z, "z"), (plots.reliability_q, "q"), (plots.reliability_central, "central")],
)
def test_reliability_shows_the_curve_and_band_of_the_report(draw, curve):
    report = simulated("over-confident")
    ax, wanted = draw(report), getattr(report.curves, curve)
    shown = ax.lines[-1].get_xydata()
    np.testing.assert_array_equal(shown, np.column_stack([wanted.nominal, wanted.empirical]))
    corners = ax.collections[-1].get_paths()[0].vertices
    for ends in (wanted.low, wanted.high):
        assert {(x, y) for x, y in zip(wanted.nominal, ends, strict=True)} <= {(x, y) for x, y in corners}


@pytest.mark.parametrize(
    ("scale", "name"), [(1.15, "over-confident"), (0.87, "under-confident")], ids=["too short", "too long"]
)
@pytest.mark.parametrize("draw", [plots.reliability_z, plots.reliability_q, plots.reliability_central])
def test_region_in_which_a_model_lies_bears_its_name(draw, scale, name):
    # Exact laws of z = scale * N(0, 1), by SciPy; the regions are told apart by their tint.
    p = np.linspace(0, 1, 21)
    exact = {
        plots.reliability_z: ("z", stats.norm.cdf(stats.norm.ppf(p) / scale)),
        plots.reliability_q: ("q", stats.chi2.cdf(stats.chi2.ppf(p, 75) / scale**2, 75)),
        plots.reliability_central: ("central", stats.chi2.cdf(stats.chi2.ppf(p, 1) / scale**2, 1)),
    }
    field, share = exact[draw]
    report = simulated()
    curve = replace(getattr(report.curves, field), nominal=tuple(p), empirical=tuple(share))
    ax = draw(replace(report, curves=replace(report.curves, **{field: curve})))
    tint = PALETTE[name.replace("confident", "soft")]
    regions = [patch for patch in ax.patches if mpl.colors.same_color(patch.get_facecolor(), tint)]
    inside = [(x, y) for x, y in zip(p, share, strict=True) if abs(x - y) > 0.02 and 0.001 < y < 0.999]
    assert inside
    for point in inside:
        assert any(region.get_path().contains_point(point, radius=0.0) for region in regions), point
    assert name in _texts(ax)


def test_captions_carry_the_error_its_floor_and_what_they_depend_on():
    report = replace(simulated(n=5000), ece_z=0.0213)
    words = " ".join(_texts(plots.reliability_z(report)))
    for part in ("ECE(z) 0.0213", "floor 0.00253", "95 % below 0.00443", "S = 20", "K = 75", "n = 5,000"):
        assert part in words


def test_histogram_heights_are_the_densities_and_the_law_integrates_to_one():
    report = simulated("biased")
    ax = plots.z_histogram(report)
    values, edges, _ = ax.patches[0].get_data()
    np.testing.assert_array_equal(values, report.curves.z_histogram.density)
    np.testing.assert_array_equal(edges, report.curves.z_histogram.edges)
    x, y = ax.lines[0].get_data()
    assert np.trapezoid(y, x) == pytest.approx(1, abs=1e-5)


def test_laws_are_those_of_scipy():
    normal = law(None, -6.0, 9.0)
    assert (normal.x[0], normal.x[-1]) == (-6.0, 9.0)
    np.testing.assert_allclose(normal.y, stats.norm.pdf(normal.x), rtol=1e-12)
    for df in (1, 2, 7):
        chi_squared = law(df, 0.0, 40.0)
        assert min(chi_squared.x) > 0
        np.testing.assert_allclose(chi_squared.y, stats.chi2.pdf(chi_squared.x, df), rtol=1e-11)


def test_band_of_a_share_between_levels_follows_its_standard_deviation():
    p, n = np.linspace(0, 1, 21), 400
    half = 1.96 * np.sqrt(p * (1 - p) / n)
    curve = Reliability(tuple(p), tuple(p), tuple(p - half), tuple(p + half))
    for level in (0.5, 0.68, 0.9, 0.99):
        wanted = 1.96 * math.sqrt(level * (1 - level) / n)
        assert band_at(curve, level) == pytest.approx((level - wanted, min(1, level + wanted)), abs=1e-12)


def test_error_by_sigma_has_logarithmic_axes_and_the_points_of_the_report():
    report = simulated("over-confident")
    ax = plots.error_by_sigma(report)
    assert (ax.get_xscale(), ax.get_yscale()) == ("log", "log")
    bins = report.curves.sigma
    np.testing.assert_array_equal(ax.lines[-1].get_xydata(), np.column_stack([bins.sigma, bins.error]))


def test_error_by_sigma_bears_one_sigma_and_an_error_of_zero():
    report = simulated()
    for bins in (
        SigmaBins((2.0,), (2.5,), (1.9,), (2.1,), (5000,)),
        SigmaBins((1.0, 2.0), (0.0, 2.1), (0.0, 1.9), (1.2, 2.1), (4, 5)),
    ):
        ax = plots.error_by_sigma(replace(report, curves=replace(report.curves, sigma=bins)))
        FigureCanvasAgg(ax.figure).draw()
        low, high = ax.get_xlim()
        assert 0 < low < min(bins.sigma)
        assert high > max(bins.sigma)


def test_groups_stand_in_order_with_dots_at_their_coverage():
    report = simulated(groups=[f"group {k}" for k in range(7)])
    ax = plots.coverage_by_group(report, levels=(0.9,))
    assert [label.get_text() for label in ax.get_yticklabels()] == list(report.groups)
    dots = {tuple(point) for marks in ax.collections for point in marks.get_offsets()[:] if len(marks.get_offsets())}
    for row, group in enumerate(report.groups.values()):
        assert (group.coverage["0.9"], row) in dots
    assert ax.get_ylim()[0] > ax.get_ylim()[1]


@pytest.mark.parametrize("count", [1, 3, 60])
def test_names_of_groups_do_not_touch_each_other_and_dollars_are_not_mathematics(count):
    names = [f"$\\frac_{k}$ " + "long " * (k % 12) for k in range(count)]
    ax = plots.coverage_by_group(simulated(groups=names))
    FigureCanvasAgg(ax.figure).draw()
    boxes = sorted((label.get_window_extent() for label in ax.get_yticklabels()), key=lambda box: box.y0)
    assert all(below.y1 <= above.y0 + 1 for below, above in pairwise(boxes))
    assert ax.get_yticklabels()[0].get_text().startswith("$\\frac_0$")


def test_headline_of_a_long_reason_stays_within_the_sheet():
    report = replace(simulated(), reason="a long reason " * 30, fitted_on=True)
    assert_nothing_is_cut_off(plots.overview(report))
    assert_nothing_is_cut_off(plots.before_after(report, report))


@pytest.mark.parametrize("n", [30, 200_000])
def test_overview_has_six_panels_for_little_and_much_data(n):
    figure = plots.overview(simulated("wrong shape", n))
    assert len(figure.axes) == 6
    assert figure.get_suptitle().startswith("wrong shape: ")


def test_overview_without_sd_shows_sums_instead_of_errors_by_sigma():
    titles = [ax.get_title(loc="left") for ax in plots.overview(without_sd(simulated())).axes]
    assert titles[-1] == "Sums q of squared residuals"


def test_before_and_after_share_their_limits():
    figure = plots.before_after(simulated("over-confident"), simulated())
    above, below = figure.axes[:4], figure.axes[4:]
    for first, second in zip(above, below, strict=True):
        assert first.get_title(loc="left") == second.get_title(loc="left")
        assert first.get_xlim() == second.get_xlim()
        assert first.get_ylim() == second.get_ylim()


def test_notebook_gets_a_png_of_a_figure_without_pyplot():
    assert plots.overview(simulated(n=50))._repr_png_().startswith(b"\x89PNG")
    assert plots.qq(simulated(n=50)).figure._repr_png_().startswith(b"\x89PNG")


def test_didactic_ellipses_hold_what_they_are_said_to():
    figure = plots.didactic(points=40_000, generator=torch.Generator().manual_seed(1))
    held = {ax.get_title(loc="left"): _texts(ax)[0] for ax in figure.axes}
    # 1 - exp(-r^2 / 2) of the truth; a binomial sd of 0.25 % rounds to the next percent at most.
    for name in ("truth", "calibrated"):
        one, two = (int(line.split("holds ")[1].split(" %")[0]) for line in held[name].splitlines())
        assert abs(one - 39.3) <= 2
        assert abs(two - 86.5) <= 2
    over, inflated = (int(held[name].split("holds ")[1].split(" %")[0]) for name in ("over-confident", "inflated"))
    assert over < 15
    assert inflated > 80


def test_didactic_is_drawn_from_its_generator_alone():
    state = torch.get_rng_state()
    figures = [plots.didactic(points=50, generator=torch.Generator().manual_seed(seed)) for seed in (3, 3, 4)]
    first, again, other = (figure.axes[0].lines[0].get_xydata() for figure in figures)
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert torch.equal(state, torch.get_rng_state())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda _: plots.qq({}), TypeError, "expected `report` a Report of fcal.evaluate, got dict"),
        (lambda r: plots.qq(r, ax=3), TypeError, "expected `ax` matplotlib axes or None, got int"),
        (lambda r: plots.error_by_sigma(without_sd(r)), ValueError, "expected `report` of predictions that have an sd"),
        (lambda r: plots.sparsification(without_sd(r)), ValueError, "expected `report` of predictions that have an sd"),
        (lambda r: plots.coverage_by_group(r), ValueError, "expected `report` with groups, got none"),
        (
            lambda r: plots.coverage_by_group(replace(r, groups={"a": r}), levels=(0.42,)),
            ValueError,
            "expected `levels` of 0.5, 0.68, 0.9, 0.95, 0.99, got 0.42",
        ),
        (lambda r: plots.before_after(r, None), TypeError, "expected `report_after` a Report"),
        (lambda _: plots.didactic(points=1), ValueError, "expected `points` >= 2, got 1"),
        (lambda _: plots.nothing, AttributeError, "module 'fcal.plots' has no attribute 'nothing'"),
    ],
)
def test_misuse_is_refused_in_one_sentence(call, error, message):
    with pytest.raises(error, match=message):
        call(simulated(n=100))


def test_missing_matplotlib_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.axes", None)
    for name in [name for name in sys.modules if name.startswith("fcal.plots.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.delitem(plots.__dict__, "qq", raising=False)
    with pytest.raises(ImportError, match=r"expected matplotlib for fcal.plots; pip install 'fcal\[cli\]'"):
        _ = plots.qq
