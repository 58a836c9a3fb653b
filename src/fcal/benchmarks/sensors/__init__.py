"""Real sensors whose noise is known: is it learnt, as a function of the state?"""

from fcal.benchmarks.sensors.readers import read_gnss, read_landmarks, read_laser
from fcal.benchmarks.sensors.readings import Readings
from fcal.benchmarks.sensors.running import Benchmark, benchmark, cells_of, checksums, committed_cells
from fcal.benchmarks.sensors.settings import PRESETS, TASKS, Settings, Task, described, preset

__all__ = [
    "PRESETS",
    "TASKS",
    "Benchmark",
    "Readings",
    "Settings",
    "Task",
    "benchmark",
    "cells_of",
    "checksums",
    "committed_cells",
    "described",
    "preset",
    "read_gnss",
    "read_landmarks",
    "read_laser",
]
