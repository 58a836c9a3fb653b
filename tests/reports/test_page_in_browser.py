"""The page in a real browser: it asks for nothing, draws everything, sorts, and shows hostile names as text."""

from dataclasses import replace

import pytest
from plots.simulated import simulated, without_sd
from reports.browser import browser, place_of, visit

from fcal.plots.figure import Axis, Figure, Line
from fcal.reports import Section, calibration_page, comparison_section, write_page
from fcal.reports.svg_renderer import grid

HOSTILE = ("<script>alert(1)</script>", '"><img src=x onerror=alert(2)>', "<b>bold</b> &amp; $x$ %{x}", "</table>", "")
PLOTS = 9  # eight of the report, one of the groups


@pytest.fixture(scope="module")
def running():
    with browser() as opened:
        yield opened


@pytest.fixture(scope="module")
def report():
    return simulated("over-confident", 4000, groups=[*HOSTILE, *(f"camera {k}" for k in range(12))])


@pytest.fixture(scope="module")
def path(report, tmp_path_factory):
    file = tmp_path_factory.mktemp("page") / "report.html"
    file.write_text(calibration_page(report, source="<i>p</i>.csv", command="fcal evaluate '<i>p</i>.csv'"), "utf-8")
    return file


def test_page_from_disk_asks_for_nothing_and_complains_of_nothing(running, path):
    with visit(running) as seen:
        page = seen.open(path)
        page.mouse.wheel(0, 5000)
        page.wait_for_timeout(300)
        assert [url for url in seen.requests if not url.startswith(("data:", "blob:"))] == [path.as_uri()]
        assert seen.complaints == []


def test_policy_of_the_page_forbids_requests_and_scripts_that_are_not_ours(running, path):
    with visit(running) as seen:
        page = seen.open(path)
        refused = page.evaluate(
            """async () => {
                window.ran = false;
                const script = document.createElement("script");
                script.textContent = "window.ran = true";
                document.body.append(script);
                const answer = await fetch("https://example.invalid/").then(() => "sent", (error) => String(error));
                return [window.ran, answer];
            }"""
        )
        assert refused == [False, "TypeError: Failed to fetch"]
        assert any("Content Security Policy" in complaint for complaint in seen.complaints)


def test_every_plot_is_drawn_and_its_labels_lie_within_it_apart(running, path):
    with visit(running) as seen:
        drawn = seen.open(path).eval_on_selector_all(
            ".drawing",
            """areas => areas.map(area => {
                const box = area.getBoundingClientRect();
                const texts = [...area.querySelectorAll("text")].map(text => text.getBoundingClientRect());
                const apart = (a, b) =>
                    a.right <= b.left || b.right <= a.left || a.bottom - 2 <= b.top || b.bottom - 2 <= a.top;
                return {
                    name: area.getAttribute("aria-label").split(":")[0],
                    marks: [...area.querySelectorAll("path")]
                        .filter(path => path.getBBox().width + path.getBBox().height > 0).length,
                    width: box.width,
                    outside: texts.filter(t => t.left < box.left - 1 || t.right > box.right + 1).length,
                    touching: texts.flatMap((a, i) => texts.slice(i + 1).filter(b => !apart(a, b))).length,
                };
            })""",
        )
        assert len(drawn) == PLOTS
        for plot in drawn:
            assert plot["marks"] >= 3, plot
            assert plot["width"] > 250, plot
            assert (plot["outside"], plot["touching"]) == (0, 0), plot


def test_hover_tells_nominal_and_actual_share(running, path):
    with visit(running) as seen:
        page = seen.open(path)
        area = page.locator(".drawing").first
        area.scroll_into_view_if_needed()
        point = place_of(area, -1, 10)
        page.mouse.move(point["left"], point["top"])
        words = page.locator(".tip").inner_text()
        assert "nominal 50.0%" in words
        assert f"{100 * point['y']:.2f}%" in words
        page.mouse.move(5, 5)
        assert page.locator(".tip").is_hidden()


