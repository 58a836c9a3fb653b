"""Monocular depth: BTS with an uncertainty decoder, on encoders of torchvision."""

from fcal.models.depth.bts import BTS, DepthHead, family_names
from fcal.models.depth.encoders import Encoder, encoder_names
from fcal.models.depth.planar_guidance import PlanarGuidance, local_planar_guidance

__all__ = [
    "BTS",
    "DepthHead",
    "Encoder",
    "PlanarGuidance",
    "encoder_names",
    "family_names",
    "local_planar_guidance",
]
