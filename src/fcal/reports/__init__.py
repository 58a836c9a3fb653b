"""Self-contained HTML pages that open from disk, and the sections they are made of."""

from fcal.reports.benchmark import benchmark_page, benchmark_sections
from fcal.reports.calibration import (
    calibration_page,
    comparison_section,
    glossary_section,
    groups_section,
    numbers_section,
    plots_section,
    rows_section,
    verdict_section,
)
from fcal.reports.page import Section, page, write_page

__all__ = [
    "Section",
    "benchmark_page",
    "benchmark_sections",
    "calibration_page",
    "comparison_section",
    "glossary_section",
    "groups_section",
    "numbers_section",
    "page",
    "plots_section",
    "rows_section",
    "verdict_section",
    "write_page",
]
