"""The page of one evaluation."""

from fcal._files import provenance
from fcal.metrics.report import Report
from fcal.reports.page import Section, page
from fcal.reports.sections import groups_section, numbers_section, plots_section, verdict_section


def calibration_page(report: Report, *, source: str, command: str) -> str:
    """The whole page of ``fcal evaluate --out``: verdict, pictures, groups, numbers, and how it was made.

    Args:
        report: What ``fcal.evaluate`` returned.
        source: Where the predictions came from, such as a file name.
        command: What was run, exactly.

    Returns:
        One self-contained HTML document; it makes no request and opens from disk.

    Raises:
        TypeError: ``report`` is something else.
        ImportError: plotly is not installed.
    """
    if not isinstance(report, Report):
        raise TypeError(f"expected `report` a Report of fcal.evaluate, got {type(report).__name__}")
    return page(f"Calibration of {source}", calibration_sections(report), command=command, versions=provenance())


def calibration_sections(report: Report) -> list[Section]:
    """The sections of that page, for pages that hold more."""
    groups = [groups_section(report)] if report.groups else []
    return [verdict_section(report), plots_section(report), *groups, numbers_section(report)]
