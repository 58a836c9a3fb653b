"""Settings of the detection benchmark, and its presets."""

from dataclasses import dataclass

from fcal._checks import check_integer
from fcal._registry import Registry
from fcal.benchmarks.training_cells import Budget

RESIDUALS = "residuals"
SETS: Registry[str] = Registry("set")  # what tables call them
SETS.add(RESIDUALS, "boxes of a real detector on KITTI")


@dataclass(frozen=True, kw_only=True)
class Settings(Budget):
    """Data and network of a detection benchmark, and its budget, as :class:`fcal.benchmarks.Budget` has it.

    Args:
        set: ``"residuals"``, matched boxes of a detector, without images.
        seeds: Number of seeds; each has initial weights and a split of the frames of its own.
        hidden: Units of the layers of the network of residuals.
    """

    set: str = RESIDUALS
    seeds: int = 1
    hidden: int = 64

    def __post_init__(self) -> None:
        super().__post_init__()
        SETS[self.set]
        check_integer("seeds", self.seeds, at_least=1, at_most=1_000_000)
        check_integer("hidden", self.hidden, at_least=1, at_most=4096)


PRESETS = {
    RESIDUALS: Settings(seeds=5, base_epochs=30, base_rate=3e-3, base_batch=256, tune_epochs=10, tune_rate=1e-3),
}
