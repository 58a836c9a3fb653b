"""Pages as text: whole or absent, escaped, without a word to the outside."""

import builtins
import json
import re
import sys
from dataclasses import replace
from html.parser import HTMLParser
from xml.etree import ElementTree

import pytest
import torch
from plots.simulated import KINDS, simulated, without_sd
from torch.distributions import Normal

import fcal
from fcal.plots.figure import Dots
from fcal.reports import (
    Section,
    calibration_page,
    comparison_section,
    glossary_section,
    groups_section,
    numbers_section,
    page,
    plots_section,
    rows_section,
    verdict_section,
    write_page,
)
from fcal.reports.comparison import forest
from fcal.reports.page import Cell, Column, escaped, script_json, table

FIVE_DIGITS = 5e-5  # largest relative error of rounding to five significant digits
HOSTILE = "</script><script>alert('x')</script>&\u2028\u2029\"<!--"


class Reader(HTMLParser):
    """Tags and text of a page, as a parser of the standard library sees them."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.texts = [], [], []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in ("meta", "link", "br", "img", "input"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.texts.append((self.open[-1] if self.open else "", data))

    def words(self):
        return " ".join(text for tag, text in self.texts if tag not in ("script", "style"))


@pytest.mark.parametrize("kind", KINDS)
def test_page_of_every_verdict_says_it_first_with_its_reason(kind):
    report = simulated(kind, 300)
    read = Reader(calibration_page(report, source="f.csv", command="c"))
    assert read.open == []
    words = read.words()
    assert words.index(kind) < words.index(report.reason) < words.index("Pictures") < words.index("Numbers")
    assert "Assumes independent rows." in words


def test_page_refers_to_nothing_outside():
    text = calibration_page(simulated(groups=("a", "b")), source="f.csv", command="c")
    for tag, attributes in Reader(text).tags:
        assert tag not in ("iframe", "object", "embed", "base", "img", "form")
        for name in ("src", "href", "srcset", "action", "data"):
            assert attributes.get(name, "data:,") == "data:,"
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    assert "url(" not in style
    assert "@import" not in style
    assert text.count("<script>") == 1
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "").replace("http-equiv", "")


def test_hostile_text_never_becomes_markup():
    report = replace(simulated(groups=(HOSTILE,)), reason=HOSTILE, warnings=(HOSTILE,), assumption=HOSTILE)
    plain = calibration_page(simulated(groups=("name",)), source="s", command="c")
    text = page(
        HOSTILE,
        [verdict_section(report), plots_section(report), groups_section(report), numbers_section(report)],
        command=HOSTILE,
        versions={HOSTILE: HOSTILE},
    )
    assert [t for t, _ in Reader(text).tags if t == "script"] == [t for t, _ in Reader(plain).tags if t == "script"]
    assert "<script>alert" not in text
    assert "alert('x')" not in re.sub(r'<script type="application/json">.*?</script>', "", text)
    assert HOSTILE in Reader(text).words()


def _values(text):
    """The points of every figure that show their values, as the page's script reads them."""
    documents = [json.loads(found) for found in re.findall(r'json">(.*?)</script>', text, re.DOTALL)]
    return [
        [{axis: tuple(document["columns"][mark[axis]]) for axis in "xy"} for mark in document["marks"]]
        for document in documents
    ]


def test_data_of_figures_survive_the_way_into_the_page():
    report = simulated("biased")
    figures = _values(plots_section(report).body_html)
    assert len(figures) == 8
    assert figures[0][-1]["x"] == pytest.approx(report.curves.central.nominal, rel=FIVE_DIGITS)
    assert figures[0][-1]["y"] == pytest.approx(report.curves.central.empirical, rel=FIVE_DIGITS)
    assert figures[3][0]["y"] == pytest.approx(report.curves.z_histogram.density, rel=FIVE_DIGITS)
    assert figures[6][-1]["y"] == pytest.approx(report.curves.sigma.error, rel=FIVE_DIGITS)


def test_drawings_are_whole_and_free_of_numbers_that_are_none():
    report = simulated("over-confident", groups=("a", "b", "c"))
    sections = (plots_section(report), groups_section(report), comparison_section(report, simulated()))
    drawings = [
        found for section in sections for found in re.findall(r'<svg class="drawing".*</svg>', section.body_html)
    ]
    assert len(drawings) == 8 + 1 + 3
    for drawing in drawings:
        for path in ElementTree.fromstring(drawing).iter("path"):
            assert re.fullmatch(r"[MLVHvhmlaz0-9.,eZ -]+", path.attrib["d"])


