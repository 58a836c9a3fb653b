"""What torch.distributions lacks: log-tails, quantiles and residuals of every family, and a Logistic."""

# The imports of the families also register them.
from fcal.distributions import (
    beta,
    gamma,
    location_scale,
    multivariate,
    pareto,
    positive,
    student,
)
from fcal.distributions.asymmetric_laplace import AsymmetricLaplace
from fcal.distributions.family import Family, families, register
from fcal.distributions.functional import log_cdf, log_survival, quantile
from fcal.distributions.logistic import Logistic
from fcal.distributions.monotone import AffineMap, BetaMap, MonotoneMap, PiecewiseLinear
from fcal.distributions.quantiles import QuantileLaw
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
    "Family",
    "Logistic",
    "MonotoneMap",
    "PiecewiseLinear",
    "QuantileLaw",
    "TruncatedNormal",
    "Warped",
    "beta",
    "families",
    "finite_exp",
    "gamma",
    "location_scale",
    "log1mexp_of_log",
    "log_cdf",
    "log_normal_cdf",
    "log_survival",
    "multivariate",
    "normal_quantile",
    "normal_quantile_of_log",
    "pareto",
    "positive",
    "quantile",
    "register",
    "student",
]
