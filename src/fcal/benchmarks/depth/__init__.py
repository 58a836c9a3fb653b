"""Depth: the distance of every pixel with its error bar, on rendered streets and on KITTI."""

from fcal.benchmarks.depth.settings import PRESETS, Settings

__all__ = ["PRESETS", "Settings"]
