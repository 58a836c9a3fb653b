"""Families of noise, ranked by the likelihood of held-out errors."""

import importlib
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from html import escape
from typing import Any

import torch
from torch import Tensor
from torch.distributions import Distribution, Normal, StudentT

from fcal._arrays import as_observed
from fcal._checks import check_count, check_valid_mask
from fcal._datasets import per_target
from fcal._files import provenance, write_json
from fcal._registry import Registry
from fcal.data.folds import fold_numbers, group_numbers
from fcal.distributions import quantile
from fcal.metrics import evaluate
from fcal.metrics.report import plain
from fcal.metrics.report_text import aligned, as_frame, html_table
from fcal.metrics.report_text import number as as_number
from fcal.residuals import standardize
from fcal.selection.candidates import CANDIDATES, Fitted, fitted_to

_STANDARD_ERRORS = 2.0
_FEWEST = 50
_FEWEST_TO_FIT = 10
_FEWEST_CLUSTERS = 3
_LARGEST_ERROR = 1e50
_HEADINGS = ("family", "log-likelihood", "behind the best", "ECE(z)", "shape")
_NOTE = "mean log-density of held-out errors, in predicted sd; differences with their standard errors"


@dataclass(frozen=True, kw_only=True)
class Ranked:
    """Result of one family.

    Attributes:
        family: Name of the family.
        log_likelihood: Mean log-density of held-out errors, in predicted standard deviations.
        behind: Difference from the ``log_likelihood`` of the best family.
        standard_error: Standard error of ``behind``, clustered by group and widened for few groups.
        ece: Calibration error of held-out errors under the family.
        shape: Shape fitted to all errors (degrees of freedom of Student-t, shape of Gamma); None without shape.
    """

    family: str
    log_likelihood: float
    behind: float
    standard_error: float
    ece: float
    shape: float | None

    def is_near(self) -> bool:
        """Whether it is within two standard errors of the best family."""
        return self.behind <= _STANDARD_ERRORS * self.standard_error


