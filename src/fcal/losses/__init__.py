"""Differentiable objectives: f-Cal, its rivals, and their combination with a task's loss."""

from fcal.losses.combined import CombinedLoss
from fcal.losses.fcal_loss import FCalLoss
from fcal.losses.mean_loss import MeanLoss
from fcal.losses.rivals import BetaNLLLoss, CalibrationLoss, NLLLoss

__all__ = ["BetaNLLLoss", "CalibrationLoss", "CombinedLoss", "FCalLoss", "MeanLoss", "NLLLoss"]
