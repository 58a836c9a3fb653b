"""The page that says how the code is laid out tells the truth."""

import re
from pathlib import Path

import paths

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")


def test_paths_on_the_page_are_those_that_calls_take():
    """`python experiments/paths.py --write` renews them."""
    assert paths.replaced(PAGE, paths.measured()) == PAGE


def test_modules_that_the_page_names_exist():
    named = re.findall(r"`((?:[a-z_]+/)*[a-z_]+\.py)`", PAGE)
    assert len(named) > 10
    assert [name for name in named if not any((ROOT / room / name).is_file() for room in ("src/fcal", "."))] == []
    assert all((ROOT / "src/fcal" / name).is_dir() for name in re.findall(r"`([a-z]+(?:/_?[a-z]+)?)/`,", PAGE))


def test_layers_in_contributing_are_those_that_are_enforced():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    enforced = re.search(r"layers = \[\n(.*?)\n\]", (ROOT / "pyproject.toml").read_text(encoding="utf-8"), re.DOTALL)
    rooms = {path.stem for path in (ROOT / "src/fcal").iterdir() if path.suffix in ("", ".py")}
    rows = [{room.strip(' ",()') for room in line.split("|")} & rooms for line in enforced[1].splitlines()]
    shown = re.search(r"```\n(cli .*?)```", text, re.DOTALL)[1].splitlines()
    listed = [set(re.split(r"\s{3,}", line)[0].split(" | ")) for line in shown]
    assert listed == [row for row in rows if row and row != {"__main__"}]
