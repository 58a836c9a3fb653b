"""Which family is the noise of? Families ranked by the likelihood of errors that they were not fitted to."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, StudentT

from fcal._checks import check_count, check_integer, check_valid_mask
from fcal.data.folds import fold_numbers, group_numbers
from fcal.distributions import quantile
from fcal.metrics import evaluate
from fcal.residuals import standardize
from fcal.selection.candidates import CANDIDATES
from fcal.selection.fitting import Fitted, fitted_to

_STANDARD_ERRORS = 2.0
_FEWEST = 50
_FEWEST_TO_FIT = 10
_FEWEST_CLUSTERS = 3
_LARGEST_ERROR = 1e50


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """How a family did.

    Attributes:
        family: Its name.
        log_likelihood: Mean log-density of held-out errors, in predicted standard deviations.
        behind: How much less than the best family's that is.
        standard_error: Of ``behind``; rows of a group count as one, and few groups widen it.
        ece: Calibration error of held-out errors under the family.
        shape: Fitted to all errors: degrees of freedom of Student-t, shape of Gamma; None where there is none.
    """

    family: str
    log_likelihood: float
    behind: float
    standard_error: float
    ece: float
    shape: float | None

    def is_near(self) -> bool:
        """Whether the data cannot tell it from the best one: behind by less than two standard errors."""
        return self.behind <= _STANDARD_ERRORS * self.standard_error


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Families by how well they explain the noise.

    Attributes:
        ranking: Best first.
        family: The one that the data cannot tell from the best; None where they cannot tell several apart.
        verdict: The same in a sentence.
        fitted: Law of the errors, for every family.

    Example:
        See :func:`fcal.select_family`.
    """

    ranking: tuple[Ranked, ...]
    family: str | None
    verdict: str
    fitted: dict[str, Fitted]


def select_family(
    pred: Distribution,
    target: Tensor,
    *,
    groups: Sequence[Any] | Tensor | None = None,
    families: Sequence[str] | None = None,
    valid_mask: Tensor | None = None,
    folds: int = 5,
    seed: int = 0,
) -> Selection:
    """Which family of noise do the errors of predictions speak for?

    Errors, divided by their predicted standard deviations, are given a law of every family, fitted on some folds of
    them and judged by its likelihood on the others. A family is named if the data tell it from all others, or if it
    is a special case of those that are as good; else the verdict says which ones the data cannot tell apart.

    Args:
        pred: Predictions with a mean and a standard deviation, on rows that their models were not fitted on, such as
            ``fcal.crossfit(...).held_out``. Their family does not matter.
        target: Targets, NaN where missing. Shape of ``pred``'s samples; the first dimension is rows.
        groups: Group of each row: rows of one count as one reading, and are held out together.
        families: Names to choose from; all where None.
        valid_mask: True where a target counts.
        folds: Number of folds.
        seed: Of the draw of folds.

    Raises:
        TypeError: A prediction without mean and standard deviation.
        ValueError: An unknown family (the known ones are listed), or too few targets.

    Example:
        >>> quantiles = torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64)
        >>> order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
        >>> noise = torch.distributions.Laplace(0.0, 1.0).icdf(quantiles)[order]
        >>> pred = torch.distributions.Normal(torch.zeros(1000), 1.0)
        >>> fcal.select_family(pred, noise, families=["normal", "laplace"]).family
        'laplace'
    """
    names = _names(families)
    candidates = {name: CANDIDATES[name] for name in names}
    errors, row = _errors(pred, target, valid_mask)
    fold, cluster = _folds(len(target), groups, check_integer("folds", folds, at_least=2), seed)
    fold, cluster = fold[row], cluster[row]
    for number in range(folds):
        _check_errors(errors[fold != number])
    scores, z = {}, {}
    for name, candidate in candidates.items():
        scores[name], z[name] = torch.empty_like(errors), torch.empty_like(errors)
        for number in range(folds):
            held = fold == number
            found = fitted_to(errors[~held], candidate)
            scores[name][held] = found.log_likelihood(errors[held])
            z[name][held] = standardize(found.law().expand(errors[held].shape), found.inside(errors[held]))
    fitted = {name: fitted_to(errors, candidate) for name, candidate in candidates.items()}
    best = max(scores, key=lambda name: float(scores[name].mean()))
    ranking = sorted(
        (_ranked(name, scores[name], scores[best], z[name], cluster, fitted[name]) for name in names),
        key=lambda one: one.behind,
    )
    family, verdict = _judged(ranking)
    return Selection(ranking=tuple(ranking), family=family, verdict=verdict, fitted=fitted)


