"""The page of detection results in the docs, written from finished cells."""

from image_pages import ImagePage

from detection.goals import goals
from fcal.benchmarks.detection.task import DETECTION

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
page, pictures, more_files = _PAGE.page, _PAGE.pictures, _PAGE.more_files
