"""The page of a benchmark as text: what is bold, what is marked, what is failed, what is escaped."""

import base64
import io
import json
import re
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from reports.made_up import COLUMNS, ROWS, made_up_table

from fcal import reports
from fcal.plots.benchmark_figures import learning_figure, logged_quantities
from fcal.plots.figure import Rule
from fcal.reports import results_table as tables_module
from fcal.reports.results_table import Score, marks, row_score, table_title
from fcal.reports.svg_gallery import data_uri

benchmark_page = partial(reports.benchmark_page, rows=ROWS, columns=COLUMNS)
benchmark_sections = partial(reports.benchmark_sections, rows=ROWS, columns=COLUMNS)
results_table = partial(tables_module.results_table, rows=ROWS, columns=COLUMNS)
notes_list = partial(tables_module.notes_list, rows=ROWS, columns=COLUMNS)
paper_table = partial(tables_module.paper_table, rows=ROWS, columns=COLUMNS)
failures_list = partial(tables_module.failures_list, rows=ROWS)

FIVE_DIGITS = 5e-5  # largest relative error of rounding to five significant digits
HOSTILE = "</script><script>alert('x')</script>&\u2028\"<!-- %{x} $y$"


def cells(table_html, row):
    """Cells of the row of a method: class, text and small print."""
    found = re.search(rf'<tr><th scope="row"[^>]*>{re.escape(row)}(?:<small>.*?</small>)?</th>(.*?)</tr>', table_html)
    parts = re.findall(r"<td([^>]*)>(.*?)(?:<small>(.*?)</small>)?</td>", found[1])
    return [(re.search(r'class="number ?([^"]*)"', kind)[1], text, small) for kind, text, small in parts]


def small_table(rows, *, seeds=5, **more):
    return {"columns": ["nll", "sigma_corr", "train_s"], "rows": rows, "seeds": seeds, **more}


def row(nll, sd=0.1, *, seeds=None, **more):
    values = {"seeds": {"nll": seeds}} if seeds else {}
    return {"nll": {"mean": nll, "sd": sd}, "sigma_corr": {"mean": -nll, "sd": sd}, "train_s": 1.0} | values | more


# Standard error of a difference of two means of 5 values with sd 0.1: 0.1 * sqrt(2 / 5) = 0.0632; twice that: 0.1265.
@pytest.mark.parametrize(("gap", "near"), [(0.126, True), (0.127, False)])
def test_mark_without_seeds_is_two_standard_errors_of_the_difference(gap, near):
    found = marks({"a": Score(1.0, 0.1), "b": Score(1.0 + gap, 0.1)}, column=COLUMNS["nll"], seeds=5)
    assert found == {"a": "best"} | ({"b": "near"} if near else {})


def test_mark_is_paired_where_every_seed_is_known():
    # Far apart as independent numbers (sd 10), but each seed of b is 1.0 to 1.2 above that of a: sd 0.1, error 0.058.
    a, b = (0.0, 10.0, 20.0), (1.0, 11.1, 21.2)
    scores = {"a": Score(10.0, 10.0, a), "b": Score(11.1, 10.1, b)}
    assert marks(scores, column=COLUMNS["nll"], seeds=3) == {"a": "best"}
    unpaired = {name: replace(one, values=()) for name, one in scores.items()}
    assert marks(unpaired, column=COLUMNS["nll"], seeds=3) == {"a": "best", "b": "near"}


def test_marks_of_one_seed_name_nobody():
    assert marks({"a": Score(1.0), "b": Score(2.0)}, column=COLUMNS["nll"], seeds=1) == {}


def test_marks_skip_what_is_undefined_and_give_ties_to_all():
    scores = {"a": Score(1.0, 0.0), "b": Score(1.0, 0.0), "c": Score(None)}
    assert marks(scores, column=COLUMNS["nll"], seeds=5) == {"a": "best", "b": "best"}
    assert marks({"c": Score(None)}, column=COLUMNS["nll"], seeds=5) == {}


def test_more_is_better_for_correlation_and_times_are_not_ranked():
    scores = {"a": Score(0.9, 0.01), "b": Score(0.1, 0.01)}
    assert marks(scores, column=COLUMNS["sigma_corr"], seeds=5) == {"a": "best"}
    assert marks(scores, column=COLUMNS["train_s"], seeds=5) == {}


