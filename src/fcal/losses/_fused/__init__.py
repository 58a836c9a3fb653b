"""The fast way to compute a loss that depends on a batch through its sums, behind one call: :func:`fused_loss`."""

from fcal.losses._fused.fused_loss import SumsObjective, complex_step, fused_loss

__all__ = ["SumsObjective", "complex_step", "fused_loss"]
