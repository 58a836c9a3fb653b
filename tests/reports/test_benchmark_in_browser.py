"""The page of a benchmark in a real browser: nothing is asked for, all is drawn, names are text, phones fit."""

import pytest
from reports.browser import browser, place_of, visit
from reports.made_up import made_up_table
from reports.test_benchmark_page import HOSTILE, benchmark_page, hostile_table


@pytest.fixture(scope="module")
def running():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    tables = [
        made_up_table("homoscedastic"),
        made_up_table("heteroscedastic"),
        made_up_table("heteroscedastic", "noise-dominated", seeds=1),
    ]
    file = tmp_path_factory.mktemp("page") / "benchmark.html"
    text = benchmark_page(tables, title="Bokeh", command="fcal benchmark bokeh", notes=["Made up."], seconds=90)
    file.write_text(text, "utf-8")
    return file


def test_page_from_disk_asks_for_nothing_and_draws_everything(running, path):
    with visit(running) as seen:
        page = seen.open(path)
        assert [url for url in seen.requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
        drawn = page.eval_on_selector_all(
            ".drawing",
            """areas => areas.map(area => [...area.querySelectorAll("[data-row]:not([hidden])")]
                .filter(line => line.getBoundingClientRect().width > 50).length)""",
        )
        assert len(drawn) == 2 * 4 + 4 + 3 * 2  # two noises, one noise, and what three tables learned
        assert min(drawn) >= 3
        images = page.locator(".gallery image")
        assert images.count() == 24
        box = images.first.bounding_box()
        assert box["width"] == pytest.approx(box["height"], abs=1)
        assert seen.complaints == []


def test_noises_stand_side_by_side_in_four_rows(running, path):
    with visit(running) as seen:
        page = seen.open(path)
        section = page.locator("section", has=page.locator(".two-columns")).first
        places = section.locator(".plot").evaluate_all(
            "all => all.map(p => p.getBoundingClientRect()).map(box => [Math.round(box.left), Math.round(box.top)])"
        )
        assert len({left for left, _ in places}) == 2
        assert len({top for _, top in places}) == 4


def test_whole_table_is_seen_on_a_desk(running, path):
    with visit(running) as seen:
        page = seen.open(path)
        hidden = page.eval_on_selector_all(
            ".table-box:has(.results)",
            "all => all.map(b => [b.scrollWidth - b.clientWidth, b.scrollHeight - b.clientHeight])",
        )
        assert hidden == [[0, 0]] * 6


def test_legend_shows_and_hides_a_method_in_its_own_section_only(running, path):
    with visit(running) as seen:
        page = seen.open(path)
        first, second = page.locator("section", has=page.locator(".two-columns")).all()
        lines = """areas => areas.map(area => [...area.querySelectorAll("[data-row=nll]")]
            .filter(line => line.getBoundingClientRect().width > 0).length)"""

        def visible(section):
            return section.locator(".drawing").evaluate_all(lines)

        button = first.locator("button[data-method=nll]")
        assert visible(first) == [1] * 8
        button.click()
        assert button.get_attribute("aria-pressed") == "false"
        assert visible(first) == [0] * 8
        assert visible(second) == [1] * 4
        page.locator("#theme").click()  # colours change, choices stay
        assert visible(first) == [0] * 8
        button.focus()
        page.keyboard.press("Enter")
        assert visible(first) == [1] * 8
        assert seen.complaints == []


def test_table_sorts_while_floors_stay_at_the_foot(running, path):
    with visit(running) as seen:
        page = seen.open(path)
        table = page.locator("table.results.sortable").first
        table.locator("th button", has_text="NLL").click()
        values = table.locator("tbody tr").evaluate_all("rows => rows.map(r => r.cells[7].dataset.value)")
        known = [float(value) for value in values if value is not None]
        assert known == sorted(known)
        assert values[-1] is None  # the deterministic network has none
        assert table.locator("tfoot th").all_text_contents() == ["floor", "95 % below"]


def test_phone_needs_no_sideways_scrolling_and_keeps_the_names_of_rows(running, path):
    with visit(running, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True) as seen:
        page = seen.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        box = page.locator(".table-box:has(.results)").first
        left = box.evaluate(
            """box => {
                box.scrollLeft = 400;
                return [box.scrollLeft, box.querySelector("tbody th").getBoundingClientRect().left];
            }"""
        )
        assert left[0] == 400
        assert 0 <= left[1] < 40
        columns = page.locator(".gallery").first.evaluate(
            "g => new Set([...g.children].map(f => Math.round(f.getBoundingClientRect().left))).size"
        )
        assert columns == 2
        assert seen.complaints == []


def test_hostile_names_are_shown_as_text(running, tmp_path):
    path = tmp_path / "hostile.html"
    text = benchmark_page([hostile_table()], title=HOSTILE, command=HOSTILE, notes=[HOSTILE], versions={})
    path.write_text(text, "utf-8")
    with visit(running) as seen:
        page = seen.open(path)
        start = "</script><script>alert('x')</script>&"
        assert start in page.locator(".legend").first.inner_text()
        assert any(start in name for name in page.locator("table.results tbody th").all_text_contents())
        area = page.locator(".drawing").first
        page.locator(".legend button", has_text=start).first.click()  # a failed method is hidden until asked for
        for other in ("nll", "fcal_wass"):  # whose lines lie on it
            page.locator(f".legend button[data-method={other}]").first.click()
        area.scroll_into_view_if_needed()
        row = "d => [...d.querySelectorAll('[data-row]')].findIndex(line => line.dataset.row.includes('alert'))"
        point = place_of(area, 1 + area.evaluate(row), 20)  # after the density
        page.mouse.move(point["left"], point["top"])
        assert "</script><script>alert('x')</script>" in page.locator(".tip").inner_text()
        assert page.locator("main script:not([type='application/json'])").count() == 0
        assert seen.dialogs == []
        assert seen.complaints == []