def test_row_score_reads_seeds_and_nulls():
    one = row_score({"nll": {"mean": 1.0, "sd": None}, "seeds": {"nll": [1.0, None, float("nan")]}}, "nll")
    assert one == Score(1.0, None, (1.0, None, None))
    assert row_score({}, "nll") == Score(None)
    assert row_score({"nll": None, "seeds": 5}, "nll") == Score(None)


def test_table_shows_mean_sd_and_marks():
    html = results_table(small_table({"nll": row(1.0), "fcal_kl": row(1.05), "mmd": row(3.0), "oracle": row(0.5)}))
    assert cells(html, "NLL")[0] == ("best", "1.00", "± 0.10")
    assert cells(html, "f-Cal-KL")[0] == ("near", "≈ 1.05", "± 0.10")
    assert cells(html, "MMD")[0] == ("", "3.00", "± 0.10")
    assert cells(html, "oracle")[0] == ("", "0.500", "± 0.10")
    assert cells(html, "NLL")[2] == ("", "1.00", "")


def test_variant_with_all_images_stands_after_its_method_and_says_so():
    html = results_table(small_table({"nll_all": row(1.0), "fcal_kl": row(1.0), "nll": row(1.0)}))
    names = re.findall(r'<th scope="row"[^>]*data-value="(.*?)">(.*?)</th>', html)
    assert names == [
        ("NLL", "NLL"),
        ("NLL, all data", "NLL<small>all data</small>"),
        ("f-Cal-KL", "f-Cal-KL"),
    ]


def test_failed_row_keeps_its_numbers_and_says_why_and_is_never_best():
    rows = {"nll": row(1.0), "mmd": row(0.1, status="failed", reason="loss was nan <b>")}
    html = results_table(small_table(rows))
    assert cells(html, "MMD")[0] == ("", "0.100", "± 0.10")
    assert "✗ failed" in html
    assert cells(html, "NLL")[0][0] == "best"
    assert "<strong>MMD</strong> failed: loss was nan &lt;b&gt;" in failures_list(small_table(rows))
    assert failures_list(small_table({"nll": row(1.0)})) == ""


def test_row_without_any_number_is_dashes():
    html = results_table(small_table({"nll": row(1.0), "mmd": {"status": "failed", "reason": None}}))
    assert [text for _, text, _ in cells(html, "MMD")] == ["—"] * 3


def test_one_seed_shows_no_sd():
    html = results_table(small_table({"nll": row(1.0, None)}, seeds=1))
    assert cells(html, "NLL")[0] == ("", "1.00", "")
    assert "mean over 1 seed<" in html


def test_page_says_that_of_one_seed_nothing_is_marked():
    one, two = (made_up_table(seeds=seeds, figures=False) for seeds in (1, 2))
    rules = {name: benchmark_sections(tables)[0].body_html for name, tables in (("one", [one]), ("both", [one, two]))}
    assert "Of one seed there is no standard deviation" in rules["one"]
    assert "Bold: the best mean" not in rules["one"]
    assert "Of one seed there is no standard deviation" in rules["both"]
    assert "Bold: the best mean" in rules["both"]


def test_floors_stand_at_the_foot_and_values_at_the_floor_are_marked():
    table = small_table({"nll": row(0.5), "mmd": row(2.0)}, floors={"nll": {"expected": 0.4, "q95": 0.6}, "ence": None})
    html = results_table(table)
    assert cells(html, "NLL")[0][1] == "○ 0.500"
    assert cells(html, "MMD")[0][1] == "2.00"
    foot = html[html.index("<tfoot>") :]
    assert [text for _, text, _ in cells(foot, "floor")] == ["0.400", "—", "—"]
    assert [text for _, text, _ in cells(foot, "95 % below")] == ["0.600", "—", "—"]
    assert "<tfoot>" not in results_table(small_table({"nll": row(0.5)}))


