"""Which repair to take: methods compared on rows that they were not fitted to."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Independent

from fcal._arrays import as_flags, as_numbers
from fcal.distributions.functional import index_select
from fcal.recalibration.by_group import ByGroup
from fcal.recalibration.calibration_data import calibration_data
from fcal.recalibration.group_moves import group_moves, grouped_data
from fcal.recalibration.quantile_maps import Conformal, Isotonic
from fcal.recalibration.recalibrator import METHODS, Recalibrator
from fcal.recalibration.scale_and_shape import ScaleAndShape
from fcal.recalibration.scaling import Affine, Temperature, rescaled_prediction
from fcal.residuals import standardize
from fcal.scores import crps

# The usual one first. Each of them survives wild rows, which GP-Beta does not quite.
_COMPARED = tuple(kind.method for kind in (ScaleAndShape, Temperature, Affine, Conformal, Isotonic))
_LEVELS = (0.5, 0.9, 0.95)
_FOLDS = 5
_CLEARLY = 3.0  # standard errors by which another method must be better than the usual one,
_RELEVANT = 1e-3  # and share of its CRPS
_FEWEST = 50  # rows; of fewer, a comparison tells nothing
_MOST_COMPARED = 20_000  # rows: more would not change the choice


@dataclass(frozen=True, kw_only=True)
class Candidate:
    """A method on rows that it was not fitted to, by cross-validation.

    Attributes:
        crps: Mean CRPS.
        difference: Mean CRPS less that of the usual method.
        error: Standard error of the difference.
        coverage: Share of targets in the central interval of each level.

    Example:
        >>> Candidate(crps=0.9, difference=-0.1, error=0.01, coverage={"0.9": 0.9}).is_clearly_better
        True
    """

    crps: float
    difference: float
    error: float
    coverage: Mapping[str, float]

    @property
    def is_clearly_better(self) -> bool:
        """Whether it is better than the usual method by more than three standard errors, and a thousandth."""
        usual = self.crps - self.difference
        return self.difference < -max(_CLEARLY * self.error, _RELEVANT * usual)


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The repair that was chosen.

    Attributes:
        recalibrator: Fitted to all rows.
        candidates: Methods that were compared, by name; empty where there was nothing to compare.
        reason: Why it was chosen, in one sentence.

    Example:
        >>> from torch.distributions import Normal
        >>> choice = choose(Normal(torch.zeros(4), 1.0), torch.tensor([1.0, -3.0, 3.0, 1.0]))
        >>> choice.recalibrator.method, choice.reason
        ('scale-and-shape', '4 rows are too few to compare methods')
    """

    recalibrator: Recalibrator
    candidates: Mapping[str, Candidate]
    reason: str

    def transform(self, pred: Distribution, *, group: Any = None) -> Distribution:
        """Predictions repaired by what was chosen; with the group of each row, if it was chosen by groups."""
        if isinstance(self.recalibrator, ByGroup):
            return self.recalibrator.transform(pred, group=group)
        if group is not None:
            raise ValueError("expected `group` for a repair that was chosen with groups, got one that was not")
        return self.recalibrator.transform(pred)


