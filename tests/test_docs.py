"""README and docs: commands and code run and print what is shown, links lead somewhere, the reference is whole."""

import argparse
import importlib
import inspect
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
import readme_table
from sphinx.config import Config
from sphinx.util.tags import Tags

import fcal
from fcal.cli import main
from fcal.cli.arguments import parser

ROOT = Path(__file__).parents[1]
PAGES = ["README.md", *sorted(path.relative_to(ROOT).as_posix() for path in (ROOT / "docs").glob("*.md"))]
WRITTEN = ["CONTRIBUTING.md", *(str(p.relative_to(ROOT)) for p in (ROOT / "experiments").glob("*/README.md"))]
RESULTS = [str(path.relative_to(ROOT)) for path in (ROOT / "docs/results").glob("*.md")]
MOST_LINES = 120  # of the README

# Pages whose Python runs in a test of their own, with what it needs and what it must print.
PYTHON_RUN_BY = {
    "docs/bokeh.md": "tests/data/test_page.py",
    "docs/crossfitting.md": "tests/crossfitting/test_page.py",
    "docs/depth.md": "tests/cli/test_predict_command.py",
    "docs/detection.md": "tests/tables/test_detection_page.py",
    "docs/fcal_loss.md": "tests/test_scripts.py",
    "docs/files.md": "tests/tables/test_files_page.py",
    "docs/noise_families.md": "tests/test_noise_families.py",
    "docs/own_benchmark.md": "tests/benchmarks/test_own_benchmark.py",
    "docs/recalibration.md": "tests/recalibration/test_experiment.py",
    "docs/training.md": "tests/training/test_page.py",
}
PYTHON_RUN_HERE = [
    "README.md",
    "docs/comparison.md",
    "docs/divergences.md",
    "docs/evaluation.md",
    "docs/families.md",
    "docs/which_tool.md",
]

# Commands that a test elsewhere runs, in the order of their pages.
RUN_BY = {
    "fcal data street --out streets": "tests/cli/test_predict_command.py",
    "fcal train docs/examples/depth.toml": "tests/cli/test_predict_command.py",
    "fcal predict runs/depth-example": "tests/cli/test_predict_command.py",
    "fcal benchmark line": "tests/benchmarks/test_own_benchmark.py",
    "fcal benchmark waves": "tests/benchmarks/test_own_benchmark.py",
    "fcal train waves.toml": "tests/training/test_page.py",
}
# Commands whose words are only parsed, and why.
PARSED = {
    "make demo": "minutes; tests of the benchmark run its tiny preset",
    "make test": "runs this test",
    "fcal benchmark depth": "minutes to days, and downloaded data; tests of the benchmark run its tiny preset",
    "fcal train docs/examples/detection.toml": "minutes; tests/training/test_detection.py trains it for an epoch",
    "fcal benchmark detection --preset quick": "minutes; tests of the benchmark run its tiny preset",
    "fcal benchmark uci --data": "downloaded data; tests of the benchmark run tables of their own",
}

TRUTH = {  # for the example of a file on the page of detection
    "images": [{"id": number, "height": 80, "width": 100} for number in (1, 2)],
    "categories": [{"id": 1, "name": "car"}, {"id": 2, "name": "person"}],
    "annotations": [{"id": 1, "image_id": 1, "category_id": 1, "bbox": [20, 20, 40, 30], "area": 1200, "iscrowd": 0}],
}


