"""The UCI benchmark, regression on eight tables with the standard splits: data, networks, columns and settings."""

from fcal.benchmarks.uci.settings import PRESETS, Settings
from fcal.benchmarks.uci.task import UCI

__all__ = ["PRESETS", "UCI", "Settings"]