def test_script_writes_numbers_as_python_does(running, tmp_path):
    values = [0.0, 1.0, 0.12346, 123.46, -0.00012345, 0.6827, 99.95]
    kinds = (".3g", ".6g", ".3f", ".0%", ".1%", ".2%")
    line = Line(x=values, y=range(len(values)), hover="|".join(f"{{x:{kind}}}" for kind in kinds) + "|{0:,}")
    counts = [(round(1e6 * abs(value)),) for value in values]
    figure = Figure(title="t", x=Axis(), y=Axis(), marks=[replace(line, extra=counts)])
    path = tmp_path / "numbers.html"
    write_page(path, "t", [Section("", grid([figure]))], command="c", versions={})
    with visit(running) as seen:
        page = seen.open(path)
        for index, (value, (count,)) in enumerate(zip(values, counts, strict=True)):
            point = place_of(page.locator(".drawing"), 0, index)
            page.mouse.move(point["left"], point["top"])
            wanted = [*(format(value, kind) for kind in kinds), f"{count:,}"]
            assert page.locator(".tip").inner_text().split("|") == wanted


def _column(page, place):
    return page.eval_on_selector_all(
        f"table.sortable tbody tr :nth-child({place})", "cells => cells.map(c => c.textContent)"
    )


def test_group_table_sorts_by_click_up_and_down(running, path, report):
    scales = sorted(group.scale.value for group in report.groups.values())
    with visit(running) as seen:
        page = seen.open(path)
        assert _column(page, 2)[0] == "calibrated"
        head = page.locator("table.sortable th", has_text="sd of z").first
        assert head.get_attribute("aria-sort") == "none"
        for direction, wanted in (("ascending", scales), ("descending", scales[::-1])):
            head.locator("button").click()
            assert head.get_attribute("aria-sort") == direction
            shown = [float(text) for text in _column(page, 4)]
            assert shown == pytest.approx(wanted, rel=6e-3)  # three digits are shown


def test_group_table_sorts_by_keyboard_and_names_sort_as_people_count(running, path):
    with visit(running) as seen:
        page = seen.open(path)
        button = page.locator("table.sortable th button").first
        button.focus()
        page.keyboard.press("Enter")
        names = [name for name in _column(page, 1) if name.startswith("camera")]
        assert names == [f"camera {k}" for k in range(12)]
        page.keyboard.press("Space")
        assert [name for name in _column(page, 1) if name.startswith("camera")] == names[::-1]
        assert page.locator("table.sortable th[aria-sort=descending]").count() == 1


def test_missing_numbers_are_dashes_that_sort_last(running, tmp_path):
    report = simulated(groups=[f"g{k}" for k in range(4)])
    blank = replace(report.groups["g1"], rmse=None, nll=float("nan"), crps=float("inf"))
    path = tmp_path / "report.html"
    whole = replace(without_sd(report), groups=report.groups | {"g1": blank}, kld_q=float("inf"), nll=float("nan"))
    path.write_text(calibration_page(whole, source="x", command="x"), "utf-8")
    with visit(running) as seen:
        page = seen.open(path)
        words = page.locator("main").inner_text()
        assert "—" in words
        for bad in ("nan", "null", "None", "undefined", "inf", "NaN"):
            assert bad not in words.replace("information", "").split()
        head = page.locator("table.sortable th", has_text="RMSE")
        for _ in range(2):
            head.locator("button").click()
            assert _column(page, 1)[-1] == "g1"
        assert page.locator("svg.drawing").count() > 0
        assert seen.complaints == []


def test_hostile_names_are_shown_as_text_in_table_plot_and_title(running, path):
    with visit(running) as seen:
        page = seen.open(path)
        shown = set(_column(page, 1))
        assert {name for name in HOSTILE if name} < shown
        assert "(empty)" in shown
        ticks = page.locator(".plot.wide text.y").all_text_contents()
        assert "<b>bold</b> &amp; $x$ %…" in ticks
        assert "<script>alert(1)</scrip…" in ticks
        assert page.title() == "Calibration of <i>p</i>.csv"
        assert page.locator("h1").inner_text() == "Calibration of <i>p</i>.csv"
        assert page.locator("footer code").inner_text() == "fcal evaluate '<i>p</i>.csv'"
        assert page.locator("main img, main b, main i, h1 i").count() == 0
        assert seen.dialogs == []


def test_hostile_name_is_text_in_a_hover_label(running, path):
    with visit(running) as seen:
        page = seen.open(path)
        area = page.locator(".plot.wide .drawing")
        area.scroll_into_view_if_needed()
        point = place_of(area, 0, 2)
        page.mouse.move(point["left"], point["top"])
        assert "<b>bold</b> &amp; $x$ %{x}" in page.locator(".tip").inner_text()
        assert page.locator(".tip b b").count() == 0
        assert seen.dialogs == []


