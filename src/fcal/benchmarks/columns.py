"""Columns of printed tables: the names that pictures and pages use, and factors that make their numbers readable."""

from fcal.plots.columns import column_title

_FACTORS = {"l1_gt": 1000, "l1": 1000, "ece_z": 100, "mce_z": 100, "ece_q": 100, "mce_q": 100, "crps": 1000}


def scaled_title(column: str) -> str:
    """What a column is called where its numbers are scaled.

    Example:
        >>> scaled_title("ece_q"), scaled_title("nll")
        ('ECE(q) x100', 'NLL')
    """
    factor = _FACTORS.get(column)
    return column_title(column) + (f" x{factor}" if factor else "")


def scaled_number(column: str, value: float, digits: int = 3) -> str:
    """A value of a column, scaled, with few digits.

    Example:
        >>> scaled_number("ece_q", 0.12345), scaled_number("nll", -1.8282)
        ('12.3', '-1.83')
    """
    return f"{value * _FACTORS.get(column, 1):.{digits}g}"
