"""One self-contained HTML page that opens from disk, and the sections it is made of."""

from fcal.reports.benchmark import benchmark_page, benchmark_sections
from fcal.reports.calibration import calibration_page
from fcal.reports.page import Section, page, write_page
from fcal.reports.sections import (
    comparison_section,
    groups_section,
    numbers_section,
    plots_section,
    verdict_section,
)

__all__ = [
    "Section",
    "benchmark_page",
    "benchmark_sections",
    "calibration_page",
    "comparison_section",
    "groups_section",
    "numbers_section",
    "page",
    "plots_section",
    "verdict_section",
    "write_page",
]
