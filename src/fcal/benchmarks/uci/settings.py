"""Settings of the UCI benchmark: which tables, how many splits, and how long networks train on each."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from fcal._checks import check_integer, check_number
from fcal.data.uci import NAMES

NETWORKS: dict[str, tuple[int, ...]] = {"1x50": (50,), "2x64": (64, 64)}
DATASETS = tuple(NAMES)
_TUNED_STEPS = 200  # approximate number of steps of a second training, for tables of any size
_FEWEST_EPOCHS = 5
_MOST_EPOCHS = 100

# Epochs of the two networks, batch and rate by table, within a budget of minutes: folds choose the best epoch,
# which is close to the last on the largest tables, so that longer training would still gain a little there.
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
class Schedule:
    """How stacked networks are trained.

    Args:
        epochs: Passes through the rows.
        batch: Rows of each network in a step.
        rate: Learning rate, constant: averaged weights need no decay of it.
        weight_decay: As in AdamW.
        checkpoints: Number of epochs at which averaged weights are kept, in geometric steps up to the last epoch.
    """

    epochs: int
    batch: int
    rate: float
    weight_decay: float = 0.0
    checkpoints: int = 16

    def kept(self) -> list[int]:
        """Epochs whose weights are kept.

        Example:
            >>> Schedule(epochs=64, batch=1, rate=0.1, checkpoints=4).kept()
            [2, 6, 20, 64]
        """
        first = max(self.epochs / 32, 1.0)
        steps = max(self.checkpoints - 1, 1)
        return sorted(
            {round(first * (self.epochs / first) ** (i / steps)) for i in range(self.checkpoints)} | {self.epochs}
        )


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Tables, splits and budget of a UCI benchmark.

    Args:
        datasets: Names of tables.
        networks: Names of networks, which are also the sizes of their hidden layers; a table of results for each.
        splits: Number of splits for each network; a table with fewer uses all of them.
        folds: Number k of folds. Methods with a held-out set hold out the rows of the first.
        members: Networks of an ensemble.
        shorten: Epochs of the full benchmark are divided by this.
        tune_batch: Rows in a batch of a second training; calibration is a property of a batch, so it is larger.
        tune_rate: Learning rate of a second training.
        candidates: Number of hyper-parameters tried for each method with a loss of its own.
        lam: Weight of f-Cal in the out-of-fold row.
        seed: Seed of folds, initial weights and orders of rows.
    """

    datasets: tuple[str, ...] = DATASETS
    networks: tuple[str, ...] = tuple(NETWORKS)
    splits: Mapping[str, int] = field(default_factory=lambda: {"1x50": 20, "2x64": 5})
    folds: int = 5
    members: int = 5
    shorten: float = 1.0
    tune_batch: int = 256
    tune_rate: float = 1e-3
    candidates: int = 2
    lam: float = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        for setting, known in (("datasets", DATASETS), ("networks", tuple(NETWORKS))):
            for name in getattr(self, setting):
                if name not in known:
                    raise ValueError(f"expected `{setting}` of {', '.join(known)}, got {name!r}")
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

    def tuning(self, rows: int, batch: int = 0) -> Schedule:
        """Schedule of a second training, with another loss or on other residuals.

        Args:
            rows: Number of rows to train on.
            batch: Rows in a batch; ``tune_batch`` if 0.

        Example:
            >>> Settings().tuning(2560).epochs, Settings().tuning(100_000).epochs
            (20, 5)
        """
        batch = batch or self.tune_batch
        epochs = min(max(round(_TUNED_STEPS / max(rows // batch, 1)), _FEWEST_EPOCHS), _MOST_EPOCHS)
        return Schedule(epochs=max(round(epochs / self.shorten), 2), batch=batch, rate=self.tune_rate, checkpoints=8)


PRESETS = {
    "tiny": Settings(datasets=("energy", "yacht"), splits={"1x50": 2, "2x64": 2}, shorten=40, candidates=1),
    "quick": Settings(splits={"1x50": 2, "2x64": 1}, shorten=5, candidates=1),
    "full": Settings(),
}
