"""Differentiable objectives: f-Cal, the baselines it is compared with, and their combination with a task loss."""

from fcal.losses.baselines import BetaNLLLoss, CalibrationLoss, CRPSLoss, EnergyLoss, NLLLoss
from fcal.losses.batch import MeanLoss
from fcal.losses.composite import CombinedLoss, StratifiedLoss, SubsampledLoss
from fcal.losses.fcal_loss import FCalLoss
from fcal.losses.mmd import MMDLoss
from fcal.losses.pit_losses import PCELoss, QuantileRecalibrationLoss
from fcal.losses.silog import SiLogLoss
from fcal.losses.trimmed import TrimmedLoss

__all__ = [
    "BetaNLLLoss",
    "CRPSLoss",
    "CalibrationLoss",
    "CombinedLoss",
    "EnergyLoss",
    "FCalLoss",
    "MMDLoss",
    "MeanLoss",
    "NLLLoss",
    "PCELoss",
    "QuantileRecalibrationLoss",
    "SiLogLoss",
    "StratifiedLoss",
    "SubsampledLoss",
    "TrimmedLoss",
]