def test_phone_needs_no_sideways_scrolling(running, path):
    with visit(running, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True) as seen:
        page = seen.open(path)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390
        columns = page.eval_on_selector_all(
            ".plot", "all => new Set(all.map(p => p.getBoundingClientRect().left)).size"
        )
        assert columns == 1
        inside = page.eval_on_selector(".table-box:has(.sortable)", "box => box.scrollWidth > box.clientWidth")
        assert inside, "the wide table scrolls in its own box"
        right = page.eval_on_selector_all(
            ".plot:not(.wide) .drawing", "all => Math.max(...all.map(s => s.getBoundingClientRect().right))"
        )
        assert right <= 390


def test_phone_shows_at_which_side_a_table_goes_on(running, path):
    with visit(running, viewport={"width": 390, "height": 844}, is_mobile=True, has_touch=True) as seen:
        page = seen.open(path)
        box = page.locator(".table-box:has(.sortable)")
        classes = "box => [...box.classList].filter(name => name.startsWith('more')).sort()"
        masked = "box => getComputedStyle(box).maskImage.startsWith('linear-gradient')"
        assert box.evaluate(classes) == ["more-right"]
        assert box.evaluate(masked)
        for left, wanted in ((100, ["more-left", "more-right"]), (9999, ["more-left"])):
            box.evaluate("(box, left) => { box.scrollLeft = left; }", left)
            page.locator(".table-box.more-left").wait_for()
            page.wait_for_timeout(100)
            assert box.evaluate(classes) == wanted
        assert page.locator(".plot.wide .scrolls").evaluate(classes) == ["more-right"]
    with visit(running) as seen:
        assert seen.open(path).locator(".tables .more-right, .more-left").count() == 0


def _colours(page):
    return page.evaluate(
        """() => [
            getComputedStyle(document.body).backgroundColor,
            getComputedStyle(document.querySelector(".drawing text.x")).fill,
            getComputedStyle(document.querySelector(".drawing g .line")).stroke,
        ]"""
    )


def test_dark_scheme_recolours_page_and_plots_and_so_does_the_button(running, path):
    with visit(running, color_scheme="light") as seen:
        page = seen.open(path)
        light = _colours(page)
        page.emulate_media(color_scheme="dark")
        dark = _colours(page)
        assert all(a != b for a, b in zip(light, dark, strict=True))
        page.locator("#theme").click()
        assert _colours(page) == light
    with visit(running, color_scheme="dark") as seen:
        assert _colours(seen.open(path)) == dark


def test_print_is_light_also_for_those_who_read_dark(running, path):
    with visit(running, color_scheme="dark") as seen:
        page = seen.open(path)
        page.emulate_media(media="print", color_scheme="dark")
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(251, 251, 249)"


def test_thousand_groups_sort_within_a_second(running, tmp_path):
    one = simulated(n=200)
    groups = {f"group {k}": replace(one, ece_z=((k * 7919) % 1000) / 1000) for k in range(1000)}
    path = tmp_path / "report.html"
    path.write_text(calibration_page(replace(one, groups=groups), source="x", command="x"), "utf-8")
    with visit(running) as seen:
        page = seen.open(path)
        spent = page.evaluate(
            """() => {
                const buttons = [...document.querySelectorAll(".sortable th button")];
                const button = buttons.find(b => b.textContent === "ECE(z)");
                const start = performance.now();
                button.click();
                document.body.getBoundingClientRect();
                return performance.now() - start;
            }"""
        )
        assert _column(page, 1)[:2] == ["group 0", f"group {pow(7919, -1, 1000)}"]
        assert len(_column(page, 1)) == 1000
        assert spent < 1000  # milliseconds; 60 here


def test_comparison_draws_both_reports(running, tmp_path):
    path = tmp_path / "repair.html"
    section = comparison_section(simulated("over-confident"), simulated())
    write_page(path, "Repair", [section], command="fcal recalibrate", versions={"fcal": "1", "commit": None})
    with visit(running) as seen:
        page = seen.open(path)
        assert page.locator(".plot .legend li").all_text_contents().count("before") == 3
        assert page.locator(".pair .word").all_text_contents() == ["over-confident", "calibrated"]
        assert page.locator("footer dd").all_text_contents() == ["1", "—"]
        assert seen.complaints == []


def test_page_is_read_without_its_script(running, path):
    with visit(running, java_script_enabled=False) as seen:
        seen.page.goto(path.as_uri())
        assert seen.page.locator("svg.drawing").first.is_visible()
        assert seen.page.locator("#theme").is_hidden()