def choose(pred: Distribution, target: Tensor, *, valid_mask: Tensor | None = None, group: Any = None) -> Choice:
    """Choose a repair by cross-validation, and fit it to all rows.

    ``scale-and-shape`` is taken unless another method has a CRPS that is lower by more than three standard errors, and
    by a thousandth, on rows that it was not fitted to; then the simplest of those with the lowest CRPS, up to a
    thousandth. Where two methods are about as good it is always the same one, so that a few spoilt rows do not turn the
    choice; rows that are wild by their errors are not compared.

    Args:
        pred: Predictions on data that the model was not trained on.
        target: Their targets, NaN where missing.
        valid_mask: True where a target counts; shaped like ``target`` or its rows.
        group: The group of each row, numbers or names: the repair is a :class:`ByGroup`, with methods compared on
            predictions whose groups are repaired, and shifts of groups where these clearly differ.

    Returns:
        The repair, and what it was compared with. Of vectors it is ``temperature``, of few rows ``scale-and-shape``.

    Raises:
        ValueError: Too few targets.

    Example:
        Predictions that are too low by one sigma, which a factor cannot repair:

        >>> from torch.distributions import Normal
        >>> target = 1 + torch.randn(1000, generator=torch.Generator().manual_seed(0))
        >>> choice = choose(Normal(torch.zeros(1000), torch.ones(1000)), target)
        >>> bool((choice.transform(Normal(torch.zeros(3), torch.ones(3))).mean > 0.9).all())
        True
        >>> choice.recalibrator.method, round(choice.candidates["affine"].coverage["0.9"], 1)
        ('affine', 0.9)
    """
    if not isinstance(pred, Distribution):
        raise TypeError(
            f"expected `pred` a torch.distributions.Distribution such as Normal(mean, sd), or "
            f"fcal.distributions.Empirical(samples), got {type(pred).__name__}"
        )
    target = as_numbers("target", target)
    valid_mask = None if valid_mask is None else as_flags("valid_mask", valid_mask)
    if group is not None:
        return _choose_for_groups(pred, target, valid_mask, group)
    if pred.event_shape and not isinstance(pred, Independent):
        factor = Temperature().fit(pred, target, valid_mask=valid_mask)
        return Choice(recalibrator=factor, candidates={}, reason="a factor is what vectors can be repaired by")
    data = calibration_data(pred, target, valid_mask, at_least=ScaleAndShape.least_rows)
    if len(data.z) < _FEWEST:
        usual_one = ScaleAndShape().fit(pred, target, valid_mask=valid_mask)
        return Choice(
            recalibrator=usual_one, candidates={}, reason=f"{len(data.z)} rows are too few to compare methods"
        )
    law = data.law.distribution()
    scores = {name: _held_out(name, law, data.target, ~data.wild) for name in _COMPARED}
    usual, _ = scores[_COMPARED[0]]
    candidates = {name: _candidate(own, z, usual) for name, (own, z) in scores.items()}
    better = {name: found for name, found in candidates.items() if found.is_clearly_better}
    lowest = min((found.crps for found in better.values()), default=0.0)
    as_good = [name for name, found in better.items() if found.crps <= (1 + _RELEVANT) * lowest]
    name = as_good[0] if as_good else _COMPARED[0]
    repair = METHODS[name]().fit(pred, target, valid_mask=valid_mask)
    return Choice(recalibrator=repair, candidates=candidates, reason=_reason(name, candidates))


def _choose_for_groups(pred: Distribution, target: Tensor, valid_mask: Tensor | None, group: Any) -> Choice:
    data, codes, names = grouped_data(pred, target, valid_mask, group, at_least=ScaleAndShape.least_rows)
    moves = group_moves(data, codes, len(names), shift=False)
    if moves.shifts_differ:
        moves = group_moves(data, codes, len(names), shift=True)
    inner = choose(rescaled_prediction(data.law.distribution(), moves.shift[codes], moves.factor[codes]), data.target)
    repair = ByGroup(inner.recalibrator, shift=True if moves.shifts_differ else None)
    return replace(inner, recalibrator=repair.fit(pred, target, valid_mask=valid_mask, group=group))


def _held_out(name: str, law: Distribution, target: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """CRPS and residuals of rows that count, each repaired by a fit to the other folds.

    The folds depend on the number of rows alone, so that rows which do not count leave the others where they are.
    """
    order = torch.randperm(len(target), generator=torch.Generator().manual_seed(0))[:_MOST_COMPARED].to(target.device)
    scores, residuals = [], []
    for fold in range(_FOLDS):
        judged = order[fold::_FOLDS]
        others = torch.cat([order[other::_FOLDS] for other in range(_FOLDS) if other != fold])
        repair = METHODS[name]().fit(_rows(law, others), target[others])
        judged = judged[counts[judged]]
        repaired = repair.transform(_rows(law, judged))
        scores.append(crps(repaired, target[judged]))
        residuals.append(standardize(repaired, target[judged]))
    return torch.cat(scores).double(), torch.cat(residuals).double()


def _rows(law: Distribution, rows: Tensor) -> Distribution:
    selected = index_select(law, rows)
    assert isinstance(selected, Distribution)
    return selected


def _candidate(scores: Tensor, z: Tensor, usual: Tensor) -> Candidate:
    gaps = scores - usual
    edges = {level: math.sqrt(2) * torch.erfinv(torch.tensor(level, dtype=torch.float64)) for level in _LEVELS}
    return Candidate(
        crps=scores.mean().item(),
        difference=gaps.mean().item(),
        error=gaps.std().item() / math.sqrt(len(gaps)),
        coverage={str(level): (z.abs() <= edge).double().mean().item() for level, edge in edges.items()},
    )


def _reason(name: str, candidates: Mapping[str, Candidate]) -> str:
    if name == _COMPARED[0]:
        return "no other method is clearly better on rows that it was not fitted to"
    chosen = candidates[name]
    share = -chosen.difference / (chosen.crps - chosen.difference)
    return f"its CRPS on rows that it was not fitted to is {share:.1%} below that of {_COMPARED[0]}"
