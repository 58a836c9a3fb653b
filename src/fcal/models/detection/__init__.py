"""Object detection: Faster R-CNN with the uncertainty of its boxes, from components of torchvision."""

from fcal.models.detection.box_laws import LawHead
from fcal.models.detection.config import DetectorConfig, backbone_names
from fcal.models.detection.corners import CornerCoder
from fcal.models.detection.faster_rcnn import FasterRCNN
from fcal.models.detection.proposals import Candidates, ProposalSamples
from fcal.models.detection.uncertainty import UncertaintyHead, VarianceBounds

__all__ = [
    "Candidates",
    "CornerCoder",
    "DetectorConfig",
    "FasterRCNN",
    "LawHead",
    "ProposalSamples",
    "UncertaintyHead",
    "VarianceBounds",
    "backbone_names",
]
