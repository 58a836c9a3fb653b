"""The page around sections: one file, no request to anywhere, dark and light, for desk, phone and paper."""

import base64
import hashlib
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import resources
from typing import Any

from fcal._files import atomic_path
from fcal.plots.captions import MISSING
from fcal.reports.markup import escaped


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: Heading, as text; none where empty.
        body_html: Markup in which everything from outside is already escaped.
        plots: Whether it holds figures, so that the page needs the library that draws them.
    """

    title: str
    body_html: str
    plots: bool = False


def page(title: str, sections: Iterable[Section], *, command: str, versions: Mapping[str, Any]) -> str:
    """A whole page as one string.

    Its scripts are known to the browser by their checksums; anything else, and every request, is forbidden.

    Args:
        title: Of the page, as text.
        sections: From top to bottom.
        command: What was run, exactly; shown at the bottom.
        versions: By name, such as ``fcal._files.provenance()`` returns; shown beside it.

    Returns:
        HTML, to be saved as UTF-8.

    Raises:
        ImportError: A section has plots and plotly is not installed.

    Example:
        >>> text = page("Five < six", [Section("Why", "<p>Count.</p>")], command="count 5 6", versions={"fcal": "1"})
        >>> "<title>Five &lt; six</title>" in text, "<h2>Why</h2>" in text, len(text) < 30_000
        (True, True, True)
    """
    sections = list(sections)
    scripts = [_asset("page.js")]
    if any(section.plots for section in sections):
        scripts.insert(0, _plotly())
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">',
            f"<title>{escaped(title)}</title>\n<style>{_asset('page.css')}</style>\n</head>\n<body>",
            f'<header><h1>{escaped(title)}</h1><button type="button" id="theme" hidden>dark</button></header>\n<main>',
            *(_section(section) for section in sections),
            f"</main>\n{_footer(command, versions)}",
            *(f"<script>{script}</script>" for script in scripts),
            "</body>\n</html>\n",
        )
    )


def write_page(
    path: str | os.PathLike[str],
    title: str,
    sections: Iterable[Section],
    *,
    command: str,
    versions: Mapping[str, Any],
) -> None:
    """Write a :func:`page` to a file, which is whole or not there; one that exists is replaced."""
    write_html(path, page(title, sections, command=command, versions=versions))


def write_html(path: str | os.PathLike[str], text: str) -> None:
    """Write a finished page atomically."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def _section(section: Section) -> str:
    heading = f"<h2>{escaped(section.title)}</h2>\n" if section.title else ""
    return f"<section>\n{heading}{section.body_html}\n</section>"


def _footer(command: str, versions: Mapping[str, Any]) -> str:
    pairs = ((name, MISSING if value is None else value) for name, value in versions.items())
    shown = "".join(f"<div><dt>{escaped(name)}</dt><dd>{escaped(value)}</dd></div>" for name, value in pairs)
    return f"<footer><h2>Made by</h2>\n<pre><code>{escaped(command)}</code></pre>\n<dl>{shown}</dl></footer>"


def _policy(scripts: Iterable[str]) -> str:
    hashes = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in hashes)
    rest = "style-src 'unsafe-inline'; img-src data: blob:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src {allowed}; {rest}"


def _asset(name: str) -> str:
    return resources.files("fcal.reports").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def _plotly() -> str:
    try:
        from plotly.offline import get_plotlyjs
    except ImportError as error:
        raise ImportError("expected plotly for fcal.reports; pip install 'fcal[cli]'") from error
    # A browser reads line ends as \n before it takes the checksum.
    script: str = get_plotlyjs().replace("\r\n", "\n").replace("\r", "\n")
    return script