def test_row_with_a_floor_of_its_own_is_measured_by_it():
    own = {**row(0.5), "nll_floor": {"expected": 0.1, "q95": 0.2}}
    table = small_table({"nll": own, "mmd": row(0.1)}, floors={"nll": {"expected": 0.4, "q95": 0.6}})
    text = results_table(table)
    assert "○" not in text  # 0.5 is above its own band, and the common floor is of another model
    assert "0.400" not in text
    assert re.findall(r'<td[^>]* title="(.*?)">', text) == ["floor of this row: 0.100; 95 % below 0.200"]
    assert "hovering over a number" in benchmark_sections([table])[0].body_html


def test_page_without_floors_of_rows_does_not_speak_of_them():
    assert "hovering over a number" not in benchmark_sections([small_table({"nll": row(0.5)})])[0].body_html


def test_foot_of_a_table_explains_its_columns_and_rows():
    table = {"columns": ["l1", "nll"], "rows": {"nll": row(1.0), "nll_all": row(1.0)}}
    section = benchmark_sections([table])[1].body_html
    assert "<li>L1 is a smooth L1 (Huber&#x27;s loss) of the predicted mean" in section
    assert "<li>Rows “all data” are also trained on the held-out data" in section
    assert notes_list({"columns": ["nll"], "rows": {"nll": row(1.0)}}) == ""


def test_paper_stands_beside_ours():
    paper = {"nll": {"nll": {"mean": -1.31, "sd": 0.14}}, "gp_beta": {"nll": [2, 0.5]}, "mmd": {"nll": 3}}
    grid = {"bins": "20 to 25", "df": "75", "note": "appendix"}
    html = paper_table(small_table({"nll": row(1.0), "gp_beta": {}}, paper=paper, paper_grid=grid))
    assert cells(html, "NLL") == [("", "1.00", "± 0.10"), ("paper", "-1.31", "± 0.14")]
    assert cells(html, "GP-Beta") == [("", "—", ""), ("paper", "2.00", "± 0.50")]
    assert "MMD" not in html  # was not computed by us
    assert "theirs probably with S = 20 to 25, K = 75; appendix" in html
    assert paper_table(small_table({"oracle": row(1.0)}, paper=paper)) == ""
    assert paper_table(small_table({"nll": row(1.0)})) == ""
    assert paper_table(small_table({"nll": row(1.0)}, paper={"nll": {"map": 1.0}})) == ""


def test_page_has_every_part_once():
    tables = [made_up_table("homoscedastic"), made_up_table("heteroscedastic")]
    titles = [section.title for section in benchmark_sections(tables)]
    assert titles == [
        "",
        "Homoscedastic noise, paper-like regime",
        "Heteroscedastic noise, paper-like regime",
        "Distributions and reliability: paper-like regime",
        "Images: Homoscedastic noise, paper-like regime",
        "Images: Heteroscedastic noise, paper-like regime",
        "Learning: Homoscedastic noise, paper-like regime",
        "Learning: Heteroscedastic noise, paper-like regime",
    ]


def figures(section):
    """Every drawing of a section, with its lines and whether they are shown, from bottom to top."""
    drawings = re.findall(r'<svg class="drawing".*?</g></svg>', section.body_html, re.DOTALL)
    return [re.findall(r'<g data-row="(\w+)"( hidden)?><path.*?style="([^"]*)"', drawing) for drawing in drawings]


def test_figure_of_two_noises_has_four_rows_in_the_order_of_the_paper():
    tables = [made_up_table("homoscedastic"), made_up_table("heteroscedastic")]
    section = benchmark_sections(tables)[3]
    titles = re.findall(r"<h3>(.*?)</h3><figcaption>(.*?)</figcaption>", section.body_html)
    kinds = ("Chi-squared distribution", "Chi-squared reliability", "Normal distribution", "Normal reliability")
    assert titles == [(kind, f"{noise}scedastic noise") for kind in kinds for noise in ("homo", "hetero")]
    documents = [json.loads(found) for found in re.findall(r'json">(.*?)</script>', section.body_html, re.DOTALL)]

    def points(document, row):
        mark = next(mark for mark in document["marks"] if mark.get("row") == row)
        return [document["columns"][mark[axis]] for axis in "xy"]

    curve, (edges, density) = tables[1]["curves"]["fcal_wass"]["q"], tables[0]["curves"]["nll"]["q_histogram"]
    np.testing.assert_allclose(points(documents[3], "fcal_wass")[1], curve["empirical"], rtol=FIVE_DIGITS)
    centres, heights = points(documents[0], "nll")
    np.testing.assert_allclose(centres, np.add(edges[1:], edges[:-1]) / 2, rtol=FIVE_DIGITS)
    np.testing.assert_allclose(heights, density, rtol=FIVE_DIGITS)
    drawing = re.findall(r'<svg class="drawing".*?</g></svg>', section.body_html)[3]
    assert sorted(re.findall(r'class="note \w+".*?>([a-z-]+)<', drawing)) == ["over-confident", "under-confident"]


