"""Detection: boxes of objects with error bars, on rendered streets, on real images, and on residuals of a detector."""

from fcal.benchmarks.detection.settings import Settings

__all__ = ["Settings"]
