"""The page of depth results in the docs, written from finished cells."""

from image_pages import ImagePage

from depth.goals import goals
from depth.tradeoff import tradeoff
from fcal.benchmarks.depth.task import DEPTH

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
page, pictures, more_files = _PAGE.page, _PAGE.pictures, _PAGE.more_files