def test_what_the_axis_does_not_show_is_said():
    table = made_up_table(methods=("nll", "fcal_wass"))
    edges, _ = table["curves"]["nll"]["q_histogram"]
    table["curves"]["nll"]["q_histogram"] = [edges, [0.25 / (edges[-1] - edges[0])] * (len(edges) - 1)]
    section = benchmark_sections([table])[2]
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", section.body_html)
    assert captions[0] == "heteroscedastic noise<br>beyond the axis: NLL 75 %"
    assert captions[2] == "heteroscedastic noise"


def test_lines_of_failed_and_further_methods_are_hidden_at_first():
    for section in benchmark_sections([made_up_table()])[2::2]:  # curves, then learning
        shown = dict(re.findall(r'data-method="(\w+)" aria-pressed="(\w+)"', section.body_html))
        assert shown["mmd"] == "false"
        assert shown["fcal_wass"] == "true"
        for figure in figures(section):
            visible = {row: not hidden for row, hidden, _ in figure}
            assert visible
            assert visible == {method: shown[method] == "true" for method in visible}


def learning_figures(histories):
    return [learning_figure(histories, name, ROWS, COLUMNS, set(histories)) for name in logged_quantities(histories)]


def test_learning_reads_both_spellings_and_the_usual_quantities_come_first():
    lines = [{"epoch": e, "step": 9 * e, "train/mmd": 1.0, "validation/nll": e, "train/nll": -e} for e in range(4)]
    drawn = learning_figures({"nll": lines})
    assert [figure.title for figure in drawn] == ["NLL", "mmd"]
    assert [(line.dash, line.y) for line in drawn[0].marks] == [
        ("dotted", [0.0, -1.0, -2.0, -3.0]),
        ("solid", [0.0, 1.0, 2.0, 3.0]),
    ]


def test_learning_marks_where_the_second_stage_begins():
    def epochs(stages):
        return [{"epoch": place, "stage": stage, "val_nll": 1.0} for place, stage in enumerate(stages, start=1)]

    histories = {"nll": epochs([1, 1, 1]), "fcal_kl": epochs([1, 1, 1, 2, 2]), "mmd": epochs([1, 1, 1, 2])}
    (figure,) = learning_figures(histories)
    assert [mark.at for mark in figure.marks if isinstance(mark, Rule)] == [3.5]
    assert figure.caption[0].startswith("thin vertical line: from here on each method trains by its own loss")
    (alone,) = learning_figures({"nll": epochs([1, 1])})
    assert not any(isinstance(mark, Rule) for mark in alone.marks)
    assert list(alone.caption) == []


def test_dashed_lines_are_drawn_over_solid_ones():
    for figure in figures(benchmark_sections([made_up_table()])[2]):
        gaps = ["dasharray" in style for _, _, style in figure]
        assert any(gaps)
        assert gaps == sorted(gaps)


def test_colours_named_by_the_page_exist_in_light_and_in_dark():
    text = benchmark_page([made_up_table()], command="c", versions={})
    named = set(re.findall(r"var\((--[a-z-]+)\)", text.replace("var(--tone", "")))
    light, *dark = re.findall(r":root[^{]*\{([^}]*)\}", text)
    assert dark[0].split() == dark[1].split()
    assert named <= set(re.findall(r"(--[a-z-]+):", light))
    assert {name for name in named if name.startswith("--series")} <= set(re.findall(r"(--[a-z-]+):", dark[0]))


