"""Where tables are printed: a terminal, or a pipe, which has no width."""

from rich.console import Console
from rich.table import Table

_USUAL_WIDTH = 80
_WIDEST = 400


def report_console() -> Console:
    """Console on stdout; a terminal that reports no width gets the usual one."""
    console = Console(soft_wrap=True)
    return console if console.width > 0 else Console(soft_wrap=True, width=_USUAL_WIDTH)


def print_in_full(table: Table) -> None:
    """Print a table at full width: a narrow terminal may wrap its lines, but no digits are dropped."""
    console = Console(soft_wrap=True)
    needed = console.measure(table, options=console.options.update(width=_WIDEST)).maximum
    Console(width=max(needed, 1)).print(table)
