"""How far a fitted normal law is from the law that residuals must follow.

Every divergence takes the fitted mean and variance and the target's degrees of freedom ``df``: the target is the normal
limit N(df, 2 df) of chi-squared, or N(0, 1) where ``df`` is None. Two know more: :func:`chi2_moments` measures against
chi-squared itself, and :func:`sorted_wasserstein` takes the residuals in place of their moments.
"""

from fcal.divergences.closed_forms import jeffreys, kl, reverse_kl, wasserstein, wasserstein_printed
from fcal.divergences.gamma import chi2_moments
from fcal.divergences.overlaps import hellinger, jensen_shannon, total_variation
from fcal.divergences.powers import chi_square, renyi
from fcal.divergences.registry import _DIVERGENCES as _DIVERGENCES
from fcal.divergences.registry import Divergence as Divergence
from fcal.divergences.registry import by_name, names, register
from fcal.divergences.registry import takes_numbers as takes_numbers
from fcal.divergences.registry import takes_samples as takes_samples
from fcal.divergences.samples import sorted_wasserstein

__all__ = [
    "by_name",
    "chi2_moments",
    "chi_square",
    "hellinger",
    "jeffreys",
    "jensen_shannon",
    "kl",
    "names",
    "register",
    "renyi",
    "reverse_kl",
    "sorted_wasserstein",
    "total_variation",
    "wasserstein",
    "wasserstein_printed",
]
