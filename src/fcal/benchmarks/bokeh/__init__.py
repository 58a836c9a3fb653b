"""The paper's first experiment: find the red disc, and say how sure that is."""

from fcal.benchmarks.bokeh.methods import METHODS, PostHoc, Trained
from fcal.benchmarks.bokeh.page import write_page
from fcal.benchmarks.bokeh.running import Benchmark, benchmark, cells_of, committed_cells, rows_of
from fcal.benchmarks.bokeh.settings import PRESETS, Settings, described, preset

__all__ = [
    "METHODS",
    "PRESETS",
    "Benchmark",
    "PostHoc",
    "Settings",
    "Trained",
    "benchmark",
    "cells_of",
    "committed_cells",
    "described",
    "preset",
    "rows_of",
    "write_page",
]