@dataclass(frozen=True, kw_only=True)
class Selection:
    """Families of noise, ranked.

    Attributes:
        ranking: Best first.
        family: The selected family; None if the data cannot distinguish several.
        verdict: The result in a sentence.
        fitted: Fitted distribution of the errors, for every family.

    ``print`` shows the verdict and the ranking.

    Example:
        See :func:`fcal.select_family`.
    """

    ranking: tuple[Ranked, ...]
    family: str | None
    verdict: str
    fitted: dict[str, Fitted]

    def __str__(self) -> str:
        """Verdict and ranking as a table of text."""
        return "\n".join([self._sentence(), "", *aligned([_HEADINGS, *self._rows()]), "", _NOTE])

    def _repr_html_(self) -> str:
        table = html_table(_HEADINGS, self._rows())
        return f"<div><p>{escape(self._sentence())}</p>{table}<p>{escape(_NOTE)}</p></div>"

    def to_frame(self) -> Any:
        """The ranking as a pandas data frame with a row of every family, best first.

        Raises:
            ImportError: pandas is not installed.
        """
        return as_frame([asdict(ranked) for ranked in self.ranking], "family")

    def as_dict(self) -> dict[str, Any]:
        """Verdict and ranking as plain numbers and strings for JSON; numbers that are not finite become None."""
        ranking = [plain(ranked) for ranked in self.ranking]
        return {"family": self.family, "verdict": self.verdict, "ranking": ranking}

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the ranking as a page (``.html``) or as numbers (``.json``).

        Raises:
            ValueError: The name has another ending.
        """
        _WRITERS[os.path.splitext(os.fspath(path))[1].lower()](self, path)  # noqa: PTH122 - also of plain strings

    def _sentence(self) -> str:
        return f"family of the noise: {self.verdict}"

    def _rows(self) -> list[tuple[str, ...]]:
        return [
            (
                ranked.family,
                f"{ranked.log_likelihood:.4f}",
                f"{ranked.behind:.4f} \N{PLUS-MINUS SIGN} {ranked.standard_error:.4f}" if ranked.behind else "best",
                as_number(ranked.ece),
                as_number(ranked.shape),
            )
            for ranked in self.ranking
        ]


def _write_numbers(selection: Selection, path: str | os.PathLike[str]) -> None:
    write_json(path, selection.as_dict())


def _write_page(selection: Selection, path: str | os.PathLike[str]) -> None:
    pages = importlib.import_module("fcal.reports.page")  # by name: pages are made in a room above this one
    sections = [pages.Section("", selection._repr_html_())]
    pages.write_page(path, "Family of the noise", sections, command="fcal.select_family", versions=provenance())


_WRITERS: Registry[Callable[[Selection, str | os.PathLike[str]], None]] = Registry("ending of the file's name")
_WRITERS.add(".html", _write_page)
_WRITERS.add(".json", _write_numbers)


def select_family(
    pred: Distribution,
    target: Any,
    *,
    groups: Any = None,
    families: Sequence[str] | None = None,
    valid_mask: Any = None,
    folds: int = 5,
    seed: int = 0,
) -> Selection:
    """Select the family of the noise from the errors of predictions.

    Every family is fitted to the errors, in predicted standard deviations, of all folds but one, and scored by its
    likelihood on the held-out fold. A family is selected if the data distinguish it from all others, or if it is a
    special case of those that score as well; otherwise the verdict lists the families that the data cannot distinguish.

    Args:
        pred: Predictions with a mean and a standard deviation, on rows that the models were not trained on, such as
            ``fcal.crossfit(...).held_out``. Their family does not matter.
        target: Targets, NaN where missing. Shape of ``pred``'s samples; the first dimension is rows. These, groups and
            mask may be tensors, arrays, series or lists.
        groups: Group of each row. Rows of a group are held out together and count as one observation.
        families: Names of the candidates; default: all.
        valid_mask: True where a target counts.
        folds: Number of folds.
        seed: Seed of the assignment to folds.

    Raises:
        TypeError: The prediction has no mean or no standard deviation.
        ValueError: A family is unknown (the message lists the known ones), or there are too few targets.

    Example:
        >>> quantiles = torch.linspace(0.0005, 0.9995, 1000, dtype=torch.float64)
        >>> order = torch.randperm(1000, generator=torch.Generator().manual_seed(0))
        >>> noise = torch.distributions.Laplace(0.0, 1.0).icdf(quantiles)[order]
        >>> pred = torch.distributions.Normal(torch.zeros(1000), 1.0)
        >>> fcal.select_family(pred, noise, families=["normal", "laplace"]).family
        'laplace'
        >>> print(fcal.select_family(pred, noise, families=["normal", "laplace"]))
        family of the noise: laplace (heavy-tailed)
        <BLANKLINE>
        family   log-likelihood  behind the best   ECE(z)  shape
        laplace         -1.6956             best  0.00148      -
        normal          -1.7586  0.0629 ± 0.0129  0.01246      -
        <BLANKLINE>
        mean log-density of held-out errors, in predicted sd; differences with their standard errors
    """
    names = _names(families)
    candidates = {name: CANDIDATES[name] for name in names}
    given = as_observed(target=target, valid_mask=valid_mask)
    target = given["target"]
    errors, row = _errors(pred, target, given["valid_mask"])
    fold = fold_numbers(len(target), folds, groups=groups, seed=seed)[row]
    cluster = row if groups is None else group_numbers(groups, len(target))[row]
    for number in range(folds):
        _check_errors(errors[fold != number])
    scores, z = {}, {}
    for name, candidate in candidates.items():
        scores[name], z[name] = torch.empty_like(errors), torch.empty_like(errors)
        for number in range(folds):
            held = fold == number
            fit = fitted_to(errors[~held], candidate)
            scores[name][held] = fit.log_likelihood(errors[held])
            z[name][held] = standardize(fit.law().expand(errors[held].shape), fit.inside(errors[held]))
    fitted = {name: fitted_to(errors, candidate) for name, candidate in candidates.items()}
    best = max(scores, key=lambda name: float(scores[name].mean()))
    ranking = sorted(
        (_ranked(name, scores[name], scores[best], z[name], cluster, fitted[name]) for name in names),
        key=lambda ranked: ranked.behind,
    )
    family, verdict = _judged(ranking)
    return Selection(ranking=tuple(ranking), family=family, verdict=verdict, fitted=fitted)


def _names(families: Sequence[str] | None) -> list[str]:
    """Names of the candidates, without duplicates."""
    if families is None:
        return CANDIDATES.names()
    if isinstance(families, str) or not families:
        raise ValueError(f"expected `families` a list of names, got {families!r}")
    return list(dict.fromkeys(families))


def _check_errors(errors: Tensor) -> None:
    """Reject errors that no distribution can be fitted to."""
    check_count(len(errors), at_least=_FEWEST_TO_FIT)
    if float((errors - errors.median()).abs().median()) == 0:
        raise ValueError(
            "expected errors of a continuous distribution, got one value for more than half of the targets"
        )
    if float(errors.abs().max()) > _LARGEST_ERROR:
        raise ValueError(
            f"expected errors of at most {_LARGEST_ERROR:g} predicted sd, got {float(errors.abs().max()):g}"
        )


def _errors(pred: Distribution, target: Tensor, valid_mask: Tensor | None) -> tuple[Tensor, Tensor]:
    """Valid errors, in predicted standard deviations, and the row of each."""
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
        counts &= per_target(mask, target)
    check_count(int(counts.sum()), at_least=_FEWEST)
    row = per_target(torch.arange(len(target)), target)
    return errors[counts].detach(), row[counts]


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
    """Factor by which two standard errors of few clusters are widened to have the coverage of many."""
    if clusters < _FEWEST_CLUSTERS:
        return float("inf")
    above = 1 - float(Normal(0.0, 1.0).cdf(torch.tensor(_STANDARD_ERRORS, dtype=torch.float64)))
    student = StudentT(torch.tensor(clusters - 1.0, dtype=torch.float64))
    return float(quantile(student, 1 - above)) / _STANDARD_ERRORS * (clusters / (clusters - 1)) ** 0.5


def _judged(ranking: Sequence[Ranked]) -> tuple[str | None, str]:
    """The selected family, if any, and the verdict."""
    near = [ranked.family for ranked in ranking if ranked.is_near()]
    simplest = [name for name in near if not set(CANDIDATES[name].contains) & set(near)]
    if len(simplest) > 1:
        return None, f"the data cannot tell {', '.join(simplest[:-1])} from {simplest[-1]}"
    (name,) = simplest
    others = [other for other in near if other != name]
    reason = f"; no better, and it is a special case of: {', '.join(others)}" if others else ""
    return name, f"{name} ({CANDIDATES[name].tails}){reason}"
