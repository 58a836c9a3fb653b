"""What torch.distributions lacks: log-tails, quantiles and residuals of every family, and further families."""

# Importing a family registers it.
from fcal.distributions import beta, bounded_support, gamma, location_scale, student_t  # noqa: F401
from fcal.distributions.asymmetric_laplace import AsymmetricLaplace
from fcal.distributions.empirical import Empirical
from fcal.distributions.family import Family, families, register
from fcal.distributions.functional import log_cdf, log_survival, quantile
from fcal.distributions.location_scale import Logistic
from fcal.distributions.monotone import AffineMap, BetaMap, MonotoneMap, PiecewiseLinear
from fcal.distributions.piecewise import QuantileLaw
from fcal.distributions.tails import (
    finite_exp,
    log1mexp_of_log,
    log_normal_cdf,
    normal_quantile,
    normal_quantile_of_log,
)
from fcal.distributions.truncated_normal import TruncatedNormal
from fcal.distributions.warped import Warped

__all__ = [
    "AffineMap",
    "AsymmetricLaplace",
    "BetaMap",
    "Empirical",
    "Family",
    "Logistic",
    "MonotoneMap",
    "PiecewiseLinear",
    "QuantileLaw",
    "TruncatedNormal",
    "Warped",
    "families",
    "finite_exp",
    "log1mexp_of_log",
    "log_cdf",
    "log_normal_cdf",
    "log_survival",
    "normal_quantile",
    "normal_quantile_of_log",
    "quantile",
    "register",
]
