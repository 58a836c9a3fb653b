"""What finished runs predict for new inputs."""

from fcal.export.depth_prediction import DepthMaps, DepthPredictor, as_16_bits, predicts_depth

__all__ = ["DepthMaps", "DepthPredictor", "as_16_bits", "predicts_depth"]