def hostile_table():
    table = made_up_table(methods=("nll", "fcal_wass"))
    for part in ("rows", "curves", "learning"):
        table[part][HOSTILE] = table[part]["nll"]
    table["rows"][HOSTILE] = table["rows"][HOSTILE] | {"status": "failed", "reason": HOSTILE, HOSTILE: 1.0}
    table["columns"] = [*table["columns"], HOSTILE]
    table["paper"][HOSTILE] = {HOSTILE: 1.0, "nll": 2.0}
    table["paper_grid"] = {"bins": HOSTILE, "df": HOSTILE, "note": HOSTILE}
    table["learning"]["nll"] = [epoch | {f"val_{HOSTILE}": 1.0} for epoch in table["learning"]["nll"]]
    for shot in table["gallery"]:
        shot["predictions"] = {HOSTILE: shot["predictions"]["nll"]}
    return table | {"noise": HOSTILE, "regime": HOSTILE}


def test_hostile_names_never_become_markup():
    ours = benchmark_page([made_up_table()], command="c", versions={})
    text = benchmark_page(
        [hostile_table()], title=HOSTILE, command=HOSTILE, notes=[HOSTILE], versions={HOSTILE: HOSTILE}
    )
    assert "<script>alert" not in text
    assert text.count("<script>") == ours.count("<script>") == 1
    assert "<!-- " not in text.split("<body>")[1].split("<footer>")[0]


def test_page_refers_to_nothing_outside():
    text = benchmark_page([made_up_table()], command="c", versions={})
    for name in ("src", "href", "srcset", "action"):
        for value in re.findall(rf'<[^>]*\s{name}="([^"]*)"', text.split("<script>")[0]):
            assert value.startswith(("data:image/png;base64,", "data:,"))


def test_pixels_survive_the_way_into_the_page():
    image_module = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, (7, 5, 3), dtype=np.uint8)
    content = base64.b64decode(data_uri(pixels).partition(",")[2])
    np.testing.assert_array_equal(np.asarray(image_module.open(io.BytesIO(content))), pixels)


def test_gallery_ellipses_are_two_sigma_about_the_predicted_mean():
    table = made_up_table(methods=("nll",))
    section = next(s for s in benchmark_sections([table]) if s.title.startswith("Images"))
    figure = section.body_html.split("<figure>")[1]
    found = re.findall(r'<ellipse class="line[^"]*" cx="(.*?)" cy="(.*?)" rx="(.*?)" ry="(.*?)"', figure)
    shot = table["gallery"][0]
    predicted = shot["predictions"]["nll"]
    wanted = [
        [*shot["centre"], *np.multiply(2, shot["sigma"])],
        [*predicted["mean"], *np.multiply(2, predicted["sigma"])],
    ]
    np.testing.assert_allclose(np.array(found, dtype=float), wanted, rtol=1e-4)


def test_page_of_one_seed_one_table_and_no_figures():
    table = made_up_table(seeds=1, methods=("nll", "mmd"), figures=False)
    del table["floors"], table["paper"], table["paper_grid"]
    text = benchmark_page([table], command="c", seconds=7300, versions={"fcal": "1"})
    assert "±" not in text.split("<main>")[1].split("<ul")[0]
    assert "Distributions" not in text
    assert len(text) < 60_000  # without figures
    assert "2 h 02 min" in text


def test_page_of_no_tables_says_so():
    assert "No table is finished yet." in benchmark_page([], command="c", versions={})


def test_title_of_a_table_without_noise():
    assert table_title({"regime": None}) == "Results"
    assert table_title({"noise": "gamma"}) == "Gamma noise"


@pytest.mark.parametrize(
    ("tables", "error", "message"),
    [
        ({"columns": []}, TypeError, "expected `tables` a list of tables, got dict"),
        ([3], TypeError, r"expected `tables\[0\]` a mapping, got int"),
        ([{"rows": {}}], ValueError, r"expected `tables\[0\]` with 'columns', got 'rows'"),
        ([{"columns": []}], ValueError, r"expected `tables\[0\]` with 'rows', got 'columns'"),
        ([{"columns": [], "rows": {"nll": 3}}], ValueError, r"expected `tables\[0\]\.rows\.nll` a mapping, got int"),
    ],
)
def test_tables_of_another_shape_are_refused(tables, error, message):
    with pytest.raises(error, match=message):
        benchmark_page(tables, command="c", versions={})
