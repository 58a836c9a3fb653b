"""Columns of printed tables: the names that pictures and pages use, and factors that make their numbers readable."""

from fcal.benchmarks.titles import COLUMN_STYLES
from fcal.plots.styles import column_style


def scaled_title(column: str) -> str:
    """What a column is called where its numbers are scaled.

    Example:
        >>> scaled_title("ece_q"), scaled_title("nll")
        ('ECE(q) x100', 'NLL')
    """
    style = column_style(COLUMN_STYLES, column)
    return style.title + (f" x{style.factor}" if style.factor != 1 else "")


def scaled_number(column: str, value: float, digits: int = 3) -> str:
    """A value of a column, scaled, with few digits.

    Example:
        >>> scaled_number("ece_q", 0.12345), scaled_number("nll", -1.8282)
        ('12.3', '-1.83')
    """
    return f"{value * column_style(COLUMN_STYLES, column).factor:.{digits}g}"