def read(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[tuple[str, str]]:
    """Language and text of every fenced block."""
    found = re.finditer(r"^(?P<indent> *)```(?P<kind>\S*)\n(?P<text>.*?)^(?P=indent)```$", read(page), re.M | re.DOTALL)
    return [(block["kind"], block["text"]) for block in found]


def lines_of(text: str) -> list[str]:
    """Commands of a block, without comments and with continued lines joined."""
    joined = text.replace("\\\n", " ")
    return [line.partition(" #")[0].strip() for line in joined.splitlines() if line.strip()]


def is_synopsis(command: str) -> bool:
    return any(mark in command for mark in ("[", "|", "..."))


def shown_commands(page: str) -> list[str]:
    """Commands in blocks that a reader can copy; other blocks without a language show files and errors."""
    texts = [text for kind, text in blocks(page) if kind in ("", "shell")]
    lines = [line for text in texts for line in lines_of(text)]
    return [line for line in lines if re.match(r"(fcal|make|python|pip) ", line) and not is_synopsis(line)]


def named_commands(page: str) -> Iterator[str]:
    """Commands in blocks, synopses included, and in running text."""
    for kind, text in blocks(page):
        if kind in ("", "shell"):
            yield from (line for line in re.split(r"\n(?! )", text) if re.match(r"(fcal|make|python) ", line))
    prose = re.sub(r"```.*?```", "", read(page), flags=re.DOTALL)
    yield from re.findall(r"`((?:fcal|make|python) [^`]+)`", prose)


def quick_commands(page: str) -> list[str]:
    elsewhere = (*RUN_BY, *PARSED)
    return [command for command in shown_commands(page) if not command.startswith(elsewhere)]


def subcommands(of: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    actions = [action for action in of._actions if isinstance(action, argparse._SubParsersAction)]
    return dict(actions[0].choices) if actions else {}


def in_order(said: str, printed: str) -> bool:
    """Whether all lines are printed, in this order."""
    position = 0
    for line in said.splitlines():
        position = printed.find(line, position)
        if position < 0:
            return False
        position += len(line)
    return True


def said_after(page: str, language: str) -> list[str]:
    """Blocks of output that follow a block of a language."""
    pairs = pairwise([("", ""), *blocks(page)])
    return [text for (last, _), (kind, text) in pairs if kind == "text" and last == language]


def test_readme_is_short():
    assert len(read("README.md").splitlines()) <= MOST_LINES


def test_readme_shows_the_published_numbers():
    """`python experiments/readme_table.py --write` renews them."""
    table = readme_table.as_markdown(json.loads(readme_table.RESULTS.read_text(encoding="utf-8")))
    assert table in read("README.md")
    assert readme_table.replaced(read("README.md"), table) == read("README.md")


def test_index_has_every_page():
    linked = set(re.findall(r"\]\(([^)#]+\.md)\)", read("docs/index.md")))
    pages = {page.removeprefix("docs/") for page in (*PAGES, *RESULTS) if page.startswith("docs/")}
    assert pages - {"index.md"} <= linked


def test_page_of_the_api_has_every_room_and_every_short_name():
    named = set(re.findall(r"`fcal\.(\w+)`", read("docs/api.md")))
    assert set(fcal.__all__) - {"__version__"} <= named


def test_page_of_the_api_has_every_extra():
    extras = re.search(r"optional-dependencies\]\n(.*?)\n\n", read("pyproject.toml"), re.DOTALL)[1]
    named = set(re.findall(r"^\| `(\w+)` \|", read("docs/api.md"), re.MULTILINE))
    assert set(re.findall(r"^(\w+) = \[", extras, re.MULTILINE)) - {"bench", "dev"} == named


@pytest.mark.parametrize("page", [page for page in PAGES if any(kind == "python" for kind, _ in blocks(page))])
def test_python_of_every_page_is_run(page):
    assert (page in PYTHON_RUN_HERE) != (page in PYTHON_RUN_BY)
    if page in PYTHON_RUN_BY:
        assert Path(page).name in read(PYTHON_RUN_BY[page])


@pytest.mark.parametrize("page", [page for page in PAGES if page in PYTHON_RUN_HERE or quick_commands(page)])
def test_examples_of_a_page_run_and_print_what_it_says(page, tmp_path, monkeypatch, capsys):
    (tmp_path / "docs").symlink_to(ROOT / "docs")
    monkeypatch.chdir(tmp_path)
    if page in PYTHON_RUN_HERE:  # first: it writes the files of the commands
        code = "\n".join(text for kind, text in blocks(page) if kind == "python")
        words = [sys.executable, "-W", "error", "-c", code]
        run = subprocess.run(words, capture_output=True, text=True, check=False)
        assert run.returncode == 0, run.stderr
        assert "".join(said_after(page, "python")) == run.stdout
    if page == "docs/detection.md":
        detections = next(text for kind, text in blocks(page) if kind == "json")
        Path("detections.json").write_text(detections, encoding="utf-8")
        Path("coco.json").write_text(json.dumps(TRUTH), encoding="utf-8")
    for command in quick_commands(page):
        assert command.startswith("fcal "), command
        assert main(shlex.split(command)[1:]) == 0, command
    printed = capsys.readouterr().out
    assert in_order("".join(said_after(page, "shell")), printed), printed
    written = re.findall(r"--out (\S+)", " ".join(quick_commands(page)))
    assert all(Path(name).stat().st_size > 0 for name in written)


@pytest.mark.parametrize("command", [*RUN_BY, *PARSED])
def test_commands_that_are_not_run_here_are_on_a_page(command):
    assert any(shown.startswith(command) for page in PAGES for shown in shown_commands(page))
    if command in RUN_BY:
        page = next(p for p in PAGES if any(shown.startswith(command) for shown in shown_commands(p)))
        assert Path(page).name in read(RUN_BY[command])


def fcal_commands() -> list[str]:
    named = {" ".join(text.split()) for page in (*PAGES, *WRITTEN) for text in named_commands(page)}
    return sorted(command for command in named if command.startswith("fcal "))


@pytest.mark.parametrize("command", fcal_commands())
def test_commands_and_options_that_pages_name_exist(command):
    words = command.split()[1:]
    at, path = parser(), []
    while words and words[0] in subcommands(at):
        at = subcommands(at)[words[0]]
        path.append(words.pop(0))
    own_task = path == ["benchmark"] and "--plugin" in command
    assert path or command.startswith("fcal --"), command
    options = {option for action in at._actions for option in action.option_strings}
    if own_task:
        options = {option for task in subcommands(at).values() for a in task._actions for option in a.option_strings}
    named = re.findall(r"(?<!\S)[\[(]?(--[a-z][a-z-]*)", " ".join(words)) if path else []
    assert [option for option in named if option not in options] == []


@pytest.mark.parametrize("command", [c for page in PAGES for c in shown_commands(page) if c.startswith(tuple(PARSED))])
def test_long_commands_parse(command):
    if command.startswith("fcal "):
        assert parser().parse_args(shlex.split(command)[1:]).module


def test_targets_of_make_exist():
    named = {word for page in (*PAGES, *WRITTEN) for text in named_commands(page) for word in targets(text)}
    known = set(re.findall(r"^([a-z]+):", read("Makefile"), re.MULTILINE))
    assert {"demo", "test", "docs", "bench"} <= named <= known


def targets(command: str) -> list[str]:
    words = command.partition("#")[0].split()
    return [word for word in words[1:] if word.isalpha()] if words[0] == "make" else []


def scripts() -> list[str]:
    """Scripts in commands; their arguments may need hours."""
    commands = [text.split()[1:] for page in PAGES for text in named_commands(page) if text.startswith("python ")]
    modules = {words[1].replace(".", "/") + ".py" for words in commands if words[0] == "-m"}
    return sorted(modules | {words[0] for words in commands if words[0] != "-m"})


@pytest.mark.parametrize("script", scripts())
def test_scripts_that_pages_run_explain_their_arguments(script):
    run = subprocess.run([sys.executable, ROOT / script, "--help"], capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    assert run.stdout.startswith("usage:")


def test_files_that_pages_name_exist():
    pattern = r"`((?:experiments|bench|tests|src)/[\w/]+(?:\.\w+)?)[ `]"
    named = {name for page in (*PAGES, *RESULTS, *WRITTEN) for name in re.findall(pattern, read(page))}
    assert len(named) > 10
    assert [name for name in named if not (ROOT / name).exists()] == []


@pytest.mark.parametrize("page", [*PAGES, *WRITTEN])
def test_names_of_the_package_on_a_page_exist(page):
    for name in set(re.findall(r"`(fcal(?:\.\w+)+)", re.sub(r"```.*?```", "", read(page), flags=re.DOTALL))):
        value, parts = fcal, name.split(".")[1:]
        for depth, part in enumerate(parts, start=1):
            if not hasattr(value, part):
                importlib.import_module(".".join(["fcal", *parts[:depth]]))
            value = getattr(value, part)


def test_pages_that_messages_and_docstrings_name_exist():
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    named = {name for source in sources for name in re.findall(r"\bdocs/[\w/]+\.md", source)}
    assert len(named) > 3
    assert [name for name in named if not (ROOT / name).is_file()] == []


def anchors(page: Path) -> set[str]:
    """Anchors of the headings of a page, as browsers of repositories and Sphinx make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ +(.*?) *$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", [*PAGES, *RESULTS, *WRITTEN, "CHANGELOG.md"])
def test_links_lead_somewhere(page):
    text = re.sub(r"```.*?```|`[^`\n]+`", "", read(page), flags=re.DOTALL)
    for link in re.findall(r"\]\((?!https?:)([^)\s]+)\)", text):
        name, _, anchor = link.partition("#")
        path = (ROOT / page).parent / name if name else ROOT / page
        assert path.exists(), link
        assert not anchor or anchor in anchors(path), link


@pytest.fixture(scope="module")
def reference():
    sys.path.insert(0, str(ROOT / "docs"))
    try:
        import reference
    finally:
        sys.path.remove(str(ROOT / "docs"))
    return reference


def test_reference_has_every_public_name(reference):
    pages = reference.pages()
    assert set(fcal.__all__) - {"__version__", *fcal._ROOMS} == set(
        re.findall(r"^\.\. py:\w+:: (\w+)$", pages["fcal"], re.M)
    )
    for name in fcal._ROOMS:
        room = getattr(fcal, name)
        page = pages[room.__name__]
        shown = {line.split()[-1].rpartition(".")[2] for line in re.findall(r"^\.\. (?:py:|auto)\w+:: .*$", page, re.M)}
        modules = {entry for entry in room.__all__ if inspect.ismodule(getattr(room, entry))}
        assert set(room.__all__) - modules <= shown
        assert {f"{room.__name__}.{module}" for module in modules} <= set(pages)


def test_reference_documents_an_object_once(reference):
    text = "".join(reference.pages().values())
    documented = [
        getattr(sys.modules[name.rpartition(".")[0]], name.rpartition(".")[2])
        for name in re.findall(r"^\.\. auto(?:class|function):: (\S+)$", text, re.MULTILINE)
    ]
    assert len({id(value) for value in documented}) == len(documented) > 200


def test_configuration_of_the_docs_is_valid_and_strict():
    config = Config.read(ROOT / "docs", overrides={}, tags=Tags())
    assert config.release == fcal.__version__
    assert config.nitpicky
    assert "sphinx.ext.autodoc" in config.extensions
    recipe = re.search(r"^docs:.*\n\t(.*)$", read("Makefile"), re.MULTILINE)[1]
    assert "--fail-on-warning" in recipe
    assert re.search(r"^test: .*\bdocs\b", read("Makefile"), re.MULTILINE)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("[a](theory.md#x)", "[a](theory.md#x)"),
        ("[a](../Makefile)", "a (`Makefile`)"),
        ("[a](results/bench/core.json)", "[a](results/bench/core.json)"),
        ("[a](results/bench/core.md)", "a (`docs/results/bench/core.md`)"),
        ("`laws[a](x)`", "`laws[a](x)`"),
        ("```python\nlaws[a](x)\n```", "```python\nlaws[a](x)\n```"),
        ("![a](../x.png)", "![a](../x.png)"),
    ],
)
def test_links_to_the_repository_become_paths_in_html(monkeypatch, text, shown):
    monkeypatch.syspath_prepend(ROOT / "docs")
    import conf

    app = argparse.Namespace(env=argparse.Namespace(found_docs={"theory"}))
    source = [text]
    conf.without_links_to_the_repository(app, "training", source)
    assert source == [shown]
