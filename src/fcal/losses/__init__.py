"""Differentiable objectives: f-Cal, its rivals, and their combination with a task's loss."""

from fcal.losses.combined import CombinedLoss
from fcal.losses.energy import EnergyLoss
from fcal.losses.fcal_loss import FCalLoss
from fcal.losses.mean_loss import MeanLoss
from fcal.losses.mmd import MMDLoss
from fcal.losses.pce import PCELoss
from fcal.losses.quantile_recalibration import QuantileRecalibrationLoss
from fcal.losses.rivals import BetaNLLLoss, CalibrationLoss, CRPSLoss, NLLLoss
from fcal.losses.stratified import StratifiedLoss

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
    "StratifiedLoss",
]
