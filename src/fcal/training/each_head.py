"""The objective of several heads on one trunk."""

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from fcal._checks import check_count
from fcal._datasets import Batch, per_target
from fcal.training.objectives import NamedObjective, Objective, Terms


class EachHead(NamedObjective):
    """An objective of several heads on one trunk, each on the rows that it does not leave out.

    Args:
        objective: Objective of one prediction; its terms are averaged over the heads.

    Example:
        >>> from fcal.models import NormalHead, SharedTrunk
        >>> from fcal.training import EachHead, objective
        >>> network = SharedTrunk(torch.nn.Identity(), [NormalHead(1, 1) for _ in range(2)])
        >>> left_out = torch.tensor([[True, False], [False, True], [False, False]])  # rows, heads
        >>> batch = {"input": torch.zeros(3, 1), "target": torch.zeros(3, 1), "left_out": left_out}
        >>> sorted(EachHead(objective())(network, batch))
        ['nll']
    """

    def __init__(self, objective: Objective) -> None:
        super().__init__("each head")
        self.objective = objective

    def forward(self, model: nn.Module, batch: Batch) -> Terms:
        """Mean of the terms of the heads; one whose rows are all left out of the batch is skipped."""
        preds, target, kept = model(batch["input"]), batch["target"], ~_left_out(batch)
        if not isinstance(preds, list) or len(preds) != kept.shape[1]:
            shown = f"{len(preds)} predictions" if isinstance(preds, list) else type(preds).__name__
            raise TypeError(f"expected `model` to return a list of {kept.shape[1]} predictions, got {shown}")
        terms = []
        for pred, rows in zip(preds, kept.T, strict=True):
            mask = per_target(rows, target) & ~target.isnan()
            if batch.get("valid_mask") is not None:
                mask = mask & per_target(batch["valid_mask"], target)
            if bool(mask.any()):
                terms.append(self.objective(partial(_returned, pred), {**batch, "valid_mask": mask}))  # type: ignore[arg-type]
        check_count(len(terms), at_least=1)
        return {name: torch.stack([term[name] for term in terms]).mean() for name in terms[0]}


def _left_out(batch: Batch) -> Tensor:
    left_out = batch.get("left_out")
    if not isinstance(left_out, Tensor) or left_out.dtype != torch.bool or left_out.dim() != 2:
        raise ValueError("expected batches with a boolean 'left_out' of shape (rows, heads), got none")
    return left_out


def _returned(pred: Any, _: Any) -> Any:
    """Stands in for a model whose prediction is known."""
    return pred
