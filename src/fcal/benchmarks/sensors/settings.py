"""Tables of the sensor benchmark, and its settings."""

import dataclasses
from dataclasses import dataclass

from fcal._checks import check_integer, check_number
from fcal._registry import Registry

NORMAL = "normal"
FAMILIES = (NORMAL, "laplace", "logistic", "student-t", "gumbel")  # of the distributions that networks predict
TITLES = {"laser": "Laser", "range": "Range", "bearing": "Bearing", "gnss": "GNSS"}  # of sensors
STATES = {
    "motion": "distance and speed",
    "signal": "C/N0, elevation and system",
    "whole": "everything that is known, with signs",
}


@dataclass(frozen=True, kw_only=True)
class SensorTable:
    """The errors of one sensor, given part of the state.

    Attributes:
        sensor: Name of the sensor.
        state: Name of the inputs, in :data:`STATES`.
        inputs: Inputs of the network, names in :attr:`Readings.state`; one that ends in ``*`` stands for all with
            this prefix.
        axis: Input that is divided into bins.
        edges: Edges of the bins that the source of the data gives standard deviations for.
        source: These standard deviations; None for a bin without one.
        robust: Whether standard deviations are 1.4826 times the median absolute error, which is robust to outliers.
        corrects: Whether networks correct the known model; otherwise they learn only the scale of its errors.
        families: Candidates for the family of the noise. One of several is chosen on the training rows.
    """

    sensor: str
    state: str = ""
    inputs: tuple[str, ...] = ()
    axis: str
    edges: tuple[float, ...]
    source: tuple[float | None, ...] = ()
    robust: bool = False
    corrects: bool = True
    families: tuple[str, ...] = (NORMAL,)


_METRES = (0.0, 2.0, 4.0, 6.0)
# Standard deviations that SOURCE.txt beside the data states.
_RANGE, _BEARING = (0.023, 0.029, 0.039), (0.038, 0.013, 0.0075)
_MOTION = ("distance", "speed")
_WHOLE = ("distance", "bearing_cos", "bearing_sin", "velocity", "turn", "sweep", "landmark_*")

TABLES: Registry[SensorTable] = Registry("sensors")
TABLES.add(
    "laser",
    SensorTable(
        sensor="laser",
        state="motion",
        inputs=_MOTION,
        axis="distance",
        edges=_METRES,
        source=(None, None, None),
        corrects=False,
    ),
)
TABLES.add(
    "range",
    SensorTable(
        sensor="range", state="motion", inputs=(*_MOTION, "turning"), axis="distance", edges=_METRES, source=_RANGE
    ),
)
TABLES.add("bearing", dataclasses.replace(TABLES["range"], sensor="bearing", source=_BEARING))
TABLES.add(
    "gnss",
    SensorTable(
        sensor="gnss",
        state="signal",
        inputs=("strength", "elevation", "glonass"),
        axis="strength",
        edges=(0.0, 25.0, 35.0, 46.0, 100.0),  # whole dBHz: 46 is the first above 45
        source=(117.0, None, None, 9.6),
        robust=True,
        families=FAMILIES,
    ),
)
TABLES.add(
    "laser_whole",
    dataclasses.replace(TABLES["laser"], state="whole", inputs=("distance", "velocity"), corrects=True),
)
TABLES.add("range_whole", dataclasses.replace(TABLES["range"], state="whole", inputs=_WHOLE))
TABLES.add("bearing_whole", dataclasses.replace(TABLES["bearing"], state="whole", inputs=_WHOLE))


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Folds, network and budget.

    Args:
        tables: Names in :data:`TABLES`.
        rows: Maximum number of readings of a sensor; beyond it, whole moments are left out.
        folds: Folds of the stretches of time; networks that have not seen a fold are tested on it.
        inner_folds: Folds of the training stretches, for cross-fitting.
        hidden: Units of each of the two hidden layers.
        steps: Training steps.
        rate: Highest learning rate.
        batch: Readings in a batch.
        tune_steps: Training steps of error bars, on held-out errors.
        tune_rate: Highest learning rate of that training.
        tune_batch: Readings in a batch of that training.
        df: Number K of squared residuals in a sum q.
        bins: Number S of bins of ECE.
        seed: Seed of folds, weights and batches.
    """

    tables: tuple[str, ...] = tuple(TABLES.names())
    rows: int = 1_000_000
    folds: int = 5
    inner_folds: int = 4
    hidden: int = 32
    steps: int = 600
    rate: float = 1e-2
    batch: int = 1024
    tune_steps: int = 200
    tune_rate: float = 3e-3
    tune_batch: int = 2048
    df: int = 75
    bins: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.tables:
            TABLES[name]
        check_integer("rows", self.rows, at_least=500)
        for name in ("folds", "inner_folds"):
            check_integer(name, getattr(self, name), at_least=2, at_most=10)
        for name in ("hidden", "steps", "batch", "tune_steps", "tune_batch", "df"):
            check_integer(name, getattr(self, name), at_least=1, at_most=1_000_000)
        for name in ("rate", "tune_rate"):
            check_number(name, getattr(self, name), low=1e-9, high=1.0)
        check_integer("bins", self.bins, at_least=2, at_most=10_000)
        check_integer("seed", self.seed, at_least=0)


PRESETS = {
    "tiny": Settings(
        tables=("laser", "range", "bearing", "gnss"),
        rows=1200,
        folds=2,
        inner_folds=2,
        hidden=16,
        steps=80,
        rate=2e-2,
        batch=256,
        tune_steps=20,
        tune_batch=512,
    ),
    "full": Settings(),
}
