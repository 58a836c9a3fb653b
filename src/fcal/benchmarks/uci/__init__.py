"""Regression on eight UCI tables with the standard splits: every method beside every other, and published figures."""

from fcal.benchmarks.uci.methods import METHODS
from fcal.benchmarks.uci.page import write_page
from fcal.benchmarks.uci.running import Benchmark, benchmark, cells_of, committed_cells, digests_of, document, rows_of
from fcal.benchmarks.uci.settings import PRESETS, Settings, described, preset

__all__ = [
    "METHODS",
    "PRESETS",
    "Benchmark",
    "Settings",
    "benchmark",
    "cells_of",
    "committed_cells",
    "described",
    "digests_of",
    "document",
    "preset",
    "rows_of",
    "write_page",
]
