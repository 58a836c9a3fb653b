"""How large the benchmark is: which tables, how many splits, and how long networks train on each."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass

from fcal._checks import check_integer, check_number
from fcal._registry import Registry
from fcal.benchmarks.uci.training import Schedule
from fcal.data.uci import NAMES

NETWORKS: dict[str, tuple[int, ...]] = {"1x50": (50,), "2x64": (64, 64)}
DATASETS = tuple(NAMES)
_TUNED_STEPS = 200  # about how many steps a second training has, whatever the size of the table
_FEWEST_EPOCHS = 5
_MOST_EPOCHS = 100

# Epochs of the two networks, batch and rate by table, within a budget of minutes: the folds choose how many of them are
# best, and on the largest tables they take nearly all, so that longer training would still gain a little there.
_FULL: dict[str, tuple[dict[str, int], int, float]] = {
    "concrete": ({"1x50": 400, "2x64": 160}, 32, 1e-2),
    "energy": ({"1x50": 400, "2x64": 300}, 32, 1e-2),
    "kin8nm": ({"1x50": 120, "2x64": 30}, 64, 1e-2),
    "naval": ({"1x50": 100, "2x64": 40}, 64, 1e-2),
    "power": ({"1x50": 80, "2x64": 20}, 64, 1e-2),
    "protein": ({"1x50": 50, "2x64": 12}, 128, 5e-3),
    "wine": ({"1x50": 30, "2x64": 30}, 32, 3e-3),
    "yacht": ({"1x50": 600, "2x64": 600}, 32, 1e-2),
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Tables, splits and budget of a UCI benchmark.

    Args:
        datasets: Names of tables.
        networks: Names of networks, which are also the hidden layers' sizes; a table of results for each.
        splits: How many splits for each network; tables that have fewer give what they have.
        folds: Number k of folds. Rows of the first are what methods with a held-out set hold out.
        members: Networks of an ensemble.
        shorten: Epochs of the full benchmark are divided by this.
        tune_batch: Rows in a batch of a second training; calibration is a property of a batch, so it is larger.
        tune_rate: Learning rate of a second training.
        candidates: Hyper-parameters tried for each method that trains by a loss of its own.
        lam: Weight of f-Cal in the out-of-fold row.
        seed: Of folds, initial weights and orders.
    """

    datasets: tuple[str, ...] = DATASETS
    networks: tuple[str, ...] = tuple(NETWORKS)
    splits: Mapping[str, int] = dataclasses.field(default_factory=lambda: {"1x50": 20, "2x64": 5})
    folds: int = 5
    members: int = 5
    shorten: float = 1.0
    tune_batch: int = 256
    tune_rate: float = 1e-3
    candidates: int = 2
    lam: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for what, names, known in (("datasets", self.datasets, DATASETS), ("networks", self.networks, tuple(NETWORKS))):
            for name in names:
                if name not in known:
                    raise ValueError(f"expected `{what}` of {', '.join(known)}, got {name!r}")
        for network in self.networks:
            check_integer("splits", self.splits[network], at_least=1, at_most=1000)
        check_integer("folds", self.folds, at_least=2, at_most=20)
        check_integer("members", self.members, at_least=1, at_most=100)
        check_integer("candidates", self.candidates, at_least=1, at_most=3)
        check_integer("tune_batch", self.tune_batch, at_least=2)
        check_number("tune_rate", self.tune_rate, low=1e-9, high=1.0)
        check_number("shorten", self.shorten, low=1.0, high=1e4)
        check_number("lam", self.lam, low=0.0, high=1.0)

    def schedule(self, dataset: str, network: str) -> Schedule:
        """How a network is trained on a table.

        Example:
            >>> Settings(shorten=10).schedule("kin8nm", "1x50").epochs
            12
        """
        epochs, batch, rate = _FULL[dataset]
        return Schedule(epochs=max(round(epochs[network] / self.shorten), 2), batch=batch, rate=rate)

    def tuning(self, rows: int) -> Schedule:
        """How they train on, by another loss or on other residuals.

        Example:
            >>> Settings().tuning(2560).epochs, Settings().tuning(100_000).epochs
            (20, 5)
        """
        steps = max(rows // self.tune_batch, 1)
        epochs = min(max(round(_TUNED_STEPS / steps), _FEWEST_EPOCHS), _MOST_EPOCHS)
        epochs = max(round(epochs / self.shorten), 2)
        return Schedule(epochs=epochs, batch=self.tune_batch, rate=self.tune_rate, checkpoints=8)


PRESETS: Registry[Settings] = Registry("preset")
PRESETS.add("tiny", Settings(datasets=("energy", "yacht"), splits={"1x50": 2, "2x64": 2}, shorten=40, candidates=1))
PRESETS.add("quick", Settings(splits={"1x50": 2, "2x64": 1}, shorten=5, candidates=1))
PRESETS.add("full", Settings())


def preset(name: str, **changes: object) -> Settings:
    """A preset with some of its values replaced; those that are None stay.

    Example:
        >>> preset("tiny", datasets=("wine",)).datasets
        ('wine',)
    """
    given = {key: value for key, value in changes.items() if value is not None}
    return dataclasses.replace(PRESETS[name], **given)  # type: ignore[arg-type]


def described(settings: Settings) -> dict[str, object]:
    """Settings as plain values, to stand beside a result."""
    return {**dataclasses.asdict(settings), "splits": dict(settings.splits)}
