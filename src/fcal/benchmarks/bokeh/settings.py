"""Settings of the Bokeh benchmark, and its presets."""

from dataclasses import dataclass

from fcal._checks import check_integer
from fcal.benchmarks.training_cells import Budget
from fcal.data import BokehConfig

PAPER_NOISES = ("homoscedastic", "heteroscedastic")


@dataclass(frozen=True, kw_only=True)
class Settings(Budget):
    """Data and network of a Bokeh benchmark, and its budget, as :class:`fcal.benchmarks.Budget` has it.

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

    def __post_init__(self) -> None:
        super().__post_init__()
        check_integer("seeds", self.seeds, at_least=1, at_most=1_000_000)
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
