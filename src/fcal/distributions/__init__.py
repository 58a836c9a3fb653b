"""What torch.distributions lacks: log-tails, quantiles and residuals of every family, and a Logistic."""

# The imports of the families also register them.
from fcal.distributions import location_scale, multivariate, positive
from fcal.distributions.family import Family, families, register
from fcal.distributions.functions import log_cdf, log_survival, quantile
from fcal.distributions.logistic import Logistic
from fcal.distributions.tails import (
    finite_exp,
    log1mexp_of_log,
    log_normal_cdf,
    normal_quantile,
    normal_quantile_of_log,
)

__all__ = [
    "Family",
    "Logistic",
    "families",
    "finite_exp",
    "location_scale",
    "log1mexp_of_log",
    "log_cdf",
    "log_normal_cdf",
    "log_survival",
    "multivariate",
    "normal_quantile",
    "normal_quantile_of_log",
    "positive",
    "quantile",
    "register",
]