def _names(families: Sequence[str] | None) -> list[str]:
    """Families to choose from, each once."""
    if families is None:
        return CANDIDATES.names()
    if isinstance(families, str) or not families:
        raise ValueError(f"expected `families` a list of names, got {families!r}")
    return list(dict.fromkeys(families))


def _check_errors(errors: Tensor) -> None:
    """Refuse errors that no law can be fitted to."""
    check_count(len(errors), at_least=_FEWEST_TO_FIT)
    if float((errors - errors.median()).abs().median()) == 0:
        raise ValueError("expected errors of a continuous law, got the same one in more than half of the targets")
    if float(errors.abs().max()) > _LARGEST_ERROR:
        raise ValueError(
            f"expected errors of at most {_LARGEST_ERROR:g} predicted sd, got {float(errors.abs().max()):g}"
        )


def _errors(pred: Distribution, target: Tensor, valid_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Errors that count, in predicted standard deviations, and the row of each."""
    try:
        mean, spread = pred.mean.double(), pred.stddev.double()
    except (NotImplementedError, AttributeError):
        raise TypeError(f"expected `pred` with a mean and a standard deviation, got {type(pred).__name__}") from None
    if mean.shape != target.shape or not target.dim():
        raise ValueError(f"expected `target` of shape {tuple(mean.shape)} like `pred`, got {tuple(target.shape)}")
    errors = (target.double() - mean) / spread
    counts = errors.isfinite()
    if valid_mask is not None:
        mask = check_valid_mask(valid_mask, target, target.shape[:1])
        counts &= mask.reshape(mask.shape + (1,) * (target.dim() - mask.dim()))
    check_count(int(counts.sum()), at_least=_FEWEST)
    row = torch.arange(len(target)).reshape(-1, *(1,) * (target.dim() - 1)).expand(target.shape)
    return errors[counts].detach(), row[counts]


def _folds(rows: int, groups: Sequence[Any] | Tensor | None, folds: int, seed: int) -> tuple[Tensor, Tensor]:
    """Fold and cluster of each row."""
    fold = fold_numbers(rows, folds, groups=groups, seed=seed)
    return fold, torch.arange(rows) if groups is None else group_numbers(groups, rows)


def _ranked(name: str, scores: Tensor, best: Tensor, z: Tensor, cluster: Tensor, fitted: Fitted) -> Ranked:
    gap = best - scores
    totals = gap.new_zeros(int(cluster.max()) + 1).index_add(0, cluster, gap - gap.mean())
    clusters, error = len(cluster.unique()), float(totals.square().sum().sqrt() / len(gap))
    return Ranked(
        family=name,
        log_likelihood=float(scores.mean()),
        behind=float(gap.mean()),
        standard_error=error * _widening(clusters) if error else 0.0,
        ece=float(evaluate(Normal(torch.zeros_like(z), 1.0), z).ece_z),
        shape=float(fitted.shape) if fitted.candidate.shapes else None,
    )


def _widening(clusters: int) -> float:
    """By what two standard errors of few clusters must be widened to be as safe as those of many."""
    if clusters < _FEWEST_CLUSTERS:
        return float("inf")
    above = 1 - float(Normal(0.0, 1.0).cdf(torch.tensor(_STANDARD_ERRORS, dtype=torch.float64)))
    student = StudentT(torch.tensor(clusters - 1.0, dtype=torch.float64))
    return float(quantile(student, 1 - above)) / _STANDARD_ERRORS * (clusters / (clusters - 1)) ** 0.5


def _judged(ranking: Sequence[Ranked]) -> tuple[str | None, str]:
    """The family, if the data tell which, and a sentence."""
    near = [one.family for one in ranking if one.is_near()]
    simplest = [name for name in near if not set(CANDIDATES[name].contains) & set(near)]
    if len(simplest) > 1:
        return None, f"the data cannot tell {', '.join(simplest[:-1])} from {simplest[-1]}"
    (name,) = simplest
    others = [one for one in near if one != name]
    beside = f"; no better, and it is a special case of: {', '.join(others)}" if others else ""
    return name, f"{name} ({CANDIDATES[name].tails}){beside}"