def evaluated(n=800):
    generator = torch.Generator().manual_seed(0)
    mean, sigma = torch.randn(n, generator=generator), 0.5 + torch.rand(n, generator=generator)
    target = mean + sigma * torch.randn(n, generator=generator)
    target[41] = 100.0
    return fcal.evaluate(Normal(mean, sigma), target)


def test_rows_of_an_evaluation_are_drawn_the_worst_with_its_number():
    report = evaluated()
    text = rows_section(report).body_html
    assert re.findall("<h3>(.*?)</h3>", text) == ["Error bars, row by row", "Errors by sigma, row by row", "Worst rows"]
    first = re.findall(r'class="y"[^>]*>(row [^<]*)<', text)[0]
    assert first.startswith("row 42, z ")
    bars, errors, worst = _values(text)
    assert sum(len(mark["x"]) for mark in bars) == 60
    assert len(errors[0]["x"]) == 400
    assert worst[0]["x"][0] == 100.0
    held = sum(low <= y <= high for low, y, high in zip(*_bars(report.curves.sample), strict=True))
    assert f"{held} of 60 hold their target" in text


def _bars(rows):
    return rows.low, rows.target[: len(rows.low)], rows.high


def test_page_of_a_report_that_saw_no_rows_leaves_their_pictures_out():
    assert rows_section(simulated(n=100)) is None
    assert "Error bars, row by row" not in calibration_page(simulated(n=100), source="s", command="c")


def test_glossary_explains_every_error_of_the_numbers():
    terms = re.findall("<dt>(.*?)</dt>", glossary_section().body_html)
    assert {"z", "q", "ECE", "MCE", "ENCE", "NLL", "CRPS", "sharpness", "floor", "band"} <= set(terms)
    assert "Glossary" in calibration_page(simulated(n=100), source="s", command="c")


def test_colours_named_by_figures_exist_in_light_and_in_dark():
    text = page("t", [plots_section(simulated())], command="c", versions={})
    named = set(re.findall(r"var\((--[a-z-]+)\)", text.replace("var(--tone", "")))
    light, *dark = re.findall(r":root[^{]*\{([^}]*)\}", text)
    assert len(dark) == 2
    assert dark[0].split() == dark[1].split(), "the button and the system give the same dark"
    known = set(re.findall(r"(--[a-z-]+):", light))
    assert named <= known
    assert set(re.findall(r"(--[a-z-]+):", dark[0])) == known


def test_numbers_stand_beside_floor_and_sizes_and_are_marked_above_it():
    report = simulated("over-confident", 5000)
    rows = re.findall(r"<tr>(.*?)</tr>", numbers_section(report).body_html)
    cells = [re.sub(r"<[^>]*>", "|", row).strip("|").split("||") for row in rows]
    assert ["ECE(z)", f"{report.ece_z:#.3g} ▲", "0.00253", "0.00443", "20", "75", "5,000"] in cells
    calm = replace(report, ece_z=0.001)
    assert "0.00100 ▲" not in numbers_section(calm).body_html


def test_numbers_that_do_not_exist_are_dashes():
    report = replace(without_sd(simulated(n=100)), nll=float("nan"), kld_q=float("inf"), nll_split=None)
    words = Reader(numbers_section(report).body_html).words().split()
    assert "—" in words
    assert not {"nan", "inf", "None", "null"} & set(words)
    assert "how well sigma" not in plots_section(report).body_html.lower()


def test_report_on_fitted_rows_says_so_once():
    told = "rows the recalibrator was fitted on"
    report = simulated(n=100, fitted_on=True)
    assert verdict_section(report).body_html.count(told) == 1
    assert verdict_section(replace(report, warnings=(f"measured on the {told}",))).body_html.count(told) == 1
    assert told not in verdict_section(simulated(n=100)).body_html


def test_of_too_many_groups_the_worst_are_shown():
    good, bad = simulated(n=100), simulated("over-confident", n=100)
    groups = {f"g{k}": good for k in range(50)} | {"worst": bad}
    section = groups_section(replace(good, groups=groups), most=10)
    assert section.body_html.count("<tr>") == 11
    assert 'data-value="worst"' in section.body_html
    assert "Shown are the 10" in section.body_html


