"""Settings of the Bokeh benchmark, and its presets."""

from dataclasses import dataclass

from fcal._checks import check_integer, check_number
from fcal.data import BokehConfig

PAPER_NOISES = ("homoscedastic", "heteroscedastic")
_EPOCHS = ("base_epochs", "tune_epochs", "early_epochs", "fold_epochs", "scale_epochs")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Data, network and budget of a Bokeh benchmark.

    Every method trains the same network for ``base_epochs`` by its plain loss (the likelihood; smooth L1 for the
    deterministic one) and then for ``tune_epochs`` by its own, once for each candidate, as many for every method.

    Args:
        noises: Kinds of label noise; a table for each.
        regimes: Regimes of the data; a table for each.
        seeds: Number of seeds; each has images, noise and initial weights of its own.
        images: Images of train, validation and test together.
        extra: Further test images.
        size: Pixels of an edge.
        shape: Shape of Gamma noise, degrees of freedom of Student-t noise.
        width: Channels of the network's first layer.
        hidden: Units of its hidden layer.
        base_epochs: Epochs by the plain loss.
        base_rate: Learning rate of that training.
        base_batch: Images in a batch of that training.
        tune_epochs: Epochs by the method's own loss.
        tune_rate: Learning rate of that training.
        tune_batch: Images in its batches; they are larger because calibration is a property of a batch.
        candidates: Number of hyper-parameters tried for each method.
        folds: Folds of the rows that cross-fit.
        early_epochs: Epochs that their networks share.
        fold_epochs: Epochs of each network after these.
        scale_epochs: Epochs of networks of error bars, at ``tune_rate``.
        df: Number K of squared residuals in a sum q, in the losses and in the table.
        bins: Number S of bins of the table's ECE and MCE.
    """

    noises: tuple[str, ...] = PAPER_NOISES
    regimes: tuple[str, ...] = ("paper-like",)
    seeds: int = 1
    images: int = 10_000
    extra: int = 20_000
    size: int = 64
    shape: float = 5.0
    width: int = 16
    hidden: int = 128
    base_epochs: int = 12
    base_rate: float = 1e-3
    base_batch: int = 64
    tune_epochs: int = 5
    tune_rate: float = 3e-4
    tune_batch: int = 256
    candidates: int = 3
    folds: int = 3
    early_epochs: int = 3
    fold_epochs: int = 7
    scale_epochs: int = 3
    df: int = 75
    bins: int = 20

    def __post_init__(self) -> None:
        for name in ("seeds", "base_batch", "tune_batch", *_EPOCHS):
            check_integer(name, getattr(self, name), at_least=1, at_most=1_000_000)
        check_integer("folds", self.folds, at_least=2, at_most=1000)
        check_integer("candidates", self.candidates, at_least=1, at_most=3)
        check_integer("df", self.df, at_least=1, at_most=10_000)
        check_integer("bins", self.bins, at_least=2, at_most=10_000)
        for name in ("base_rate", "tune_rate"):
            check_number(name, getattr(self, name), low=1e-9, high=1.0)
        for noise in self.noises:
            for regime in self.regimes:
                self.data(noise, regime, 0)

    @property
    def network(self) -> dict[str, int]:
        """Shape of the network."""
        return {"size": self.size, "width": self.width, "hidden": self.hidden}

    def data(self, noise: str, regime: str, seed: int) -> BokehConfig:
        """Images and labels of one table and seed."""
        return BokehConfig(
            noise=noise,
            regime=regime,
            seed=seed,
            images=self.images,
            extra=self.extra,
            size=self.size,
            shape=self.shape,
        )


PRESETS = {
    "tiny": Settings(
        images=200, extra=400, size=16, width=8, hidden=32, base_epochs=8, tune_epochs=2, candidates=1, base_batch=32
    ),
    "quick": Settings(images=2000, extra=5000, base_epochs=15, tune_batch=128, candidates=2),
    "paper": Settings(regimes=("paper-like", "noise-dominated"), seeds=5),
}
