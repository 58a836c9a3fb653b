"""HTML: escaped text, tables, and the page around sections.

A page is one file that makes no request, dark and light, for desk, phone and paper. Whatever comes from a file or a
command line is text and never markup.
"""

import base64
import hashlib
import html
import json
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from fcal._files import atomic_path
from fcal.plots.captions import MISSING


@dataclass(frozen=True)
class Section:
    """A part of a page.

    Attributes:
        title: Heading, as text; none where empty.
        body_html: Markup in which all foreign text is escaped.
    """

    title: str
    body_html: str


def page(title: str, sections: Iterable[Section], *, command: str, versions: Mapping[str, Any]) -> str:
    """A whole page as one string.

    Its content security policy allows its own script, by its checksum, and no request.

    Args:
        title: Of the page, as text.
        sections: From top to bottom.
        command: The command that was run, shown at the bottom.
        versions: By name, as ``fcal._files.provenance()`` returns them, shown beside it.

    Returns:
        HTML, to be saved as UTF-8.

    Example:
        >>> text = page("Five < six", [Section("Why", "<p>Count.</p>")], command="count 5 6", versions={"fcal": "1"})
        >>> "<title>Five &lt; six</title>" in text, "<h2>Why</h2>" in text, len(text) < 30_000
        (True, True, True)
    """
    script = _asset("page.js")
    return "\n".join(
        (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="referrer" content="no-referrer">\n<link rel="icon" href="data:,">',
            f"<title>{escaped(title)}</title>\n<style>{_asset('page.css')}</style>\n</head>\n<body>",
            f'<header><h1>{escaped(title)}</h1><button type="button" id="theme" hidden>dark</button></header>\n<main>',
            *(_section(section) for section in sections),
            f"</main>\n{_footer(command, versions)}",
            f"<script>{script}</script>\n</body>\n</html>\n",
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
    """Write a :func:`page` to a file atomically; an existing file is replaced."""
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


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    rest = "style-src 'unsafe-inline'; img-src data:; base-uri 'none'; form-action 'none'"
    return f"default-src 'none'; script-src 'sha256-{digest}'; {rest}"


def _asset(name: str) -> str:
    return resources.files("fcal.reports").joinpath(name).read_text(encoding="utf-8").replace("\r\n", "\n")


def escaped(text: object) -> str:
    """Text that is safe between tags and in quoted attributes.

    Example:
        >>> escaped("<b>5 > 3</b>")
        '&lt;b&gt;5 &gt; 3&lt;/b&gt;'
    """
    # A lone surrogate, as in a file name that is not UTF-8, cannot be written.
    return html.escape(str(text).encode("utf-8", "replace").decode("utf-8"), quote=True)


def script_json(document: Any) -> str:
    r"""JSON that cannot end the script element around it; numbers that are not finite become null.

    Example:
        >>> script_json({"name": "</script>", "value": float("nan")})
        '{"name":"\\u003c/script\\u003e","value":null}'
    """
    text = json.dumps(_finite(document), allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return value


@dataclass(frozen=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: Its content.
        value: Sort key: a number, a string, or None where missing; columns of text are sorted by ``text`` then.
        kind: CSS classes.
        small: Small print under the text.
        hint: Shown when hovering.
    """

    text: str
    value: float | str | None = None
    kind: str = ""
    small: str = ""
    hint: str = ""


@dataclass(frozen=True)
class Column:
    """Head of a column.

    Attributes:
        title: Its text.
        number: Whether the column holds numbers, which are aligned right and sorted by size.
        hint: Shown when hovering.
    """

    title: str
    number: bool = True
    hint: str = ""


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell | str]],
    *,
    caption: str,
    sortable: bool = False,
    foot: Iterable[Sequence[Cell | str]] = (),
    kind: str = "",
) -> str:
    """A table that scrolls in its own box where the page is narrower; the first column names the row.

    Args:
        columns: Headings.
        rows: Cells of each row; text alone is a cell without more.
        caption: What it shows.
        sortable: Whether a click on a heading sorts the rows.
        foot: Rows that stay at the end.
        kind: CSS classes.
    """
    head = "".join(_head(column, sortable=sortable) for column in columns)
    body = "\n".join(f"<tr>{_row(columns, row, sortable=sortable)}</tr>" for row in rows)
    last = "\n".join(f"<tr>{_row(columns, row, sortable=False)}</tr>" for row in foot)
    classes = " ".join(filter(None, ("sortable" if sortable else "", kind)))
    attribute, name = f' class="{classes}"' if classes else "", escaped(caption)
    end = f"<tfoot>\n{last}\n</tfoot>" if last else ""
    return (
        f'<div class="table-box scrolls" role="region" aria-label="{name}" tabindex="0"><table{attribute}>'
        f"<caption><span>{name}</span></caption><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody>{end}</table></div>"
    )


def _head(column: Column, *, sortable: bool) -> str:
    kind = ' class="number"' if column.number else ""
    hint, title = _title(column.hint), escaped(column.title)
    if not sortable:
        return f'<th scope="col"{kind}{hint}>{title}</th>'
    return f'<th scope="col" aria-sort="none"{kind}{hint}><button type="button">{title}</button></th>'


def _row(columns: Sequence[Column], cells: Sequence[Cell | str], *, sortable: bool) -> str:
    parts = []
    for i, (column, entry) in enumerate(zip(columns, cells, strict=True)):
        cell = Cell(entry) if isinstance(entry, str) else entry
        tag = 'th scope="row"' if i == 0 else "td"
        classes = " ".join(filter(None, ("number" if column.number else "", cell.kind)))
        attributes = (f' class="{classes}"' if classes else "") + (_sort_key(column, cell) if sortable else "")
        attributes += _title(cell.hint)
        small = f"<small>{escaped(cell.small)}</small>" if cell.small else ""
        parts.append(f"<{tag}{attributes}>{escaped(cell.text) or MISSING}{small}</{tag.split()[0]}>")
    return "".join(parts)


def _title(hint: str) -> str:
    return f' title="{escaped(hint)}"' if hint else ""


def _sort_key(column: Column, cell: Cell) -> str:
    value = cell.value if cell.value is not None or column.number else cell.text
    missing = value is None or (isinstance(value, float) and not math.isfinite(value))
    return "" if missing else f' data-value="{escaped(value)}"'
