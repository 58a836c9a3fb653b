"""Benchmarks: comparisons of all methods, on data whose truth is known."""

import importlib
from typing import TYPE_CHECKING, Any

from fcal.benchmarks.catalogue import TASKS, Entry, Option, register

if TYPE_CHECKING:
    from fcal.benchmarks.method_kinds import (
        CrossFitted,
        CVPlus,
        Ensemble,
        Heads,
        HeldOutEnsemble,
        Method,
        OutOfBag,
        PointEnsemble,
        Repaired,
        Trained,
    )
    from fcal.benchmarks.methods import METHODS
    from fcal.benchmarks.network_problem import NetworkProblem
    from fcal.benchmarks.page import write_page
    from fcal.benchmarks.problem import Failed, Folds, HeldOut, Members, Networks, Prediction, Problem
    from fcal.benchmarks.runner import Benchmark, benchmark, collect
    from fcal.benchmarks.scoring import score
    from fcal.benchmarks.table import Column, Row, Spread, Table
    from fcal.benchmarks.task import Task, preset
    from fcal.benchmarks.training_cells import Budget, TrainingCells
    from fcal.benchmarks.trainings import Datasets, NetworkTrainings

# Where each name is: the catalogue alone is light, and the command line needs no more to say what can be typed.
_ROOMS = {
    "methods": ("METHODS",),
    "method_kinds": (
        "CVPlus",
        "CrossFitted",
        "Ensemble",
        "Heads",
        "HeldOutEnsemble",
        "Method",
        "OutOfBag",
        "PointEnsemble",
        "Repaired",
        "Trained",
    ),
    "network_problem": ("NetworkProblem",),
    "page": ("write_page",),
    "problem": ("Failed", "Folds", "HeldOut", "Members", "Networks", "Prediction", "Problem"),
    "runner": ("Benchmark", "benchmark", "collect"),
    "scoring": ("score",),
    "table": ("Column", "Row", "Spread", "Table"),
    "task": ("Task", "preset"),
    "training_cells": ("Budget", "TrainingCells"),
    "trainings": ("Datasets", "NetworkTrainings"),
}
_MODULES = {name: room for room, names in _ROOMS.items() for name in names}

__all__ = [
    "METHODS",
    "TASKS",
    "Benchmark",
    "Budget",
    "CVPlus",
    "Column",
    "CrossFitted",
    "Datasets",
    "Ensemble",
    "Entry",
    "Failed",
    "Folds",
    "Heads",
    "HeldOut",
    "HeldOutEnsemble",
    "Members",
    "Method",
    "NetworkProblem",
    "NetworkTrainings",
    "Networks",
    "Option",
    "OutOfBag",
    "PointEnsemble",
    "Prediction",
    "Problem",
    "Repaired",
    "Row",
    "Spread",
    "Table",
    "Task",
    "Trained",
    "TrainingCells",
    "benchmark",
    "collect",
    "preset",
    "register",
    "score",
    "write_page",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'fcal.benchmarks' has no attribute {name!r}")
    return getattr(importlib.import_module(f"fcal.benchmarks.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
