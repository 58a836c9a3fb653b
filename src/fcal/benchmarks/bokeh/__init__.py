"""The Bokeh benchmark, the paper's first experiment: data, networks, columns and settings."""

from fcal.benchmarks.bokeh.settings import PRESETS, Settings
from fcal.benchmarks.bokeh.task import BOKEH

__all__ = ["BOKEH", "PRESETS", "Settings"]