def test_many_groups_are_a_table_and_no_picture():
    one = simulated(n=50)
    section = groups_section(replace(one, groups={str(k): one for k in range(61)}))
    assert "<figure" not in section.body_html


def test_comparison_has_both_numbers_in_a_row():
    before, after = simulated("over-confident"), simulated()
    text = comparison_section(before, after).body_html
    row = next(row for row in re.findall(r"<tr>(.*?)</tr>", text) if ">ECE(z)<" in row)
    assert f">{before.ece_z:#.3g}<" in row
    assert f">{after.ece_z:#.3g}<" in row


def test_page_stays_below_a_megabyte():
    without = page("t", [Section("a", "<p>b</p>")], command="c", versions={})
    assert len(without) < 30_000
    full = calibration_page(simulated(groups=[f"camera {k}" for k in range(60)]), source="s", command="c")
    assert len(full.encode()) < 300_000
    assert len(calibration_page(evaluated(), source="s", command="c").encode()) < 300_000


def test_write_page_replaces_a_file_and_leaves_nothing_else(tmp_path):
    path = tmp_path / "new" / "report.html"
    for title in ("first", "second"):
        write_page(path, title, [Section("", "<p>é</p>")], command="c", versions={})
    assert "<title>second</title>" in path.read_text("utf-8")
    assert list(path.parent.iterdir()) == [path]


def test_failed_page_keeps_the_old_file(tmp_path):
    path = tmp_path / "report.html"
    path.write_text("old")

    def sections():
        yield Section("", "")
        raise RuntimeError("no data")

    with pytest.raises(RuntimeError, match="no data"):
        write_page(path, "t", sections(), command="c", versions={})
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_name_that_is_not_unicode_is_written_all_the_same(tmp_path):
    path = tmp_path / "report.html"
    write_page(path, "bad \udcff name", [], command="fcal evaluate \udcff.csv", versions={})
    assert "bad ? name" in path.read_text("utf-8")


def test_markup_of_text_and_json():
    assert escaped("<a href='x'>") == "&lt;a href=&#x27;x&#x27;&gt;"
    text = script_json({"a": [HOSTILE, float("inf"), 1.5, None]})
    assert not set("<>&\u2028\u2029") & set(text)
    assert json.loads(text) == {"a": [HOSTILE, None, 1.5, None]}


def test_sort_keys_are_numbers_and_absent_where_missing():
    columns = [Column("name", number=False), Column("n")]
    rows = [(Cell("a"), Cell("1,234", 1234)), (Cell("b"), Cell("—", None)), (Cell("c"), Cell("—", float("nan")))]
    text = table(columns, rows, caption="t", sortable=True)
    assert re.findall(r'<td class="number"( data-value="[^"]*")?>', text) == [' data-value="1234"', "", ""]


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (
            lambda: calibration_page({}, source="a", command="b"),
            TypeError,
            "expected `report` a Report of fcal.evaluate",
        ),
        (lambda: groups_section(simulated(n=50)), ValueError, "expected `report` with groups, got none"),
    ],
)
def test_misuse_is_refused_in_one_sentence(call, error, message):
    with pytest.raises(error, match=message):
        call()


def test_reports_need_no_matplotlib(monkeypatch):
    real = builtins.__import__

    def without_matplotlib(name, *arguments, **options):
        if name.startswith("matplotlib"):
            raise ImportError(name)
        return real(name, *arguments, **options)

    for name in [name for name in sys.modules if name.startswith(("fcal.reports", "fcal.plots", "matplotlib"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(builtins, "__import__", without_matplotlib)
    import fcal.reports

    assert "<svg" in fcal.reports.plots_section(simulated(n=50)).body_html


def test_dots_of_a_comparison_tell_the_difference_and_its_interval():
    target = torch.randn(300, generator=torch.Generator().manual_seed(0))
    two = {"first": Normal(torch.zeros(300), 1.0), "second": Normal(torch.zeros(300), 2.0)}
    (dots,) = (mark for mark in forest(fcal.compare(two, target), "nll").marks if isinstance(mark, Dots))
    low, high = dots.extra[0]
    said = f"difference {dots.x[0]:.4g}\nfrom {low:.4g} to {high:.4g}"
    assert dots.hover.format(low, high, x=dots.x[0]) == said
