"""Text into HTML: whatever comes from a file or a command line is text and never markup."""

import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fcal.plots.captions import MISSING


def escaped(text: object) -> str:
    """Text that is safe between tags and in quoted attributes.

    Example:
        >>> escaped("<b>5 > 3</b>")
        '&lt;b&gt;5 &gt; 3&lt;/b&gt;'
    """
    # A lone surrogate, as in a file name that is not UTF-8, cannot be written.
    return html.escape(str(text).encode("utf-8", "replace").decode("utf-8"), quote=True)


def script_json(document: Any) -> str:
    r"""JSON that cannot end the script element it stands in; numbers that are not finite become null.

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
        text: What is read.
        value: What a column is sorted by: a number, a string, or None where missing; the text where not given.
        kind: Extra classes of the cell, ours and never from a file.
        small: What is read under it, in small letters.
        hint: What is read when hovering.
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
        title: What is read.
        number: Whether it holds numbers, which stand right and sort by size.
        hint: What it means, in a sentence, shown when hovering.
    """

    title: str
    number: bool = True
    hint: str = ""


def table(
    columns: Sequence[Column],
    rows: Iterable[Sequence[Cell]],
    *,
    caption: str,
    sortable: bool = False,
    foot: Iterable[Sequence[Cell]] = (),
    kind: str = "",
) -> str:
    """A table in a box of its own that scrolls where the page is narrower; the first column names the row.

    Args:
        columns: Heads.
        rows: Cells of each row.
        caption: What it shows, as text.
        sortable: Whether a click on a head sorts the rows.
        foot: Rows at the end that stay there.
        kind: Extra classes, ours and never from a file.
    """
    head = "".join(_head(column, sortable=sortable) for column in columns)
    body = "\n".join(f"<tr>{_row(columns, row, sortable=sortable)}</tr>" for row in rows)
    last = "\n".join(f"<tr>{_row(columns, row, sortable=False)}</tr>" for row in foot)
    kinds = " ".join(word for word in ("sortable" if sortable else "", kind) if word)
    attribute, name = f' class="{kinds}"' if kinds else "", escaped(caption)
    end = f"<tfoot>\n{last}\n</tfoot>" if last else ""
    return (
        f'<div class="table-box" role="region" aria-label="{name}" tabindex="0"><table{attribute}>'
        f"<caption><span>{name}</span></caption><thead><tr>{head}</tr></thead><tbody>\n{body}\n</tbody>{end}</table></div>"
    )


def _head(column: Column, *, sortable: bool) -> str:
    kind = ' class="number"' if column.number else ""
    hint, title = _title(column.hint), escaped(column.title)
    if not sortable:
        return f'<th scope="col"{kind}{hint}>{title}</th>'
    return f'<th scope="col" aria-sort="none"{kind}{hint}><button type="button">{title}</button></th>'


def _row(columns: Sequence[Column], cells: Sequence[Cell], *, sortable: bool) -> str:
    parts = []
    for place, (column, cell) in enumerate(zip(columns, cells, strict=True)):
        tag = 'th scope="row"' if place == 0 else "td"
        kinds = " ".join(kind for kind in ("number" if column.number else "", cell.kind) if kind)
        attributes = (f' class="{kinds}"' if kinds else "") + (_sort_key(column, cell) if sortable else "")
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
