"""How large the benchmark is, and which tables it has."""

import dataclasses
from dataclasses import dataclass

from fcal._checks import check_integer, check_number
from fcal._registry import Registry

NORMAL = "normal"
FAMILIES = (NORMAL, "laplace", "logistic", "student-t", "gumbel")  # those that a network predicts


@dataclass(frozen=True, kw_only=True)
class Task:
    """One table.

    Attributes:
        sensor: Whose errors.
        state: Name of what the network is told.
        inputs: Names in :attr:`Readings.state`; one that ends in ``*`` is all that begin so.
        axis: What bins are of.
        edges: Of the bins that the source of the data gives sds for.
        source: These sds; None where it gives none.
        robust: Whether sds are 1.4826 times the median error, which a few wild errors do not move.
        within: How far from the source's sds learnt ones may be; None where nobody asks.
        stated_within: The same for the stated sd of all readings.
        corrects: Whether networks correct the known model; else they learn the size of its errors alone.
        families: What the noise may be of; the first is used, or, where there are several, what the training rows name.
    """

    sensor: str
    state: str
    inputs: tuple[str, ...]
    axis: str
    edges: tuple[float, ...]
    source: tuple[float | None, ...]
    robust: bool = False
    within: float | None = None
    stated_within: float | None = None
    corrects: bool = True
    families: tuple[str, ...] = (NORMAL,)


_METRES = (0.0, 2.0, 4.0, 6.0)
# Numbers of the source are those of SOURCE.txt beside the data.
_RANGE, _BEARING = (0.023, 0.029, 0.039), (0.038, 0.013, 0.0075)
_MOTION = ("distance", "speed")
_WHOLE = ("distance", "bearing_cos", "bearing_sin", "velocity", "turn", "sweep", "landmark_*")

TASKS: Registry[Task] = Registry("sensors")
TASKS.add(
    "laser",
    Task(
        sensor="laser",
        state="motion",
        inputs=_MOTION,
        axis="distance",
        edges=_METRES,
        source=(None, None, None),
        stated_within=0.05,
        corrects=False,
    ),
)
TASKS.add(
    "range",
    Task(
        sensor="range",
        state="motion",
        inputs=(*_MOTION, "turning"),
        axis="distance",
        edges=_METRES,
        source=_RANGE,
        within=0.10,
    ),
)
TASKS.add(
    "bearing",
    Task(
        sensor="bearing",
        state="motion",
        inputs=(*_MOTION, "turning"),
        axis="distance",
        edges=_METRES,
        source=_BEARING,
        within=0.10,
    ),
)
TASKS.add(
    "gnss",
    Task(
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
TASKS.add(
    "laser_whole",
    dataclasses.replace(TASKS["laser"], state="whole", inputs=("distance", "velocity"), corrects=True),
)
TASKS.add("range_whole", dataclasses.replace(TASKS["range"], state="whole", inputs=_WHOLE))
TASKS.add("bearing_whole", dataclasses.replace(TASKS["bearing"], state="whole", inputs=_WHOLE))

TABLES = tuple(TASKS.names())


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Folds, network and budget.

    Args:
        tables: Names of tables.
        rows: Readings of a sensor, at most; of more, whole moments are left out.
        folds: Parts of the stretches of time; each is tested on by networks that have not seen it.
        inner_folds: Folds of cross-fitting, of the stretches to train on.
        hidden: Units of each of the two hidden layers.
        steps: Steps of training.
        rate: Learning rate at its highest.
        batch: Readings in a step.
        tune_steps: Steps in which error bars are fitted to held-out errors.
        tune_rate: Learning rate of these.
        tune_batch: Readings in one of these.
        lam: Weight of f-Cal in ``oof_fcal``.
        df: Number K of squared residuals in a sum q.
        bins: Number S of bins of ECE.
        seed: Of folds, weights and batches.
    """

    tables: tuple[str, ...] = TABLES
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
    lam: float = 0.5
    df: int = 75
    bins: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        for name in self.tables:
            TASKS[name]
        check_integer("rows", self.rows, at_least=500)
        for name in ("folds", "inner_folds"):
            check_integer(name, getattr(self, name), at_least=2, at_most=10)
        for name in ("hidden", "steps", "batch", "tune_steps", "tune_batch", "df"):
            check_integer(name, getattr(self, name), at_least=1, at_most=1_000_000)
        for name in ("rate", "tune_rate"):
            check_number(name, getattr(self, name), low=1e-9, high=1.0)
        check_number("lam", self.lam, low=0.0, high=1.0)
        check_integer("bins", self.bins, at_least=2, at_most=10_000)
        check_integer("seed", self.seed, at_least=0)


PRESETS: Registry[Settings] = Registry("preset")
PRESETS.add(
    "tiny",
    Settings(
        tables=TABLES[:4],
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
)
PRESETS.add("full", Settings())


def preset(name: str, **changes: object) -> Settings:
    """A preset with some of its values replaced; those that are None stay.

    Example:
        >>> preset("full", folds=3).folds
        3
    """
    given = {key: value for key, value in changes.items() if value is not None}
    return dataclasses.replace(PRESETS[name], **given)  # type: ignore[arg-type]


def described(settings: Settings) -> dict[str, object]:
    """Settings as plain values, to stand beside a result."""
    return dataclasses.asdict(settings)
