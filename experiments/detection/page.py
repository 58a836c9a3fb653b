"""The page of detection results in the docs, written from finished cells."""

from image_pages import ImagePage
from matplotlib.figure import Figure

from detection.goals import goals
from fcal.benchmarks import Benchmark
from fcal.benchmarks.detection import Settings
from fcal.benchmarks.detection.task import DETECTION
from fcal.sweeps import Store

PRESETS = ("street", "kitti-mini", "bccd", "residuals")
_PAGE = ImagePage(
    task=DETECTION,
    title="Detection: results",
    rule=(
        "The band of a calibration error is that of calibrated models whose boxes depend on each other as those of the "
        "oracle, or of the first row, do, by resampling whole images.\n"
    ),
    label="set",
    goals=goals,
)


def page(benchmark: Benchmark[Settings], facts: str) -> str:
    """Every set with its table, and the goals."""
    return _PAGE.text(benchmark, facts)


def pictures(benchmark: Benchmark[Settings]) -> dict[str, Figure]:
    """Calibration of the first seed of every set."""
    return _PAGE.pictures(benchmark)


def more_files(benchmark: Benchmark[Settings], store: Store) -> dict[str, str]:
    """The part of the page of claims."""
    del store
    return _PAGE.claims(benchmark)
