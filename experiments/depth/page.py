"""The page of depth results in the docs, written from finished cells."""

from image_pages import ImagePage
from matplotlib.figure import Figure

from depth.goals import goals
from depth.tradeoff import tradeoff
from fcal.benchmarks import Benchmark
from fcal.benchmarks.depth import Settings
from fcal.benchmarks.depth.task import DEPTH
from fcal.sweeps import Store

PRESETS = ("street", "kitti-mini")
_PAGE = ImagePage(
    task=DEPTH,
    title="Depth: results",
    rule=(
        "The band of a calibration error is that of calibrated models whose pixels depend on each other as those of "
        "the oracle, or of the first row, do, by resampling whole frames; other rows depend more, and have wider bands "
        "of their own (`bands` in the JSON file). ECE(q) in frames sums pixels of one frame: it shows dependence.\n"
    ),
    label="world",
    goals=goals,
    drawn={
        "tradeoff": (
            "Accuracy against calibration; lines join the weights of a calibration loss (small numbers), dots are "
            "rows:",
            tradeoff,
        )
    },
)


def page(benchmark: Benchmark[Settings], facts: str) -> str:
    """Every world with its table, and the goals."""
    return _PAGE.text(benchmark, facts)


def pictures(benchmark: Benchmark[Settings]) -> dict[str, Figure]:
    """Trade-off of every world, and calibration of its first seed."""
    return _PAGE.pictures(benchmark)


def more_files(benchmark: Benchmark[Settings], store: Store) -> dict[str, str]:
    """The part of the page of claims."""
    del store
    return _PAGE.claims(benchmark)
